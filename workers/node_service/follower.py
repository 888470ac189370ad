"""Fetching of the streams of a node: writes logs and aggregates reports."""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn

from scheduling.core.watching.log_metrics import LogNumber, NumberScanner
from scheduling.core.watching.log_rules import LineScanner, RuleHit
from scheduling.storage.base import Extent
from scheduling.watching.services.log_rules import log_metrics_of_job, rules_of_job
from tenants.clock import estimated_now
from tessera import protocol
from tessera.protocol import RunStatus
from workers.node_service.directives import UNKNOWN_RUN
from workers.node_service.ports import Service
from workers.services.dispatch import MemberRef
from workers.services.job_reports import (
    Happened,
    LogKept,
    LogMatched,
    LogMeasured,
    Profiled,
    Progressed,
    Tracked,
)
from workers.services.logs import decode, path_of, unfinished
from workers.services.node_reports import Removed
from workers.services.points import PointTally, Sample, SeriesKey
from workers.services.reports import ReportTally
from workers.services.training_events import TrainingEvents
from workers.signals import log_grew
from workers.transports.base import Chunk, RefusedError, Transport

log = logging.getLogger(__name__)

FETCHERS: Final = 4
MOST_FINISHING: Final = 8
CHUNK_BYTES: Final = 128 << 10
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 8.0
FINISH_PAUSE: Final = 5.0


class NotKeptError(Exception):
    """A piece of a log could not be stored; it remains on its node."""


