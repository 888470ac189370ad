"""Batched database writes of a node service: reports and directives, one batch per turn."""

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import fmean, linear_regression
from typing import Final, ParamSpec, TypeVar

from django.db import OperationalError, close_old_connections, connections

from tenants.clock import database_now
from workers.conf import WorkerSettings
from workers.node_service.connection import NodeConnection
from workers.services.dispatch import has_directives
from workers.services.node_reports import NodeReport
from workers.services.turns import Turn, take_turn

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MOST_NEWS: Final = 64
READERS: Final = 2
LEAST_GATHER_SECONDS: Final = 0.003
GATHER_SECONDS: Final = 0.015
MOST_GATHER_SECONDS: Final = 0.1
CROWD: Final = 8
"""Reports and directives in a turn above which the next turn starts later."""
FIRST_QUICK: Final = 16
FIRST_SLOW: Final = 4
LEAST_QUICK: Final = 8
LEAST_SLOW: Final = 1
LONG_TURN_SECONDS: Final = 2.0
"""Length of a turn above which its reports may be too many.

Node leases are renewed only at the start of a turn, and others see that at its end."""
LEAST_SECONDS: Final = LONG_TURN_SECONDS / 4
"""Time for the reports of a kind in a turn that is long without them."""
TURNS: Final = 8
"""Number of turns whose reports are compared."""
RETRY_SECONDS: Final = (0.05, 0.2, 0.5, 1.0, 2.0)


class ReportQueue:
    """Reports that wait for a turn, by node.

    A turn takes reports of all nodes in rotation, so a node with thousands of reports does not
    delay those of others. The reports of one node keep their order.
    """

    def __init__(self) -> None:
        """Create an empty queue."""
        self._waiting: dict[int, deque[NodeReport]] = {}
        self._rotation: deque[int] = deque()
        self._posted: Counter[int] = Counter()
        self._settled: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._rotation)

    def add(self, report: NodeReport) -> None:
        """Add a report behind the others of its node."""
        node_id = report.node_id
        if node_id not in self._waiting:
            self._waiting[node_id] = deque()
            self._rotation.append(node_id)
        self._waiting[node_id].append(report)
        self._posted[node_id] += 1

    def take(self, most: int) -> list[NodeReport]:
        """Remove and return at most ``most`` reports, one of each node in rotation."""
        taken: list[NodeReport] = []
        while self._rotation and len(taken) < most:
            node_id = self._rotation.popleft()
            reports = self._waiting[node_id]
            taken.append(reports.popleft())
            if reports:
                self._rotation.append(node_id)
            else:
                del self._waiting[node_id]
        return taken

    def settle(self, taken: Sequence[NodeReport]) -> None:
        """Record that the turn of these reports has ended."""
        self._settled.update(report.node_id for report in taken)

    def posted(self, node_id: int) -> int:
        """Return the number of reports of a node so far."""
        return self._posted[node_id]

    def is_settled(self, node_id: int, number: int) -> bool:
        """Return whether the turns of a node's first ``number`` reports have ended."""
        return self._settled[node_id] >= number


