"""Jobs without devices on a real SSH node: probe, share of devices, runs, logs and charge."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.nodes import node_detail
from scheduling.clusters.services.nodes import update_node
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import CpuLease, Lease, Member
from tests.factories.cluster import make_job, make_priority_classes, make_virtual_cluster
from tests.factories.scheduling import ADMIN, run_round
from tests.support.databases import migrated_template, real_database
from tests.support.served_node import served
from tests.workers.node_service.conftest import wait_for
from tests.workers.transports.conftest import bundle
from workers.conf import WorkerSettings
from workers.models import LogStream
from workers.node_service.ports import NodeAddress
from workers.node_service.service import NodeService
from workers.node_service.thread import NodeServiceThread
from workers.transports.base import Transport
from workers.transports.ssh import Patience, SshTransport

__all__ = ["migrated_template", "real_database"]
MIB = 1 << 20
SECONDS = 120.0
DECLARED = {
    "levels": ["node", "device"],
    "cpus": 4,
    "memory_bytes": 2048 * MIB,
    "devices": [{"type": "cpu-a", "path": []}, {"type": "cpu-a", "path": []}],
}
SAY = 'echo "rank $RANK of $WORLD_SIZE devices [$CUDA_VISIBLE_DEVICES]"'


@pytest.fixture
def settings_of_service(real_database: None, tmp_path: Path) -> Iterator[WorkerSettings]:
    """A node service with one real SSH node that declares two devices."""
    settings = WorkerSettings(
        data_dir=tmp_path / "data", installation="here", tick=0.2, look_every=0.2, probe_every=1.0
    )
    make_priority_classes()
    make_virtual_cluster(cells=0)
    with served(tmp_path / "n1", "asyncssh") as node:
        root = node.home / ".tessera"
        root.mkdir(mode=0o700)
        (root / "devices.json").write_text(json.dumps(DECLARED))
        Node.objects.create(
            name="node-1",
            host="127.0.0.1",
            port=node.address.port,
            user="tessera",
            state="down",
            contact="down",
            state_since=timezone.now(),
            created_at=timezone.now(),
        )

        def connect(_node: NodeAddress, _progress: Callable[[str, str], None]) -> Transport:
            return SshTransport(node.address, bundle(), Patience(connect=30.0, request=30.0))

        thread = NodeServiceThread(
            lambda: NodeService(settings=settings, connect=connect, owner="service-1")
        )
        thread.start()
        yield settings
        thread.stop()


def submit(**document: object) -> Job:
    return make_job(
        document={
            "name": "job",
            "virtual_cluster": "vision-a",
            "class": "opportunistic",
            **document,
        }
    )


def finish(job: Job) -> None:
    def state() -> JobState:
        return JobState(Job.objects.unscoped().values_list("state", flat=True).get(pk=job.pk))

    wait_for(lambda: state() is JobState.SUCCEEDED, state, seconds=SECONDS)


def log(settings: WorkerSettings, job: Job, rank: str) -> str:
    path = f"{job.pk}/1/{rank}.log"
    streams = LogStream.objects.filter(member__attempt__job=job)
    wait_for(lambda: not streams.filter(closed=False).exists(), seconds=SECONDS)
    return settings.storage.logs.read(path, offset=0, limit=1 << 20).data.decode()


def test_a_launcher_a_worker_and_a_job_without_devices_share_a_node(
    settings_of_service: WorkerSettings,
) -> None:
    settings = settings_of_service
    wait_for(lambda: Device.objects.count() == 2, seconds=SECONDS)
    wait_for(lambda: Node.objects.filter(state="ready").exists(), seconds=SECONDS)
    node = Node.objects.get()
    assert set(Device.objects.values_list("cpus", "memory_bytes")) == {(2.0, 1024 * MIB)}
    update_node(
        viewer=ADMIN,
        node_id=node.pk,
        now=timezone.now(),
        device_cpus=1.0,
        device_memory_bytes=512 * MIB,
    )
    own = {"devices": 0, "cpus": 0.5, "memory": "128MiB"}
    gang = submit(
        roles={
            "launcher": {**own, "command": SAY},
            "worker": {"devices": 1, "command": f"{SAY}; sleep 1"},
        }
    )
    alone = submit(
        roles={"loader": {**own, "cpus": 1, "instances": 2, "command": f"{SAY}; sleep 1"}}
    )

    assert set(run_round(timezone.now()).started) == {gang.pk, alone.pk}

    assert Lease.objects.filter(job=gang).count() == 1
    assert (
        list(CpuLease.objects.values_list("job_id", "cpus", "memory_bytes"))
        == [(alone.pk, 1.0, 128 * MIB)] * 2
    )
    use = node_detail(ADMIN, node.pk).cpu_use
    assert (use.devices.cpus, use.pool.cpus, use.leased.cpus) == (2.0, 2.0, 2.0)
    finish(gang)
    finish(alone)
    assert "rank 0 of 2" in log(settings, gang, "worker-0")
    assert "rank 1 of 2 devices []" in log(settings, gang, "launcher-0")
    said = {log(settings, alone, f"loader-{rank}").strip() for rank in range(2)}
    assert said == {f"rank {rank} of 2 devices []" for rank in range(2)}
    alone.refresh_from_db()
    gang.refresh_from_db()
    times = Member.objects.filter(attempt__job=alone).values_list("started_at", "exited_at")
    ran = 0.0
    for started, exited in times:
        assert started is not None
        assert exited is not None
        ran += (exited - started).total_seconds()
    assert alone.cpu_seconds == pytest.approx(ran, abs=0.01), list(times)
    assert alone.gpu_seconds == 0.0 < ran
    assert gang.gpu_seconds > 0.0 == gang.cpu_seconds
    assert not CpuLease.objects.filter(released_at=None).exists()
    assert violations() == ()