@dataclass(slots=True)
class StreamFollower:
    """Fetched and known lengths of one run's streams.

    Attributes:
        log_end, reports_end: as reported by the node, or as read if more.
        is_resumed: ``kept`` is the stored range; otherwise the next fetch looks it up.
    """

    rank: MemberRef
    path: str
    kept: Extent
    tally: ReportTally
    happenings: TrainingEvents
    scanner: LineScanner
    numbers: NumberScanner
    points: PointTally
    log_end: int = 0
    reports_end: int = 0
    is_open: bool = True
    is_resumed: bool = True
    _pause: float = 0.0
    _paused_until: float = float("-inf")
    _told: Extent | None = None
    _text: bytes = b""

    @classmethod
    async def begin(
        cls, service: Service, rank: MemberRef, *, log_first: int = 0, reports_end: int = 0
    ) -> "StreamFollower":
        """Resume at the stored offsets; an object store is asked by the first fetch.

        Events of the node wait for this, so it must not wait for a store that does not respond.
        """
        storage, path = service.settings.storage, path_of(rank)
        kept = Extent(log_first, log_first)
        if not storage.is_shared:
            kept = await service.on_disk(storage.logs.extent, path, first=log_first)
        happenings = TrainingEvents()

        return cls(
            rank=rank,
            path=path,
            kept=kept,
            is_resumed=not storage.is_shared,
            tally=ReportTally(offset=reports_end, others=happenings.read),
            happenings=happenings,
            scanner=LineScanner(
                await service.read(rules_of_job, rank.job_id), clock=time.thread_time
            ),
            numbers=NumberScanner(
                await service.read(log_metrics_of_job, rank.job_id), clock=time.thread_time
            ),
            points=PointTally(),
            log_end=kept.end,
            reports_end=reports_end,
            _told=kept,
        )

    @property
    def is_behind(self) -> bool:
        """Return whether a stream has unfetched bytes."""
        return self.kept.end < self.log_end or self.tally.read_offset < self.reports_end

    def grew(self, *, log_end: int, reports_end: int) -> bool:
        """Store the lengths of the streams; return whether a stream has unfetched bytes."""
        self.log_end = max(self.log_end, log_end)
        self.reports_end = max(self.reports_end, reports_end)
        return self.is_behind

    async def fetch(self, transport: Transport, service: Service) -> bool:
        """Fetch one piece of each stream that is behind; returns whether more is left.

        Raises:
            NotKeptError: the log could not be stored; reports were fetched.
        """
        failed: NotKeptError | None = None
        if self.kept.end < self.log_end:
            try:
                await self._fetch_log(transport, service)
            except NotKeptError as error:
                failed = error
        if self.tally.read_offset < self.reports_end:
            await self._fetch_reports(transport)
        if failed is not None:
            raise failed
        return self.is_behind

    def sum_up(self, service: Service, *, now: float, last: bool = False) -> None:
        """Post the progress since the last call.

        Args:
            service: takes the report.
            now: seconds since the epoch.
            last: the run has ended. Its last progress is stored at the end of the interval, which
                cannot have an earlier sample of this run.
        """
        every = service.settings.goodput_every
        progress = self.tally.sum_up()
        if progress is not None:
            grid = math.ceil(now / every) if last else math.floor(now / every)
            at = datetime.fromtimestamp(grid * every, UTC)
            service.post(
                Progressed(node_id=self.rank.node_id, rank=self.rank, progress=progress, at=at)
            )
        batch = self.points.sum_up()
        if batch:
            at = datetime.fromtimestamp(now, UTC)
            service.post(
                LogMeasured(node_id=self.rank.node_id, rank=self.rank, batch=batch, at=at)
            )
        happenings = self.happenings.take()
        if happenings:
            service.post(
                Happened(node_id=self.rank.node_id, rank=self.rank, happenings=happenings)
            )
        changes = self.happenings.take_tracked()
        if changes:
            service.post(Tracked(node_id=self.rank.node_id, rank=self.rank, changes=changes))
        profile = self.happenings.take_profile()
        if profile is not None:
            service.post(Profiled(node_id=self.rank.node_id, rank=self.rank, document=profile))
        if self.kept != self._told and not last:
            self._told = self.kept
            service.post(
                LogKept(
                    node_id=self.rank.node_id,
                    rank=self.rank,
                    first=self.kept.first,
                    end=self.kept.end,
                )
            )

    def close(self, service: Service) -> None:
        """Mark the log as complete, including an incomplete last character."""
        self.is_open = False
        self._match(service, self.scanner.finish())
        self._measure(self.numbers.finish())
        self._publish(service, b"", end=True)

    @property
    def pause(self) -> float:
        """Seconds after which storing the log is tried again; 0 after a success."""
        return self._pause

    async def _resume(self, service: Service) -> None:
        """Look up the stored range, which another host may have extended."""
        logs = service.settings.storage.logs
        try:
            self.kept = await service.on_disk(logs.extent, self.path, first=self.kept.first)
        except OSError as error:
            self._fail(error)
        self._told, self.is_resumed = self.kept, True

    def _fail(self, error: OSError) -> NoReturn:
        self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
        self._paused_until = time.monotonic() + self._pause
        raise NotKeptError(f"{self.rank.run_id}: {error.strerror or error}") from error

    async def _fetch_log(self, transport: Transport, service: Service) -> None:
        if time.monotonic() < self._paused_until:
            # The node stores the bytes meanwhile; reading them again and again is useless.
            raise NotKeptError(f"{self.rank.run_id}: retried in at most {self._pause:g} s")
        if not self.is_resumed:
            await self._resume(service)
            if self.kept.end >= self.log_end:
                return
        offset = self.kept.end
        chunk = await transport.read(
            self.rank.run_id, protocol.STREAM_LOG, offset=offset, limit=CHUNK_BYTES
        )
        self.log_end = max(self.kept.end, chunk.end) if chunk.data else self.kept.end
        if not chunk.data:
            return
        first = self.kept.first if chunk.offset == offset else chunk.offset
        written = await self._keep(chunk, service)
        # After a gap the log restarts: bytes before it would be read as zeros.
        self.kept = Extent(max(first, written.first), chunk.offset + len(chunk.data))
        if chunk.offset != offset:
            self._text = b""
            await self._forget_gap(chunk.offset, service)
        self._publish(service, chunk.data, end=False)
        hits = await service.on_disk(self.scanner.feed, chunk.data, chunk.offset)
        self._match(service, hits)
        self._measure(await service.on_disk(self.numbers.feed, chunk.data, chunk.offset))

    def _match(self, service: Service, hits: Sequence[RuleHit]) -> None:
        if hits:
            service.post(LogMatched(node_id=self.rank.node_id, rank=self.rank, hits=hits))

    def _measure(self, found: Sequence[LogNumber]) -> None:
        at = estimated_now().timestamp()
        for one in found:
            self.points.add(SeriesKey(0, one.name), Sample(one.step, at, math.nan, one.value))

    async def _keep(self, chunk: Chunk, service: Service) -> Extent:
        try:
            written = await service.on_disk(
                service.settings.storage.logs.write,
                self.path,
                offset=chunk.offset,
                data=chunk.data,
                cap_bytes=service.settings.log_cap_bytes,
            )
        except OSError as error:
            self._fail(error)
        self._pause = 0.0
        return written

    async def _forget_gap(self, offset: int, service: Service) -> None:
        """Delete the segments before a gap; readers skip what remains by the row's offset."""
        try:
            await service.on_disk(service.settings.storage.logs.forget_before, self.path, offset)
        except OSError as error:
            log.info("%s: bytes before a gap are still stored: %s", self.rank.run_id, error)

    async def seal(self, service: Service) -> None:
        """Compact the complete log in the storage."""
        try:
            await service.on_disk(service.settings.storage.logs.seal, self.path)
        except OSError as error:
            log.info("%s: the log was not compacted: %s", self.rank.run_id, error)

    async def _fetch_reports(self, transport: Transport) -> None:
        chunk: Chunk = await transport.read(
            self.rank.run_id,
            protocol.STREAM_REPORTS,
            offset=self.tally.read_offset,
            limit=CHUNK_BYTES,
        )
        if not chunk.data:
            # A job of an earlier version has cut its own file: the announced bytes are missing.
            self.reports_end = self.tally.read_offset
            return
        if chunk.offset != self.tally.read_offset:
            self.tally.skip_to(chunk.offset)
        self.tally.take(chunk.data)

    def _publish(self, service: Service, data: bytes, *, end: bool) -> None:
        """Send the text to live pages, cut between characters."""
        raw = self._text + data
        rest = 0 if end else unfinished(raw)
        whole, self._text = raw[: len(raw) - rest], raw[len(raw) - rest :]
        if not whole and not end:
            return
        next_offset = self.kept.end - rest
        service.send_signal(
            log_grew,
            job_id=self.rank.job_id,
            attempt=self.rank.attempt_number,
            role=self.rank.role,
            rank=self.rank.rank,
            offset=next_offset - len(whole),
            text=decode(whole),
            next_offset=next_offset,
            end=end,
        )