class ReportLimit:
    """Maximum number of reports of a kind, quick or slow, in a turn, by their marginal cost.

    On a busy machine, a turn is long even with one report. Fewer reports would not shorten it:
    jobs would start slowly, and leases would not be renewed earlier.

    Attributes:
        most: maximum in the next turn.
    """

    def __init__(self, *, first: int, least: int) -> None:
        """Args: first: maximum in the first turn. least: lower bound of all later ones."""
        self.most = first
        self._least = least
        self._turns: deque[tuple[int, float]] = deque(maxlen=TURNS)

    def note(self, count: int, *, seconds: float, others: float) -> None:
        """Update the maximum after a turn.

        Args:
            count: number of reports of this kind in the turn, at least 1.
            seconds: time of these reports.
            others: time of the rest of the turn.
        """
        is_full = count >= self.most
        self._turns.append((count, seconds))
        counts = [one for one, _ in self._turns]
        if max(counts) >= 2 * min(counts):
            allowed = self._affordable(others)
        elif seconds + others < LONG_TURN_SECONDS / 2:
            allowed = MOST_NEWS
        elif is_full:
            # Turns of one size do not reveal the cost of a report: the next one has another size.
            allowed = self.most // 2 if self.most > self._least else 2 * self.most
        else:
            allowed = self.most
        self.most = max(min(allowed, 2 * self.most, MOST_NEWS), self._least)

    def _affordable(self, others: float) -> int:
        """Return the number of reports for which a turn has time."""
        counts, seconds = zip(*self._turns, strict=True)
        fit = linear_regression(counts, seconds)
        cost = min(max(fit.slope, 0.0), fmean(seconds) / fmean(counts))
        fixed = fmean(seconds) - cost * fmean(counts)
        budget = max(LONG_TURN_SECONDS - others - fixed, LEAST_SECONDS)
        return MOST_NEWS if cost * MOST_NEWS <= budget else int(budget / cost)


