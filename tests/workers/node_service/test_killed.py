"""A node service that is killed at any moment, on real SSH nodes: nothing is lost or run twice."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.runs.models import Lease
from tessera.node import confinement
from tessera.protocol import ROOT_DIR
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from tests.support.killable_service import Killable
from tests.support.served_node import Served, served
from tests.workers.node_service.conftest import wait_for

PATIENCE = 60.0


@pytest.fixture
def nodes(real_database: None, tmp_path: Path) -> Iterator[list[Served]]:
    """Two nodes that are in the database and can be reached with the control plane's key."""
    if connection.vendor != "sqlite":
        pytest.skip("the process under test opens a SQLite file")
    make_priority_classes()
    with ExitStack() as stack:
        key = tmp_path / "ssh" / "id_ed25519"
        key.parent.mkdir()
        found = [
            stack.enter_context(served(tmp_path / name, client_key=key)) for name in ("n1", "n2")
        ]
        for row, node in zip(make_cluster(nodes=2), found, strict=True):
            address = node.address
            Node.objects.filter(pk=row.pk).update(
                host=address.host, port=address.port, host_key=address.host_key
            )
        make_virtual_cluster(cells=2)
        yield found


@pytest.fixture
def service(nodes: list[Served], tmp_path: Path) -> Iterator[Killable]:
    service = Killable(tmp_path)
    yield service
    service.kill()


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def state(job: Job) -> JobState:
    return JobState(Job.objects.unscoped().values_list("state", flat=True).get(pk=job.pk))


def test_killed_again_and_again_while_jobs_run_it_starts_nothing_twice_and_loses_nothing(
    nodes: list[Served], service: Killable, tmp_path: Path
) -> None:
    starts, stop = tmp_path / "starts", tmp_path / "stop"
    for node in nodes:  # its jobs meet at files that a sandbox would hide
        declaration = node.home / ROOT_DIR / confinement.DECLARATION_FILE
        declaration.parent.mkdir(exist_ok=True)
        declaration.write_text('{"strongest": "none"}')
    Node.objects.update(isolation_level="none")
    command = f"echo $TESSERA_JOB_ID >> {starts}; while [ ! -e {stop} ]; do sleep 0.05; done; exit"
    jobs = [make_job(worker={"command": f"{command} {n}"}) for n in (0, 0, 5)]
    gang = make_job(worker={"command": f"{command} 0", "instances": 2, "devices": 4})
    run_round(timezone.now())

    for moment in ("before anything ran", "while it starts"):
        service.start()
        if moment == "while it starts":
            wait_for(starts.exists, seconds=PATIENCE)
        service.kill()
    service.start()
    everything = [*jobs, gang]
    wait_for(
        lambda: {state(job) for job in everything} == {JobState.RUNNING},
        lambda: f"{[state(job) for job in everything]}",
        seconds=PATIENCE,
    )
    service.kill()
    stop.touch()  # all end while nobody looks
    service.start()

    wait_for(
        lambda: all(Job.objects.unscoped().get(pk=job.pk).is_over for job in everything),
        lambda: f"{[state(job) for job in everything]}",
        seconds=PATIENCE,
    )
    assert [state(job) for job in jobs] == [
        JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED,
    ]  # fmt: skip
    assert state(gang) is JobState.SUCCEEDED
    assert Job.objects.unscoped().get(pk=jobs[2].pk).exit_code == 5
    begun = sorted(int(line) for line in starts.read_text().split())
    assert begun == sorted([*(job.pk for job in jobs), gang.pk, gang.pk])
    assert not Lease.objects.filter(released_at=None).exists()
    for node in nodes:
        runs = node.home / ".tessera" / "runs"
        wait_for(partial(is_empty, runs), seconds=PATIENCE)
