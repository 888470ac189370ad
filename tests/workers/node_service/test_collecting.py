"""What comes back from the nodes while jobs run: logs, reports, telemetry, inventories."""

import errno
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from django.dispatch import Signal
from django.utils import timezone

from scheduling.clusters.models import Node, Storage
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import JobEvent
from scheduling.runs.models import Lease, SharedDevice
from scheduling.watching.models import LogRule
from tessera import protocol
from tests.support.fake_transport import FakeRun, FakeTransport
from tests.workers.node_service.conftest import World, wait_for
from workers import signals
from workers.models import GoodputSample, LogStream, NodeTelemetry
from workers.transports.base import Chunk, CompanyReading, DeviceReading, RefusedError


class Heard:
    """Collects the arguments of a signal."""

    def __init__(self, signal: Signal) -> None:
        self.news: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._signal = signal
        signal.connect(self._take)

    def _take(self, sender: object, **news: Any) -> None:
        with self._lock:
            self.news.append(news)

    def stop(self) -> None:
        self._signal.disconnect(self._take)

    def text(self) -> str:
        return "".join(str(news["text"]) for news in self.news)


@pytest.fixture
def log_news() -> Iterator[Heard]:
    heard = Heard(signals.log_grew)
    yield heard
    heard.stop()


def step(number: int, samples: float = 10.0) -> bytes:
    fields = {"step": number, "samples": samples, "step_seconds": 0.1, "time": 100.0 + number}
    return json.dumps(fields).encode() + b"\n"


def test_a_line_that_matches_a_rule_notifies_once_and_ends_the_retries(world: World) -> None:
    LogRule.objects.create(name="NaN", pattern="loss is nan", action="stop-retries")
    world.start()
    job = world.submit("sleep 60", retries={"user": 5})
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    node, run_id = world.node_of(member), world.run_id(member)

    node.write(run_id, log=b"step 1\nloss is n")
    node.write(run_id, log=b"an now\nloss is nan again\n")
    wait_for(JobEvent.objects.filter(job=job, kind="log-rule").exists)
    node.finish(run_id, 1)
    world.wait_for_state(job, JobState.FAILED)

    (event,) = JobEvent.objects.filter(job=job, kind="log-rule")
    assert event.detail["offset"] == len(b"step 1\n")
    assert "loss is nan now" in event.text


def test_a_log_is_fetched_while_it_grows_and_published_without_gaps(
    world: World, log_news: Heard
) -> None:
    world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    node, run_id = world.node_of(member), world.run_id(member)

    written = "Grüße 中文 🎉\n".encode() * 100

    def has_bytes(count: int) -> bool:
        return len(world.logs(job)) >= count

    for begin in range(0, len(written), 7):  # cuts inside characters
        node.write(run_id, log=written[begin : begin + 7])
        if begin % 70 == 0:
            wait_for(partial(has_bytes, begin))
    wait_for(lambda: world.logs(job) == written)
    node.finish(run_id, 0)
    world.wait_for_state(job, JobState.SUCCEEDED)

    wait_for(lambda: log_news.news and log_news.news[-1]["end"])
    assert log_news.text() == written.decode()
    offsets = [(news["offset"], news["next_offset"]) for news in log_news.news]
    assert offsets[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(offsets))


def test_a_job_that_writes_much_does_not_keep_others_waiting(world: World) -> None:
    world.start()
    loud = world.submit("sleep 60")
    quiet = world.submit("sleep 60")
    for job in (loud, quiet):
        world.wait_for_state(job, JobState.RUNNING)
    (noisy,), (calm,) = world.members(loud), world.members(quiet)
    flood = b"x" * (8 << 20)

    world.node_of(noisy).write(world.run_id(noisy), log=flood)
    world.node_of(calm).write(world.run_id(calm), log=b"one line\n")

    wait_for(lambda: world.logs(quiet) == b"one line\n")
    wait_for(lambda: len(world.logs(loud)) == len(flood))


