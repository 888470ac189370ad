"""NVLink domains of a node are cells, and jobs can ask for one."""

from dataclasses import replace

import pytest

from scheduling.clusters.models import Device, Node, Topology, VcQuota
from scheduling.clusters.services.node_contact import record_probe
from scheduling.jobs.models import Job
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Lease
from scheduling.topology.current import current_topology
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tests.factories.scheduling import NOW, make_two_tenants, run_round, submit

pytestmark = pytest.mark.django_db

PAIRS = [
    Found(
        index=index,
        type="NVIDIA-A40",
        path=[index // 4, index // 2],
        uuid=f"GPU-{index}",
        pci_address=f"0000:{index:02x}:00.0",
        nvlink=index // 2 * 2,
    )
    for index in range(8)
]


@pytest.fixture(autouse=True)
def cluster():
    make_two_tenants()
    for model in (VcQuota, Topology, Device):
        model.objects.all().delete()


def probe(name: str, devices: list[Found], *levels: str) -> Node:
    node, _ = Node.objects.get_or_create(
        name=name, defaults={"host": name, "state_since": NOW, "created_at": NOW}
    )
    inventory = Inventory(
        devices=devices, levels=["node", *levels, "device"], cpus=32, memory_bytes=64 << 30
    )
    record_probe(
        node_id=node.pk,
        inventory=inventory.to_json(),
        has_docker=False,
        cpus=32.0,
        memory_bytes=64 << 30,
        now=NOW,
    )
    Node.objects.filter(pk=node.pk).update(state="ready", contact="ready")
    node.refresh_from_db()
    return node


def borrow(devices: int, within: str) -> Job:
    return submit(devices=devices, worker={"within": within}, **{"class": "opportunistic"})


def held(job: Job) -> set[int]:
    leases = Lease.objects.filter(released_at=None, job=job)
    return set(leases.values_list("device__index", flat=True))


def test_bridged_pairs_are_a_level_and_an_instance_stays_in_one() -> None:
    node = probe("pairs", PAIRS, "socket", "nvlink")

    levels = [level.level for level in current_topology().chains["NVIDIA-A40-node"].levels]
    assert levels == ["device", "nvlink", "socket", "node"]
    assert node.nvlink_types == ["NVIDIA-A40"]
    jobs = [borrow(1, "node"), *(borrow(2, "nvlink") for _ in range(3)), borrow(2, "nvlink")]
    run_round()
    for job in jobs[1:4]:
        assert {index // 2 for index in held(job)} in ({0}, {1}, {2}, {3})
        assert len(held(job)) == 2
    assert held(jobs[4]) == set()
    assert violations() == ()


def test_a_node_that_is_one_domain_serves_whole_nodes() -> None:
    switched = [replace(gpu, nvlink=0) for gpu in PAIRS]
    node = probe("switched", switched, "socket", "pcie")

    job = borrow(8, "nvlink")
    run_round()

    assert node.nvlink_types == ["NVIDIA-A40"]
    assert len(held(job)) == 8


def test_a_node_without_a_link_serves_no_job_that_asks_for_one() -> None:
    plain = [replace(gpu, nvlink=-1) for gpu in PAIRS]
    node = probe("plain", plain, "socket", "pcie")

    job, single = borrow(2, "nvlink"), borrow(1, "nvlink")
    run_round()
    job.refresh_from_db()

    assert (node.nvlink_types, held(job), len(held(single))) == ([], set(), 1)
    assert job.reason_code == "no-cell-of-level"
    assert job.reason["message"]["code"] == "no-nvlink"


def test_four_devices_of_a_socket_fit_where_numa_nodes_are_smaller() -> None:
    # A DGX A100 in NPS4: two sockets, each with two NUMA nodes of two GPUs.
    probe("nps4", [replace(gpu, nvlink=0) for gpu in PAIRS], "socket", "pcie")

    jobs = [borrow(4, "socket"), borrow(4, "socket"), borrow(2, "numa")]
    run_round()

    assert sorted(map(sorted, map(held, jobs[:2]))) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_cells_of_an_earlier_version_stay_when_a_probe_reports_more_levels() -> None:
    probe("old", PAIRS, "socket", "pcie")
    before = list(Device.objects.values_list("uuid", "address", "chain"))
    versions = Topology.objects.count()

    probe("old", PAIRS, "socket", "nvlink")

    assert list(Device.objects.values_list("uuid", "address", "chain")) == before
    assert Topology.objects.count() == versions