class ReportWriter:
    """Collects reports while a turn is written, so that under load more reports share a commit.

    One thread does all writes: several threads would only wait for each other.
    """

    def __init__(
        self,
        *,
        owner: str,
        settings: WorkerSettings,
        lost: Callable[[Collection[int]], None],
    ) -> None:
        """Args: owner: this service. lost: receives the nodes that another service has taken."""
        self._owner = owner
        self._settings = settings
        self._lost = lost
        self._quick, self._slow = ReportQueue(), ReportQueue()
        self._quick_limit = ReportLimit(first=FIRST_QUICK, least=LEAST_QUICK)
        self._slow_limit = ReportLimit(first=FIRST_SLOW, least=LEAST_SLOW)
        self._doubted: dict[int, asyncio.Future[bool]] = {}
        self._something = asyncio.Event()
        self._turn_ended = asyncio.Condition()
        self._directives_wanted = False
        self._held_at = 0.0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="desk-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="desk-reader")

    def post(self, news: NodeReport) -> None:
        (self._slow if news.is_slow else self._quick).add(news)
        self._something.set()

    async def confirm(self, news: NodeReport) -> bool:
        """Queue a report and wait for its turn.

        Returns:
            Whether it was committed; otherwise another service manages the node, or the write
            failed.
        """
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._doubted[id(news)] = written
        try:
            self.post(news)
            return await written
        finally:
            del self._doubted[id(news)]

    def wake(self) -> None:
        """Look up directives in the next turn."""
        self._directives_wanted = True
        self._something.set()

    async def flush(self, node_id: int) -> None:
        """Wait until all reports of a node so far have been written, except slow ones."""
        number = self._quick.posted(node_id)
        async with self._turn_ended:
            await self._turn_ended.wait_for(lambda: self._quick.is_settled(node_id, number))

    async def write(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that writes, in the writer thread."""
        return await self._in(self._writer, partial(function, *args, **kwargs))

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that reads, in a reader thread."""
        return await self._in(self._readers, partial(function, *args, **kwargs))

    async def run(
        self, epochs: Callable[[], Mapping[int, int]], carriers: Mapping[int, NodeConnection]
    ) -> None:
        """Run turns until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.tick):
                    await self._something.wait()
            except TimeoutError:
                pass
            self._something.clear()
            begun = time.monotonic()
            carried = await self._turn(dict(epochs()), carriers)
            if carried is not None:
                # Rounds and submits need the database too, and later reports share a turn.
                await asyncio.sleep(gathering_seconds(carried, time.monotonic() - begun))

    async def close(self) -> None:
        """End the threads and close their connections."""
        for threads, count in ((self._writer, 1), (self._readers, READERS)):
            await asyncio.to_thread(end_threads, threads, count)

    async def _turn(
        self, epochs: Mapping[int, int], carriers: Mapping[int, NodeConnection]
    ) -> int | None:
        """Run one turn if necessary; return its number of items, or None."""
        quick, slow = (
            self._quick.take(self._quick_limit.most),
            self._slow.take(self._slow_limit.most),
        )
        news = [*quick, *slow]
        if self._quick or self._slow:
            self._something.set()
        listening = [node for node in epochs if node in carriers and carriers[node].is_listening]
        busy = frozenset[int]().union(*(carriers[node].busy for node in listening))
        wanted, self._directives_wanted = self._directives_wanted, False
        carried = None
        if news or wanted or await self._is_due(listening, busy):
            begun = time.monotonic()
            turn = await self._insist(
                partial(
                    take_turn,
                    owner=self._owner,
                    epochs=epochs,
                    news=news,
                    listening=listening,
                    busy=busy,
                    settings=self._settings,
                )
            )
            self._held_at = time.monotonic()
            others = self._held_at - begun - turn.slow_seconds - turn.quick_seconds
            if quick:
                # Slow reports of one node must not reduce the number of quick ones of others.
                self._quick_limit.note(len(quick), seconds=turn.quick_seconds, others=others)
            if slow:
                others += turn.quick_seconds
                self._slow_limit.note(len(slow), seconds=turn.slow_seconds, others=others)
            self._settle_doubts(news, turn)
            self._hand_out(turn, epochs, carriers)
            carried = len(news) + len(turn.directives)
        async with self._turn_ended:
            self._quick.settle(quick)
            self._turn_ended.notify_all()
        return carried

    async def _is_due(self, listening: Collection[int], busy: Collection[int]) -> bool:
        """Return whether leases need renewal, or it is time to poll for directives."""
        if time.monotonic() - self._held_at > self._settings.node_lease / 3:
            return True
        try:
            return bool(listening) and await self.read(
                has_directives, node_ids=listening, busy=busy
            )
        except OperationalError as error:
            log.warning("the database could not be read: %s", error)
            return False

    async def _insist(self, take: Callable[..., Turn]) -> Turn:
        """Run a turn; retry while the database is unavailable."""
        tries = 0
        while True:
            try:
                return await self.write(lambda: take(now=database_now()))
            except OperationalError as error:
                pause = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
                tries += 1
                log.warning("the database could not be written; retry in %g s: %s", pause, error)
                await asyncio.sleep(pause)

    def _settle_doubts(self, news: Sequence[NodeReport], turn: Turn) -> None:
        failed = {id(item) for item in turn.failed}
        for item in news:
            written = self._doubted.get(id(item))
            if written is not None and not written.done():
                written.set_result(item.node_id in turn.carried and id(item) not in failed)

    def _hand_out(
        self, turn: Turn, epochs: Mapping[int, int], carriers: Mapping[int, NodeConnection]
    ) -> None:
        gone = epochs.keys() - turn.carried
        if gone:
            self._lost(gone)
        for directive in turn.directives:
            carrier = carriers.get(directive.rank.node_id)
            if carrier is not None:
                carrier.take(directive)

    @staticmethod
    async def _in(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, partial(_call, call))


def gathering_seconds(carried: int, seconds: float) -> float:
    """Return the pause in seconds before a turn; many reports cost about as much as one.

    At a low rate, the pause is as long as the last turn, at most 15 ms: the reply to a directive
    of that turn often arrives in it. Under load, half of the time remains for the processes whose
    reports the next turn writes.
    """
    if carried < CROWD:
        return min(max(LEAST_GATHER_SECONDS, seconds), GATHER_SECONDS)
    return min(max(GATHER_SECONDS, seconds), MOST_GATHER_SECONDS)


def end_threads(threads: ThreadPoolExecutor, count: int) -> None:
    """End a pool of ``count`` threads; each closes its database connections."""
    together = threading.Barrier(count)

    def close() -> None:
        together.wait(timeout=30)
        connections.close_all()

    for _ in range(count):
        threads.submit(close)
    threads.shutdown(wait=True)


def _call(call: Callable[[], T]) -> T:
    close_old_connections()
    return call()