def test_dropped_parts_of_a_log_leave_no_gap_for_readers(world: World) -> None:
    world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    run = world.run_of(member)
    run.dropped = 1000

    world.node_of(member).write(world.run_id(member), log=b"a" * 1000 + b"after the gap\n")
    world.node_of(member).finish(world.run_id(member), 0)
    wait_for(lambda: LogStream.objects.filter(closed=True).exists())

    stream = LogStream.objects.get()
    assert (stream.first, stream.end) == (1000, 1014)
    found = world.settings.storage.logs.read(stream.path, offset=0, limit=99, first=stream.first)
    assert (found.offset, found.data) == (1000, b"after the gap\n")


def test_reports_become_samples_of_the_whole_gang(world: World) -> None:
    world.start()
    job = world.submit("sleep 60", worker={"instances": 2, "devices": 8})
    world.wait_for_state(job, JobState.RUNNING)
    members = world.members(job)

    for member in members:
        world.node_of(member).write(
            world.run_id(member), reports=b"noise\n" + b"".join(step(n) for n in range(1, 11))
        )
    wait_for(lambda: sum(s.samples for s in GoodputSample.objects.all()) == 200.0)
    for member in members:
        world.node_of(member).write(world.run_id(member), reports=step(11))
        world.node_of(member).finish(world.run_id(member), 0)
    world.wait_for_state(job, JobState.SUCCEEDED)

    wait_for(lambda: sum(s.samples for s in GoodputSample.objects.all()) == 220.0)
    newest = GoodputSample.objects.order_by("at").last()
    assert newest is not None
    assert newest.step == 11
    assert newest.throughput == pytest.approx(20.0)


def test_reports_continue_after_those_that_the_node_has_dropped(world: World) -> None:
    world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    lines = [step(number) for number in range(1, 4)]
    world.run_of(member).dropped_reports = len(lines[0]) + 5  # in the middle of the second

    world.node_of(member).write(world.run_id(member), reports=b"".join(lines))
    world.node_of(member).finish(world.run_id(member), 0)
    world.wait_for_state(job, JobState.SUCCEEDED)

    wait_for(GoodputSample.objects.exists)
    assert GoodputSample.objects.get().step == 3
    wait_for(lambda: LogStream.objects.get().reports_end == len(b"".join(lines)))


def saved(number: int) -> bytes:
    """The report of a training job about a checkpoint."""
    told = {"event": "checkpoint", "step": number, "sha256": f"{number:064x}", "bytes": 100}
    return json.dumps(told).encode() + b"\n"


def test_checkpoints_become_events_of_the_job_once(world: World) -> None:
    first = world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    member = world.members(job)[0]

    def told() -> list[str]:
        found = JobEvent.objects.filter(job_id=job.pk, kind="checkpoint").order_by("id")
        return [f"{event.detail['step']} {event.attempt}" for event in found]

    world.node_of(member).write(world.run_id(member), reports=step(1) + saved(1))
    wait_for(lambda: told() == ["1 1"], lambda: "the first checkpoint")
    first.stop()
    world.start("service-2")
    world.node_of(member).write(world.run_id(member), reports=saved(1) + saved(2) + step(2))
    wait_for(lambda: told() == ["1 1", "2 1"], lambda: "the second checkpoint")
    assert not JobEvent.objects.filter(job_id=job.pk, kind="checkpoint").exclude(state="").exists()


def test_reports_are_counted_once_across_a_change_of_service(world: World) -> None:
    first = world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    world.node_of(member).write(world.run_id(member), reports=step(1) + step(2))
    wait_for(GoodputSample.objects.exists)

    first.stop()
    world.start("service-2")
    world.node_of(member).write(world.run_id(member), reports=step(3))
    world.node_of(member).finish(world.run_id(member), 0)
    world.wait_for_state(job, JobState.SUCCEEDED)

    wait_for(lambda: sum(s.samples for s in GoodputSample.objects.all()) == 30.0)
    assert LogStream.objects.get().reports_end == 3 * len(step(1))


def test_telemetry_is_stored_by_the_minute_and_published_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The minute is part of the stored rows, no setting.
    monkeypatch.setattr("workers.node_service.session.MINUTE", 0.5)
    heard = Heard(signals.telemetry_seen)
    world.start()

    wait_for(NodeTelemetry.objects.exists)
    heard.stop()

    row = NodeTelemetry.objects.first()
    assert row is not None
    assert row.utilisation == [0.5]
    assert heard.news[0]["reading"]["utilisation"] == [0.5]


