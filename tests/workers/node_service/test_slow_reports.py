"""Reports that take long: leases are renewed meanwhile, and other reports do not wait for them."""

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.clock import database_now
from tests.factories.cluster import make_cluster
from tests.support.databases import migrated_template, real_database
from workers.conf import WorkerSettings
from workers.node_service import writer as writing
from workers.node_service.writer import (
    FIRST_QUICK,
    FIRST_SLOW,
    LEAST_QUICK,
    LEAST_SECONDS,
    LEAST_SLOW,
    LONG_TURN_SECONDS,
    MOST_NEWS,
    ReportLimit,
    ReportQueue,
    ReportWriter,
)
from workers.services import node_leases
from workers.services.node_reports import NodeReport
from workers.services.turns import take_turn

__all__ = ["migrated_template", "real_database"]
OWNER = "service-1"
COUNT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick(NodeReport):
    """A report that is written at once."""

    written: ClassVar[list[int]] = []
    number: int = 0

    def write(self, now: datetime) -> None:
        self.written.append(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(NodeReport):
    """A report that is written only when the test lets it."""

    is_slow = True
    allowed: ClassVar[threading.Semaphore] = threading.Semaphore(0)
    written: ClassVar[list[int]] = []
    number: int = 0

    def write(self, now: datetime) -> None:
        assert self.allowed.acquire(timeout=60)
        self.written.append(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengthy(NodeReport):
    """A slow report that takes a fraction of a second."""

    is_slow = True
    seconds: ClassVar[float] = 0.3

    def write(self, now: datetime) -> None:
        time.sleep(self.seconds)


def test_a_turn_takes_reports_of_all_nodes_in_rotation() -> None:
    queue = ReportQueue()
    for number in range(1000):
        queue.add(Quick(node_id=1, number=number))
    queue.add(Quick(node_id=2, number=2000))
    queue.add(Quick(node_id=3, number=3000))

    first = queue.take(4)
    asked = queue.posted(2)
    queue.settle(first)

    numbers = [item.number for item in first if isinstance(item, Quick)]
    assert numbers == [0, 2000, 3000, 1]
    assert queue.is_settled(2, asked)
    assert not queue.is_settled(1, queue.posted(1))
    rest = [item.number for item in queue.take(5000) if isinstance(item, Quick)]
    assert rest == list(range(2, 1000))
    assert not queue


async def test_a_node_with_many_reports_does_not_delay_the_comparison_of_another_node(
    real_database: None, tmp_path: Path
) -> None:
    Quick.written.clear()
    settings = WorkerSettings(data_dir=tmp_path, installation="here", tick=0.05)
    writer = ReportWriter(owner=OWNER, settings=settings, lost=lambda nodes: None)
    epochs = await writer.write(_carried_nodes, 2)
    busy, other = epochs
    for number in range(20 * MOST_NEWS):
        writer.post(Quick(node_id=busy, number=number))
    writer.post(Quick(node_id=other, number=-1))
    running = asyncio.create_task(writer.run(lambda: epochs, {}))
    try:
        async with asyncio.timeout(60):
            await writer.flush(other)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await writer.close()

    assert Quick.written.index(-1) == 1
    assert len(Quick.written) <= 2 * MOST_NEWS


def test_a_turn_reports_the_time_of_its_slow_reports(db: None, tmp_path: Path) -> None:
    epochs = _carried_nodes(1)
    (node_id,) = epochs

    turn = take_turn(
        owner=OWNER,
        epochs=epochs,
        news=[Quick(node_id=node_id, number=7), Lengthy(node_id=node_id)],
        listening=[],
        busy=[],
        settings=WorkerSettings(data_dir=tmp_path, installation="here"),
        now=database_now(),
    )

    assert turn.slow_seconds >= Lengthy.seconds


async def test_other_reports_and_comparisons_do_not_wait_for_slow_reports(
    real_database: None, tmp_path: Path
) -> None:
    Quick.written.clear()
    Slow.written.clear()
    settings = WorkerSettings(data_dir=tmp_path, installation="here", tick=0.05)
    writer = ReportWriter(owner=OWNER, settings=settings, lost=lambda nodes: None)
    epochs = await writer.write(_carried_nodes, 1)
    (node_id,) = epochs
    running = asyncio.create_task(writer.run(lambda: epochs, {}))
    try:
        for number in range(COUNT):
            writer.post(Slow(node_id=node_id, number=number))
        for _ in range(FIRST_SLOW):
            Slow.allowed.release()
        writer.post(Quick(node_id=node_id, number=1))
        async with asyncio.timeout(60):
            await writer.flush(node_id)
        seen = len(Slow.written)
        for _ in range(COUNT):
            Slow.allowed.release()
        async with asyncio.timeout(60):
            assert await writer.confirm(Slow(node_id=node_id, number=COUNT))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await writer.close()

    assert Quick.written == [1]
    assert seen <= FIRST_SLOW
    assert Slow.written == list(range(COUNT + 1))


async def test_slow_reports_of_a_node_do_not_reduce_the_number_of_other_reports(
    real_database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LONG_TURN_SECONDS", Lengthy.seconds)
    settings = WorkerSettings(data_dir=tmp_path, installation="here", tick=0.05)
    writer = ReportWriter(owner=OWNER, settings=settings, lost=lambda nodes: None)
    epochs = await writer.write(_carried_nodes, 2)
    slow, other = epochs
    for number in range(2 * FIRST_SLOW):
        writer.post(Lengthy(node_id=slow))
        writer.post(Quick(node_id=other, number=number))
    running = asyncio.create_task(writer.run(lambda: epochs, {}))
    try:
        async with asyncio.timeout(60):
            await writer.flush(other)
            assert await writer.confirm(Lengthy(node_id=slow))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await writer.close()

    assert writer._quick_limit.most >= FIRST_QUICK
    assert writer._slow_limit.most < FIRST_SLOW


def _carried_nodes(count: int) -> dict[int, int]:
    """Create nodes, and return the epochs of their leases."""
    make_cluster(nodes=count)
    lease = timedelta(seconds=60)
    taken = node_leases.claim_nodes(
        owner=OWNER, carried=(), now=database_now(), lease=lease, fresh=lease
    )
    assert len(taken) == count
    return {node_id: claim.epoch for node_id, claim in taken.items()}


def limit_after(
    turns: int, *, cost: float, fixed: float = 0.0, others: float = 0.0, least: int = LEAST_SLOW
) -> list[int]:
    """The limits after each of some turns that are as full as their limit allows."""
    limit, found = ReportLimit(first=FIRST_QUICK, least=least), []
    for _ in range(turns):
        limit.note(limit.most, seconds=fixed + cost * limit.most, others=others)
        found.append(limit.most)
    return found


@given(
    cost=st.floats(0.0, 5.0),
    fixed=st.floats(0.0, 30.0),
    others=st.floats(0.0, 30.0),
    least=st.sampled_from([LEAST_QUICK, LEAST_SLOW]),
)
def test_the_reports_of_a_turn_have_a_bounded_time(
    cost: float, fixed: float, others: float, least: int
) -> None:
    settled = limit_after(60, cost=cost, fixed=fixed, others=others, least=least)[10:]

    assert all(least <= most <= MOST_NEWS for most in settled)
    # Only the fewest reports, and twice as many for a comparison, may take longer than wanted.
    most = max(settled)
    assert most <= 2 * least or cost * most <= LONG_TURN_SECONDS + 1e-6
    # And a turn has no fewer reports than there is time for: a comparison takes half of them.
    affordable = max(LONG_TURN_SECONDS - others - fixed, LEAST_SECONDS) / max(cost, 1e-9)
    assert min(settled) >= min(int(affordable * (1 - 1e-6)), MOST_NEWS) // 2


@pytest.mark.parametrize(("fixed", "others"), [(0.0, 10.0), (10.0, 0.0), (3.0, 3.0)])
def test_a_turn_that_is_long_without_its_reports_has_no_fewer_reports(
    fixed: float, others: float
) -> None:
    found = limit_after(60, cost=0.001, fixed=fixed, others=others)

    assert min(found) >= FIRST_QUICK // 2
    assert min(found[5:]) >= MOST_NEWS // 2


def test_reports_that_take_long_are_fewer_in_the_next_turn() -> None:
    limit = ReportLimit(first=MOST_NEWS, least=LEAST_SLOW)

    limit.note(MOST_NEWS, seconds=0.2 * MOST_NEWS, others=0.1)
    assert limit.most == MOST_NEWS // 2
    limit.note(MOST_NEWS // 2, seconds=0.1 * MOST_NEWS, others=0.1)

    assert limit.most == int((LONG_TURN_SECONDS - 0.1) / 0.2)


def test_turns_with_few_reports_do_not_lower_the_limit_for_many() -> None:
    limit = ReportLimit(first=FIRST_QUICK, least=LEAST_SLOW)

    for _ in range(20):
        limit.note(1, seconds=3.0, others=3.0)

    assert limit.most == FIRST_QUICK