class Fetching:
    """The followers of one node; runs are served in turn, independently of their output."""

    def __init__(self, transport: Transport, service: Service) -> None:
        """Args: transport: of the node. service: takes files and reports."""
        self._transport = transport
        self._service = service
        self._followers: dict[str, StreamFollower] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._turn: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._paused: set[str] = set()
        self._finishing = asyncio.Semaphore(MOST_FINISHING)

    async def follow(
        self, rank: MemberRef, *, log_first: int = 0, reports_end: int = 0
    ) -> StreamFollower:
        """Return the follower of a run, created on first use."""
        async with self._locks.setdefault(rank.run_id, asyncio.Lock()):
            follower = self._followers.get(rank.run_id)
            if follower is None:
                follower = await StreamFollower.begin(
                    self._service, rank, log_first=log_first, reports_end=reports_end
                )
                self._followers[rank.run_id] = follower
            return follower

    async def grew(self, rank: MemberRef, *, log_end: int, reports_end: int) -> None:
        """Store the new lengths of a run's streams."""
        if not (log_end or reports_end):
            return
        follower = await self.follow(rank)
        if follower.grew(log_end=log_end, reports_end=reports_end):
            self._queue(rank.run_id)

    async def work(self) -> None:
        """Fetch pieces until cancelled."""
        while True:
            run_id = await self._turn.get()
            self._queued.discard(run_id)
            lock, follower = self._locks.get(run_id), self._followers.get(run_id)
            if lock is None or follower is None or lock.locked():
                continue
            async with lock:
                try:
                    more = await follower.fetch(self._transport, self._service)
                except RefusedError:
                    more = False  # removed meanwhile
                except NotKeptError as error:
                    # A full disk or a store that does not respond is not a fault of the node.
                    log.warning("a log could not be fetched yet: %s", error)
                    self._queue_later(run_id, follower.pause)
                    more = False
            if more:
                self._queue(run_id)

    def sum_up(self) -> None:
        """Post the sums of all runs since the last call."""
        now = estimated_now().timestamp()
        for follower in self._followers.values():
            follower.sum_up(self._service, now=now)

    async def finish(self, rank: MemberRef, status: RunStatus) -> None:
        """Fetch the remaining output of an ended run, and remove the run from the node.

        While the output cannot be stored, the run remains on its node.
        """
        while not await self._finish(rank, status):
            await asyncio.sleep(FINISH_PAUSE)

    async def _finish(self, rank: MemberRef, status: RunStatus) -> bool:
        """Try to finish a run; returns whether nothing is left to retry here."""
        async with self._finishing:
            if status.log_end or status.reports_end or rank.run_id in self._followers:
                follower = await self.follow(rank)
                follower.grew(log_end=status.log_end, reports_end=status.reports_end)
                try:
                    await self._drain(follower)
                except NotKeptError as error:
                    log.warning("a run could not be removed from its node yet: %s", error)
                    return False
                except RefusedError as error:
                    log.warning("a run could not be removed from its node yet: %s", error)
                    return True  # the next comparison retries
                kept = follower.kept
                await follower.seal(self._service)
            else:
                kept = None
            try:
                await self._transport.remove(rank.run_id)
            except RefusedError:
                return True  # the run has not ended after all; the next comparison handles it
        self._followers.pop(rank.run_id, None)
        self._locks.pop(rank.run_id, None)
        self.forget(rank, first=kept.first if kept else 0, end=kept.end if kept else 0)
        return True

    def forget(self, rank: MemberRef, *, first: int, end: int) -> None:
        """Report that the node has no data of a run any more."""
        self._service.post(Removed(node_id=rank.node_id, rank=rank, log_first=first, log_end=end))

    async def _drain(self, follower: StreamFollower) -> None:
        async with self._locks[follower.rank.run_id]:
            try:
                while await follower.fetch(self._transport, self._service):
                    pass
            except RefusedError as error:
                if error.code != UNKNOWN_RUN:
                    raise
                # The directory is gone; nothing more can be fetched.
            follower.close(self._service)
            follower.sum_up(self._service, now=estimated_now().timestamp(), last=True)

    def _queue_later(self, run_id: str, seconds: float) -> None:
        if run_id in self._paused:
            return
        self._paused.add(run_id)
        asyncio.get_running_loop().call_later(seconds, self._queue_again, run_id)

    def _queue_again(self, run_id: str) -> None:
        self._paused.discard(run_id)
        self._queue(run_id)

    def _queue(self, run_id: str) -> None:
        if run_id not in self._queued:
            self._queued.add(run_id)
            self._turn.put_nowait(run_id)
