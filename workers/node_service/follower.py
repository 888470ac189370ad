"""Fetching of one run's streams: the log into files, the reports into sums."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scheduling.core.watching.log_rules import LineScanner, RuleHit
from scheduling.watching.services.log_rules import rules_of_job
from tessera import protocol
from workers.node_service.ports import Service
from workers.services import log_files
from workers.services.dispatch import MemberRef
from workers.services.log_files import Extent
from workers.services.log_rows import path_of
from workers.services.node_reports import Happened, LogKept, LogMatched, Progressed
from workers.services.reports import ReportTally
from workers.services.text import decode, unfinished
from workers.services.training_events import TrainingEvents, read_happening
from workers.signals import log_grew
from workers.transports.base import Chunk, Transport

CHUNK_BYTES: Final = 128 << 10


class NotKeptError(Exception):
    """A piece of a log could not be written here; it stays on its node."""


@dataclass(slots=True)
class StreamFollower:
    """Fetched and known lengths of one run's streams.

    Attributes:
        log_end, reports_end: as reported by the node, or as read if more.
    """

    rank: MemberRef
    directory: Path
    kept: Extent
    tally: ReportTally
    happenings: TrainingEvents
    scanner: LineScanner
    log_end: int = 0
    reports_end: int = 0
    is_open: bool = True
    _told: Extent | None = None
    _text: bytes = b""

    @classmethod
    async def begin(
        cls, service: Service, rank: MemberRef, *, log_first: int = 0, reports_end: int = 0
    ) -> "StreamFollower":
        """Resume where files and rows show that fetching ended."""
        directory = service.settings.logs_dir / path_of(rank)
        kept = await service.on_disk(log_files.extent, directory, first=log_first)
        happenings = TrainingEvents()

        def look(line: bytes) -> None:
            happening = read_happening(line)
            if happening is not None:
                happenings.add(happening)

        return cls(
            rank=rank,
            directory=directory,
            kept=kept,
            tally=ReportTally(offset=reports_end, others=look),
            happenings=happenings,
            scanner=LineScanner(
                await service.read(rules_of_job, rank.job_id), clock=time.thread_time
            ),
            log_end=kept.end,
            reports_end=reports_end,
            _told=kept,
        )

    @property
    def is_behind(self) -> bool:
        """Whether there is something to fetch."""
        return self.kept.end < self.log_end or self.tally.read_offset < self.reports_end

    def grew(self, *, log_end: int, reports_end: int) -> bool:
        """Note the lengths of the streams; returns whether there is something to fetch."""
        self.log_end = max(self.log_end, log_end)
        self.reports_end = max(self.reports_end, reports_end)
        return self.is_behind

    async def fetch(self, transport: Transport, service: Service) -> bool:
        """Fetch one piece of each stream that is behind; returns whether more is left."""
        if self.kept.end < self.log_end:
            await self._fetch_log(transport, service)
        if self.tally.read_offset < self.reports_end:
            await self._fetch_reports(transport)
        return self.is_behind

    def sum_up(self, service: Service, *, now: float, last: bool = False) -> None:
        """Post the progress since the last call.

        Args:
            service: takes the report.
            now: seconds since the epoch.
            last: the run is over. Its last piece goes to the interval's end, where no earlier
                sample of this run can be.
        """
        every = service.settings.goodput_every
        progress = self.tally.sum_up()
        if progress is not None:
            grid = math.ceil(now / every) if last else math.floor(now / every)
            at = datetime.fromtimestamp(grid * every, UTC)
            service.post(
                Progressed(node_id=self.rank.node_id, rank=self.rank, progress=progress, at=at)
            )
        happenings = self.happenings.take()
        if happenings:
            service.post(
                Happened(node_id=self.rank.node_id, rank=self.rank, happenings=happenings)
            )
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
        """Mark the log as complete; an incomplete last character is shown as it is."""
        self.is_open = False
        self._match(service, self.scanner.finish())
        self._tell(service, b"", end=True)

    async def _fetch_log(self, transport: Transport, service: Service) -> None:
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
            await service.on_disk(log_files.forget_before, self.directory, chunk.offset)
        self._tell(service, chunk.data, end=False)
        hits = await service.on_disk(self.scanner.feed, chunk.data, chunk.offset)
        self._match(service, hits)

    def _match(self, service: Service, hits: Sequence[RuleHit]) -> None:
        if hits:
            service.post(LogMatched(node_id=self.rank.node_id, rank=self.rank, hits=hits))

    async def _keep(self, chunk: Chunk, service: Service) -> Extent:
        try:
            return await service.on_disk(
                log_files.write,
                self.directory,
                offset=chunk.offset,
                data=chunk.data,
                cap_bytes=service.settings.log_cap_bytes,
            )
        except OSError as error:
            raise NotKeptError(f"{self.rank.run_id}: {error.strerror or error}") from error

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

    def _tell(self, service: Service, data: bytes, *, end: bool) -> None:
        """Send the text to live pages, cut between characters."""
        raw = self._text + data
        rest = 0 if end else unfinished(raw)
        whole, self._text = raw[: len(raw) - rest], raw[len(raw) - rest :]
        if not whole and not end:
            return
        next_offset = self.kept.end - rest
        service.tell(
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