def test_the_state_of_a_coordinator_is_stored_before_the_minute_is_complete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.node_service.session.MINUTE", 10**6)
    world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    index = Lease.objects.get(member=member).device.index

    company = CompanyReading(holder_run_id=world.run_id(member), closings=3)
    world.node_of(member).load = DeviceReading(index=index, company=company)

    wait_for(SharedDevice.objects.filter(holder=member, closings=3).exists)


def test_a_probe_stores_the_devices_of_the_node(world: World) -> None:
    world.start()

    wait_for(lambda: Node.objects.filter(probed_at__isnull=False).count() == 3)

    node = Node.objects.get(name="node-1")
    assert (node.cpus, node.boot_id) == (8, "boot-1")
    assert len(node.inventory["devices"]) == 8


def test_a_probe_stores_the_storages_that_the_node_has(world: World) -> None:
    Storage.objects.create(
        name="sets", source="/srv/sets", mount="/data", created_at=timezone.now()
    )
    world.start()

    wait_for(lambda: not Node.objects.filter(storages={}).exists())

    found = Node.objects.get(name="node-1").storages["/srv/sets"]
    assert (found["cause"], found["total_bytes"]) == ("", 1 << 40)


def test_a_node_cannot_speak_about_runs_of_another_node(world: World) -> None:
    world.start()
    job = world.submit("sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    liar = next(node for name, node in world.nodes.items() if name != member.node.name)
    claim = protocol.RunStatus(
        run_id=world.run_id(member),
        phase=protocol.EXITED,
        exit=protocol.ExitRecord(cause="exited", failure="", at=0.0, code=0),
        installation="here",
    )

    liar.runs[claim.run_id] = FakeRun(world.run_of(member).preparation, claim)
    for session in liar.sessions:
        session.take(claim)
    asked = len([1 for name, _ in liar.asked if name == "runs"])
    wait_for(lambda: len([1 for name, _ in liar.asked if name == "runs"]) > asked + 2)

    assert world.state(job) is JobState.RUNNING


def test_a_full_disk_of_the_portal_does_not_count_against_the_node_and_loses_no_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refusals, full = os.pwrite, [0], threading.Event()
    full.set()

    def write_if_there_is_room(*arguments: Any) -> int:
        if full.is_set():
            refusals[0] += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", write_if_there_is_room)
    world.start()
    wait_for(lambda: Node.objects.filter(contact="ready").count() == 3)

    job = world.submit("echo first; sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    wait_for(lambda: refusals[0])
    world.node_of(member).finish(world.run_id(member), 0)
    world.wait_for_state(job, JobState.SUCCEEDED)
    wait_for(lambda: refusals[0] > 2)
    assert Node.objects.filter(contact="ready").count() == 3
    assert world.asked("remove") == []
    assert all(len(node.sessions) == 1 for node in world.nodes.values())

    full.clear()
    wait_for(lambda: world.logs(job) == b"first\n")
    wait_for(lambda: world.run_id(member) not in world.node_of(member).runs)


def test_a_log_that_a_node_cannot_read_now_remains_there_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, refusals, is_broken = FakeTransport.read, [0], threading.Event()
    is_broken.set()

    async def read_if_possible(line: FakeTransport, *arguments: Any, **fields: Any) -> Chunk:
        if is_broken.is_set():
            refusals[0] += 1
            raise RefusedError("internal", "Input/output error")
        return await read(line, *arguments, **fields)

    monkeypatch.setattr(FakeTransport, "read", read_if_possible)
    world.start()
    job = world.submit("echo first; sleep 60")
    world.wait_for_state(job, JobState.RUNNING)
    (member,) = world.members(job)
    world.node_of(member).finish(world.run_id(member), 0)
    world.wait_for_state(job, JobState.SUCCEEDED)
    wait_for(lambda: refusals[0] > 2)
    assert world.asked("remove") == []

    is_broken.clear()
    wait_for(lambda: world.logs(job) == b"first\n")
    wait_for(lambda: world.run_id(member) not in world.node_of(member).runs)
