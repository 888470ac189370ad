"""Reports that take long: leases are renewed meanwhile, and other reports do not wait for them."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

from tenants.clock import database_now
from tests.factories.cluster import make_cluster
from tests.support.databases import migrated_template, real_database
from workers.conf import WorkerSettings
from workers.node_service.writer import (
    FIRST_SLOW,
    LONG_TURN_SECONDS,
    MOST_NEWS,
    ReportWriter,
    next_most,
)
from workers.services import node_leases
from workers.services.node_reports import NodeReport

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


async def test_other_reports_and_comparisons_do_not_wait_for_slow_reports(
    real_database: None, tmp_path: Path
) -> None:
    Quick.written.clear()
    Slow.written.clear()
    settings = WorkerSettings(data_dir=tmp_path, installation="here", tick=0.05)
    node_id, epochs = await asyncio.to_thread(_carried_node)
    writer = ReportWriter(owner=OWNER, settings=settings, lost=lambda nodes: None)
    running = asyncio.create_task(writer.run(lambda: epochs, {}))
    try:
        for number in range(COUNT):
            writer.post(Slow(node_id=node_id, number=number))
        for _ in range(FIRST_SLOW):
            Slow.allowed.release()
        writer.post(Quick(node_id=node_id, number=1))
        async with asyncio.timeout(60):
            await writer.flush()
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


def _carried_node() -> tuple[int, dict[int, int]]:
    make_cluster(nodes=1)
    lease = timedelta(seconds=60)
    taken = node_leases.claim_nodes(
        owner=OWNER, carried=(), now=database_now(), lease=lease, fresh=lease
    )
    ((node_id, claim),) = taken.items()
    return node_id, {node_id: claim.epoch}


def test_after_a_long_turn_fewer_reports_are_written() -> None:
    assert next_most(MOST_NEWS, LONG_TURN_SECONDS + 0.1) == MOST_NEWS // 2
    assert next_most(1, 60.0) == 1


def test_after_a_short_turn_more_reports_are_written() -> None:
    assert next_most(FIRST_SLOW, 0.01) == 2 * FIRST_SLOW
    assert next_most(MOST_NEWS, 0.01) == MOST_NEWS


def test_a_turn_of_the_wanted_length_is_not_changed() -> None:
    assert next_most(8, 0.75 * LONG_TURN_SECONDS) == 8
