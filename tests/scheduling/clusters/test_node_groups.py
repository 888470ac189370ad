"""Racks and pools follow from the labels of nodes, and jobs stay in one."""

import pytest

from scheduling.clusters.models import Device, Node, Topology, VcQuota
from scheduling.clusters.services.inventory import apply_inventory
from scheduling.clusters.services.nodes import update_node
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.validation import InvalidJobError, check_draft
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Lease
from scheduling.topology.current import current_topology
from tenants.errors import ForbiddenError
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tests.factories.scheduling import (
    ADMIN,
    NOW,
    job_document,
    make_two_tenants,
    run_round,
    start,
    submit,
)
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def label(name: str, viewer=ADMIN, **labels: str) -> Node:
    node = Node.objects.get(name=name)
    return update_node(viewer=viewer, node_id=node.pk, labels=labels, now=NOW)


def borrow(instances: int, within: str) -> Job:
    worker = {"instances": instances, "within": within}
    return submit(devices=8, worker=worker, **{"class": "opportunistic"})


def homes(job: Job) -> set[str]:
    leases = Lease.objects.filter(released_at=None, job=job)
    return set(leases.values_list("device__node__name", flat=True))


def check(within: str) -> None:
    viewer = make_viewer("alice")
    document = job_document(worker={"within": within}, virtual_cluster="vision-a")
    context = read_submit_context(viewer=viewer, images_ignored=True)
    check_draft(document=document, viewer=viewer, submit_context=context)


@pytest.mark.parametrize("kind", ["rack", "pool"])
def test_a_job_stays_in_one_group_and_needs_one_that_is_large_enough(kind: str) -> None:
    label("node-1", **{kind: "a"})
    label("node-3", **{kind: "a"})

    pair, none = borrow(2, kind), borrow(3, kind)
    run_round()
    none.refresh_from_db()

    assert homes(pair) == {"node-1", "node-3"}
    assert homes(none) == set()
    assert none.reason_code == "exceeds-vc-max"
    assert violations() == ()


def test_racks_of_equal_names_in_two_pools_are_two_racks() -> None:
    label("node-1", rack="1", pool="a")
    label("node-2", rack="1", pool="b")
    label("node-3", rack="1", pool="b")

    job = borrow(2, "rack")
    run_round()

    assert homes(job) == {"node-2", "node-3"}


def test_labels_change_neither_cells_nor_guarantees_nor_running_jobs() -> None:
    job = submit(devices=8)
    start(job)
    cells = list(Device.objects.values_list("pk", "address", "chain", "index"))
    quotas = list(VcQuota.objects.values_list("chain", "level", "count"))
    leases = list(Lease.objects.values_list("pk", "device_id", "virtual_cell", "released_at"))

    label("node-1", rack="a")
    run_round()

    assert Topology.objects.count() == 2
    assert list(Device.objects.values_list("pk", "address", "chain", "index")) == cells
    assert list(VcQuota.objects.values_list("chain", "level", "count")) == quotas
    after = list(Lease.objects.values_list("pk", "device_id", "virtual_cell", "released_at"))
    assert after == leases

    label("node-1", rack="a", zone="x")
    assert Topology.objects.count() == 2
    label("node-1")
    assert Topology.objects.count() == 3
    assert current_topology().spec.groups == {}


@pytest.mark.parametrize("kind", ["rack", "pool"])
def test_a_job_may_name_a_level_that_labels_give(kind: str) -> None:
    with pytest.raises(InvalidJobError) as refused:
        check(kind)
    assert refused.value.errors[0].code == "no-cell-of-level"

    label("node-1", **{kind: "a"})

    check(kind)


def test_a_guaranteed_job_keeps_its_guarantee_inside_a_rack() -> None:
    label("node-1", rack="a")
    label("node-2", rack="b")
    job = submit(devices=8, worker={"within": "rack"})

    start(job)

    assert Lease.objects.filter(job=job).exclude(virtual_cell="").count() == 8
    assert violations() == ()


def test_labels_of_an_earlier_version_take_effect_with_the_next_inventory() -> None:
    node = Node.objects.get(name="node-1")
    Node.objects.filter(pk=node.pk).update(labels={"rack": "a"})
    addresses = set(Device.objects.values_list("address", flat=True))
    slots = [Found(index=i, type="a", path=[i // 4, i // 2], declared=True) for i in range(8)]
    levels = ["node", "socket", "pcie", "device"]
    found = Inventory(devices=slots, levels=levels, cpus=32, memory_bytes=64 << 30)

    apply_inventory(node_id=node.pk, inventory=found, now=NOW)

    assert current_topology().spec.groups == {"rack": {"node-1": "a"}}
    assert set(Device.objects.values_list("address", flat=True)) == addresses


def test_only_admins_label_nodes() -> None:
    with pytest.raises(ForbiddenError):
        label("node-1", viewer=make_viewer("alice"), rack="a")

    assert current_topology().spec.groups == {}
