"""Logs in an object store while jobs run: outages, and hosts with separate data directories."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.storage.config import StorageConfig
from tests.support.object_store import ObjectStoreServer, StoreGate, object_store, store_gate
from tests.workers.node_service.conftest import World, wait_for
from workers.models import LogStream
from workers.node_service import follower

__all__ = ["object_store", "store_gate"]


def lines(first: int, end: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(first, end))


@pytest.fixture
def config(
    world: World,
    object_store: ObjectStoreServer,
    store_gate: StoreGate,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[StorageConfig]:
    monkeypatch.setattr(follower, "FINISH_PAUSE", 0.2)
    found = object_store.new_bucket(world.settings.data_dir, gate=store_gate)
    world.settings = replace(world.settings, storage_config=found)
    yield found
    # Threads of the services must not wait for the store at their end.
    store_gate.heal()


def move_to_host(world: World, config: StorageConfig, name: str) -> None:
    """Let the next service run on a host with a data directory of its own."""
    data_dir = config.data_dir.with_name(name)
    world.settings = replace(
        world.settings, data_dir=data_dir, storage_config=replace(config, data_dir=data_dir)
    )


def is_closed(job: Job) -> bool:
    return LogStream.objects.filter(job=job, closed=True).exists()


def test_a_job_runs_and_ends_while_the_store_is_away_and_its_log_is_whole(
    world: World, config: StorageConfig, store_gate: StoreGate
) -> None:
    world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    world.node_of(member).write(world.run_id(member), log=lines(0, 50))
    wait_for(lambda: world.logs(job) == lines(0, 50))

    store_gate.close()
    world.node_of(member).write(world.run_id(member), log=lines(50, 5000))
    world.node_of(member).finish(world.run_id(member), 0)
    world.wait_for_state(job, JobState.SUCCEEDED)
    assert world.run_id(member) in world.node_of(member).runs
    assert not is_closed(job)
    store_gate.open()

    wait_for(lambda: is_closed(job))
    assert world.logs(job) == lines(0, 5000)
    assert world.run_id(member) not in world.node_of(member).runs
    assert LogStream.objects.get(job=job).end == len(lines(0, 5000))


def test_reports_and_events_continue_while_the_store_is_away(
    world: World, config: StorageConfig, store_gate: StoreGate
) -> None:
    store_gate.close()
    world.start()
    first = world.submit("echo one; exit 3")
    world.wait_for_state(first, JobState.FAILED)
    second = world.submit("true")
    world.wait_for_state(second, JobState.SUCCEEDED)

    store_gate.open()

    wait_for(lambda: is_closed(first))
    assert world.logs(first) == b"one\n"


def test_a_second_host_continues_a_log_where_the_first_ended(
    world: World, config: StorageConfig
) -> None:
    first = world.start("service-1")
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    world.node_of(member).write(world.run_id(member), log=lines(0, 300))
    wait_for(lambda: world.logs(job) == lines(0, 300))
    first.stop()
    world.services.remove(first)
    world.node_of(member).write(world.run_id(member), log=lines(300, 600))

    move_to_host(world, config, "data-b")
    world.start("service-2")
    wait_for(lambda: world.logs(job) == lines(0, 600))
    world.node_of(member).write(world.run_id(member), log=lines(600, 700))
    world.node_of(member).finish(world.run_id(member), 0)

    wait_for(lambda: is_closed(job))
    assert world.logs(job) == lines(0, 700)
    reads = [found.name for found in world.settings.storage.files(f"logs/{job.pk}")]
    assert len(reads) == 1
