"""Roles without devices on the nodes of their gang: their runs, limits and leases."""

from pathlib import Path

import pytest

from scheduling.clusters.models import Device, Node
from scheduling.jobs.models import Job
from scheduling.runs.models import Lease, Member
from tessera.protocol import RunSpec
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from workers.conf import WorkerSettings
from workers.services.dispatch import claim_directives

pytestmark = pytest.mark.django_db
ROLES = {
    "ps": {"instances": 3, "devices": 0, "cpus": 1, "memory": "1GiB", "command": "serve"},
    "worker": {"instances": 2, "devices": 8, "command": "train"},
}


@pytest.fixture(autouse=True)
def _cluster() -> None:
    make_cluster(2)
    make_priority_classes()
    make_virtual_cluster(cells=2)
    Device.objects.update(is_gpu=True, cpus=4.0, memory_bytes=8 << 30)


def submit_gang() -> Job:
    return make_job(document={"name": "ps", "virtual_cluster": "vision-a", "roles": ROLES})


def runs_of_gang(tmp_path: Path) -> dict[str, RunSpec]:
    settings = WorkerSettings(data_dir=tmp_path, installation="here")
    found = {}
    for node in Node.objects.all():
        for one in claim_directives(node_ids=[node.pk], busy=[], settings=settings, now=NOW):
            assert one.preparation is not None
            run = one.preparation.run
            found[f"{run.role}.{run.rank}"] = run
    return found


def test_the_whole_gang_is_dispatched_and_companions_share_the_limits_of_their_hosts(
    tmp_path: Path,
) -> None:
    submit_gang()
    run_round()

    runs = runs_of_gang(tmp_path)

    assert sorted(runs) == ["ps.0", "ps.1", "ps.2", "worker.0", "worker.1"]
    assert {run.cpus for name, run in runs.items() if name.startswith("ps")} == {1.0}
    assert (runs["worker.0"].cpus, runs["worker.1"].cpus) == (30.0, 31.0)
    assert runs["worker.0"].memory_bytes == (64 << 30) - (2 << 30)
    assert (runs["ps.0"].devices, runs["ps.0"].gpus) == ([], [])
    assert runs["ps.0"].env["CUDA_VISIBLE_DEVICES"] == ""
    assert {run.env["WORLD_SIZE"] for run in runs.values()} == {"5"}
    assert runs["worker.0"].env["RANK"] == "0"


def test_companions_hold_no_leases_and_the_next_round_changes_nothing(tmp_path: Path) -> None:
    job = submit_gang()
    run_round()
    before = set(Lease.objects.filter(released_at=None).values_list("device_id", flat=True))
    runs_of_gang(tmp_path)

    result = run_round()

    leases = Lease.objects.filter(released_at=None)
    assert set(leases.values_list("device_id", flat=True)) == before
    assert len(before) == 16
    assert not leases.filter(member__role="ps").exists()
    assert Member.objects.filter(attempt__job=job).count() == 5
    assert Job.objects.unscoped().get(pk=job.pk).state == "starting", result


def test_each_device_of_the_role_gets_a_process(tmp_path: Path) -> None:
    roles = {**ROLES, "worker": {**ROLES["worker"], "processes": "per-device"}}
    make_job(document={"name": "ps", "virtual_cluster": "vision-a", "roles": roles})
    run_round()

    runs = runs_of_gang(tmp_path)

    assert [runs[name].processes for name in ("worker.0", "worker.1", "ps.0")] == [8, 8, 0]
    assert {run.env["WORLD_SIZE"] for run in runs.values()} == {"19"}
    firsts = {name: run.env["RANK"] for name, run in runs.items()}
    assert (firsts["worker.0"], firsts["worker.1"], firsts["ps.0"]) == ("0", "8", "16")
    # CUDA numbers the devices 0 to 7 in each process, so that LOCAL_RANK selects one.
    assert len(runs["worker.0"].env["CUDA_VISIBLE_DEVICES"].split(",")) == 8
