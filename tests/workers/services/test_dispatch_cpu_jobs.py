"""Jobs without devices on the database: submit, round, run, end, charge, and share of devices."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.nodes import node_detail
from scheduling.clusters.services.inventory import apply_inventory
from scheduling.clusters.services.nodes import update_node
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.jobs.queries.why import why
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import CpuLease, Lease
from scheduling.usage.models import UsageDay
from scheduling.usage.services.usage import sum_usage
from tenants.errors import ConflictError, ForbiddenError, InvalidError
from tenants.models import User
from tenants.selectors import viewer_of
from tenants.viewers import Viewer
from tessera.inventory import Inventory
from tessera.protocol import RunSpec
from tests.factories.attempts import end_member, members_of, run_members
from tests.factories.cluster import NOW, make_job
from tests.factories.scheduling import ADMIN, make_two_tenants, run_round, submit
from workers.conf import WorkerSettings
from workers.services.dispatch import claim_directives

pytestmark = pytest.mark.django_db
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _cluster() -> None:
    make_two_tenants(2)


def share(cpus: float = 3.0, memory: int = 6 * GIB) -> None:
    """Give the devices of node-1 less, so that 8 CPUs and 16 GiB belong to none."""
    node = Node.objects.get(name="node-1")
    Device.objects.filter(node=node).update(cpus=cpus, memory_bytes=memory)


def cpu_job(username: str = "alice", count: int = 1, cpus: float = 2, **changes: Any) -> Job:
    vc = {"bob": "language-a"}.get(username, "vision-a")
    role = {
        "instances": count,
        "devices": 0,
        "cpus": cpus,
        "memory": "2GiB",
        "command": "load",
    }
    document = {"name": "load", "virtual_cluster": vc, "roles": {"loader": role}, **changes}
    return make_job(username, document)


def alice() -> Viewer:
    return viewer_of(User.objects.get(username="alice"))


def runs(tmp_path: Path) -> dict[str, RunSpec]:
    settings = WorkerSettings(data_dir=tmp_path, installation="here")
    found = {}
    for node in Node.objects.all():
        for one in claim_directives(node_ids=[node.pk], busy=[], settings=settings, now=NOW):
            assert one.preparation is not None
            run = one.preparation.run
            found[f"{run.role}.{run.rank}"] = run
    return found


def test_a_job_without_devices_runs_with_its_limits_beside_devices(tmp_path: Path) -> None:
    share()
    job = cpu_job(count=2)

    assert run_round().started == (job.pk,)

    leases = CpuLease.objects.filter(job=job, released_at=None)
    assert [(one.node.name, one.cpus, one.memory_bytes) for one in leases] == [
        ("node-1", 2.0, 2 * GIB)
    ] * 2
    assert not Lease.objects.exists()
    found = runs(tmp_path)
    assert {(run.cpus, run.memory_bytes) for run in found.values()} == {(2.0, 2 * GIB)}
    assert {tuple(run.devices) for run in found.values()} == {()}
    assert {run.env["WORLD_SIZE"] for run in found.values()} == {"2"}
    assert found["loader.0"].env["CUDA_VISIBLE_DEVICES"] == ""
    assert violations() == ()


def test_its_end_releases_and_charges_the_cpus_and_not_devices() -> None:
    share()
    job = cpu_job(count=2)
    run_round()
    run_members(job)
    assert run_round().started == ()
    for member in members_of(job):
        end_member(member, at=NOW + timedelta(seconds=100))

    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED
    charged = sum(
        2.0 * (m.exited_at - m.started_at).total_seconds()
        for m in members_of(job)
        if m.exited_at and m.started_at
    )
    assert (job.cpu_seconds, job.gpu_seconds) == (charged, 0.0)
    assert not CpuLease.objects.filter(released_at=None).exists()
    sum_usage(now=NOW + timedelta(seconds=200))
    assert sum(UsageDay.objects.unscoped().values_list("cpu", flat=True)) == charged
    assert sum(UsageDay.objects.unscoped().values_list("guaranteed", flat=True)) == 0.0
    assert violations() == ()


def test_devices_keep_their_share_and_jobs_with_devices_start_first() -> None:
    share()
    cpu_job(cpus=8)
    gang = submit(devices=8)

    assert set(run_round().started) == set(Job.objects.unscoped().values_list("pk", flat=True))
    assert Lease.objects.filter(job=gang, released_at=None).count() == 8


def test_a_job_waits_with_numbers_and_a_remedy_and_needs_no_further_search() -> None:
    share()
    first, second = cpu_job(cpus=6), cpu_job("bob", cpus=6)
    assert len(run_round().started) == 1
    waiting = Job.objects.unscoped().get(state=JobState.QUEUED)

    assert waiting.reason_code == "waiting-for-cpus"
    found = why(viewer_of(waiting.owner), waiting.pk, now=NOW, round_seconds=10.0)
    assert "2 CPUs and 14 GiB free" in found.text
    assert any("device-share" in step for step in found.unblock)
    assert found.blocked_by_others == 1  # a job of another tenant is only counted
    assert {first.tenant_id, second.tenant_id} != {first.tenant_id}


def test_a_cluster_whose_devices_have_everything_says_so_at_the_submit() -> None:
    job = cpu_job()

    assert any("belong to no device" in str(one) for one in job.warnings)
    run_round()
    job.refresh_from_db()
    assert job.reason_code == "no-node-with-cpus"


def test_a_virtual_cluster_without_cells_may_run_jobs_without_devices() -> None:
    share()
    from scheduling.clusters.models import VcQuota

    VcQuota.objects.all().delete()

    assert run_round().started == ()
    job = cpu_job()
    assert run_round().started == (job.pk,)


def test_a_guaranteed_job_preempts_an_opportunistic_one() -> None:
    share()
    document: dict[str, Any] = {"class": "opportunistic"}
    borrower = cpu_job(cpus=8, **document)
    run_round()
    run_members(borrower)
    owner = cpu_job("bob", cpus=4)

    outcome = run_round()

    assert outcome.preempted == (borrower.pk,)
    borrower.refresh_from_db()
    assert borrower.state == JobState.PREEMPTING
    owner.refresh_from_db()
    assert owner.reason_code == "waiting-victim-checkpoint"
    for member in members_of(borrower):
        end_member(member)
    assert owner.pk in run_round().started


def inventory(cpus: int = 32) -> Inventory:
    return Inventory.from_json(
        {
            "devices": [
                {"index": n, "type": "a", "path": [n // 4, n // 2], "declared": True}
                for n in range(8)
            ],
            "levels": ["node", "socket", "pcie", "device"],
            "cpus": cpus,
            "memory_bytes": 64 * GIB,
        }
    )


def set_share(**values: Any) -> Node:
    node = Node.objects.get(name="node-1")
    return update_node(viewer=ADMIN, node_id=node.pk, now=NOW, **values)


def test_an_admin_sets_the_share_and_each_probe_keeps_it() -> None:
    Node.objects.filter(name="node-1").update(inventory=inventory().to_json())
    set_share(device_cpus=3.0, device_memory_bytes=6 * GIB)

    node = Node.objects.get(name="node-1")
    assert set(node.devices.values_list("cpus", "memory_bytes")) == {(3.0, 6 * GIB)}
    apply_inventory(node_id=node.pk, inventory=inventory(), now=NOW)
    use = node_detail(ADMIN, node.pk).cpu_use
    assert (use.devices.cpus, use.pool.cpus, use.free.memory) == (24.0, 8.0, 16 * GIB)
    job = cpu_job(cpus=5)
    assert run_round().started == (job.pk,)
    use = node_detail(ADMIN, node.pk).cpu_use
    assert (use.leased.cpus, use.free.cpus, use.instances) == (5.0, 3.0, 1)

    set_share(device_cpus=None, device_memory_bytes=None)
    assert set(node.devices.values_list("cpus", "memory_bytes")) == {(4.0, 8 * GIB)}
    run_members(job)
    assert run_round().preempted == (job.pk,)


def test_a_smaller_share_waits_for_the_jobs_that_use_the_larger_one() -> None:
    Node.objects.filter(name="node-1").update(inventory=inventory().to_json())
    for _ in range(2):
        submit(devices=8)
        submit("bob", devices=8)
    run_round()

    with pytest.raises(ConflictError):
        set_share(device_cpus=3.0)
    assert set(Device.objects.values_list("cpus", flat=True)) == {4.0}


@pytest.mark.parametrize(
    "values",
    [
        {"device_cpus": 0},
        {"device_cpus": True},
        {"device_cpus": float("nan")},
        {"device_memory_bytes": 1.5},
        {"device_memory_bytes": 1},
    ],
)
def test_a_share_that_is_not_valid_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        set_share(**values)


def test_only_managers_of_nodes_set_the_share() -> None:
    node = Node.objects.get(name="node-1")
    with pytest.raises(ForbiddenError):
        update_node(viewer=alice(), node_id=node.pk, now=NOW, device_cpus=3.0)


def test_instances_that_are_no_gang_are_jobs_of_their_own() -> None:
    share()
    role = {"instances": 3, "devices": 0, "cpus": 3, "memory": "1GiB", "command": "load"}
    document = {
        "name": "load",
        "virtual_cluster": "vision-a",
        "gang": False,
        "roles": {"loader": role, "worker": {"devices": 1, "command": "train"}},
    }
    make_job("alice", document)

    assert len(run_round().started) == 3  # two of three loaders fit, and the worker
    assert CpuLease.objects.count() == 2
