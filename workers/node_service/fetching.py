"""Fetching of all streams of one node: a few runs at a time, in turn, one piece each."""

import asyncio
import logging
from typing import Final

from tenants.clock import estimated_now
from tessera.protocol import RunStatus
from workers.node_service.follower import NotKeptError, StreamFollower
from workers.node_service.ports import Service
from workers.services.dispatch import MemberRef
from workers.services.node_reports import Removed
from workers.transports.base import RefusedError, Transport

log = logging.getLogger(__name__)

FETCHERS: Final = 4
MOST_FINISHING: Final = 8


class Fetching:
    """The followers of one node; a run that writes much waits its turn like all others."""

    def __init__(self, transport: Transport, service: Service) -> None:
        """Args: transport: of the node. service: takes files and reports."""
        self._transport = transport
        self._service = service
        self._followers: dict[str, StreamFollower] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._turn: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._finishing = asyncio.Semaphore(MOST_FINISHING)

    async def follow(
        self, rank: MemberRef, *, log_first: int = 0, reports_end: int = 0
    ) -> StreamFollower:
        """The follower of a run, created on first use."""
        async with self._locks.setdefault(rank.run_id, asyncio.Lock()):
            follower = self._followers.get(rank.run_id)
            if follower is None:
                follower = await StreamFollower.begin(
                    self._service, rank, log_first=log_first, reports_end=reports_end
                )
                self._followers[rank.run_id] = follower
            return follower

    async def grew(self, rank: MemberRef, *, log_end: int, reports_end: int) -> None:
        """Note the new lengths of a run's streams."""
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
                    # A full disk here is not a fault of the node. Retried with the next event
                    # of the run, or at the next reconciliation.
                    log.warning("a log stays on its node for now: %s", error)
                    more = False
            if more:
                self._queue(run_id)

    def sum_up(self) -> None:
        """Post the sums of all runs since the last call."""
        now = estimated_now().timestamp()
        for follower in self._followers.values():
            follower.sum_up(self._service, now=now)

    async def finish(self, rank: MemberRef, status: RunStatus) -> None:
        """Fetch the rest of a run that has ended, and remove it from the node."""
        async with self._finishing:
            if status.log_end or status.reports_end or rank.run_id in self._followers:
                follower = await self.follow(rank)
                follower.grew(log_end=status.log_end, reports_end=status.reports_end)
                try:
                    await self._drain(follower)
                except NotKeptError as error:
                    log.warning("a run stays on its node for now: %s", error)
                    return  # it is compared again
                kept = follower.kept
            else:
                kept = None
            try:
                await self._transport.remove(rank.run_id)
            except RefusedError:
                return  # it has not ended after all; it is compared again
        self._followers.pop(rank.run_id, None)
        self._locks.pop(rank.run_id, None)
        self.forget(rank, first=kept.first if kept else 0, end=kept.end if kept else 0)

    def forget(self, rank: MemberRef, *, first: int, end: int) -> None:
        """Report that nothing of a run is left on the node."""
        self._service.post(Removed(node_id=rank.node_id, rank=rank, log_first=first, log_end=end))

    async def _drain(self, follower: StreamFollower) -> None:
        async with self._locks[follower.rank.run_id]:
            try:
                while await follower.fetch(self._transport, self._service):
                    pass
            except RefusedError:
                pass  # the directory is gone; nothing more can be fetched
            follower.sum_up(self._service, now=estimated_now().timestamp(), last=True)
            follower.close(self._service)

    def _queue(self, run_id: str) -> None:
        if run_id not in self._queued:
            self._queued.add(run_id)
            self._turn.put_nowait(run_id)
