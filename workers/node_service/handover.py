"""Copying a job's last checkpoint to the node of its next attempt."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Final

from workers.node_service.ports import Service
from workers.services.dispatch import MemberRef, is_to_leave
from workers.services.job_reports import Happened
from workers.services.training_events import (
    CHECKPOINT_BROKEN,
    CHECKPOINT_LEFT,
    CHECKPOINT_MOVED,
    TrainingEvent,
    plain,
)
from workers.transports.base import LastSaved, RefusedError, Saved, Transport, UnreachableNodeError

log = logging.getLogger(__name__)

BAD_BLOB: Final = "bad-blob"
TRIES: Final = 2
MOST_PASSED_OVER: Final = 4
"""Damaged checkpoints of a job after which the copy is given up; a job retains two."""
LOOK_EVERY_SECONDS: Final = 2.0


class HandoverError(Exception):
    """A checkpoint cannot be copied; the message has the reason."""


async def bring(*, service: Service, line: Transport, rank: MemberRef, last: LastSaved) -> None:
    """Copy the last checkpoint of a job to the node behind ``line``, unless it is there.

    If it is damaged, the previous one is tried. The run is prepared afterwards. A failure
    is recorded in the job's events, and the run starts with the checkpoints of its node:
    a training does not wait for a node that may never respond.

    Raises:
        UnreachableNodeError: the node behind ``line`` is gone.
    """
    try:
        here = await line.saved(service.settings.installation, str(rank.job_id))
        if here is not None and (here.sha256 == last.sha256 or here.step > last.step):
            return
        async with asyncio.timeout(service.settings.transfer_seconds):
            moved, broken = await _Move(service, line, rank, last).newest_after(here)
    except (HandoverError, RefusedError, TimeoutError) as error:
        reason = str(error) or "the copy takes too long"
        log.warning("%s: its checkpoint remains on %s: %s", rank.run_id, last.node, reason)
        _record_event(
            service, rank, CHECKPOINT_LEFT, step=last.step, path=last.node, reason=plain(reason)
        )
        return
    for name, reason in broken:
        path = f"{name} on {last.node}"
        _record_event(service, rank, CHECKPOINT_BROKEN, path=path, reason=plain(reason))
    _record_event(
        service,
        rank,
        CHECKPOINT_MOVED,
        step=moved.step,
        sha256=moved.sha256,
        bytes=moved.size,
        path=last.node,
    )


class _Move:
    """The copy of one job's checkpoint from one node to another."""

    def __init__(
        self, service: Service, line: Transport, rank: MemberRef, last: LastSaved
    ) -> None:
        self._service, self._line, self._rank, self._last = service, line, rank, last
        self._job = service.settings.installation, str(rank.job_id)
        self._looked = time.monotonic()

    async def newest_after(self, here: Saved | None) -> tuple[Saved, list[tuple[str, str]]]:
        """Copy the newest intact checkpoint that has more steps than those of the node.

        Returns:
            The checkpoint, and the names of damaged ones with reasons.
        """
        source = self._service.line_to(self._last.node_id)
        if source is None:
            raise HandoverError("the node is not reachable from this host")
        broken: list[tuple[str, str]] = []
        while len(broken) < MOST_PASSED_OVER:
            saved = await self._found(source, broken[-1][0] if broken else "")
            if saved is None or (broken and here is not None and saved.step <= here.step):
                break
            most = self._service.settings.transfer_bytes
            if saved.size > most:
                raise HandoverError(f"it has {saved.size:,} bytes; the limit is {most:,}")
            try:
                await self._send(source, saved)
            except _DamagedError as error:
                broken.append((saved.name, str(error)))
            else:
                return saved, broken
        raise HandoverError(broken[0][1] if broken else "no complete checkpoint is left")

    async def _found(self, source: Transport, before: str) -> Saved | None:
        try:
            return await source.saved(*self._job, before=before)
        except (UnreachableNodeError, RefusedError) as error:
            raise HandoverError(str(error)) from error

    async def _send(self, source: Transport, saved: Saved) -> None:
        for turn in range(TRIES):
            try:
                await self._line.put_saved(*self._job, saved, self._pieces(source, saved))
            except RefusedError as error:
                if error.code != BAD_BLOB:
                    raise
                # Leftovers of an old upload may be wrong; they are deleted by now.
                if turn + 1 == TRIES:
                    raise _DamagedError(error.message) from error
            else:
                return

    async def _pieces(self, source: Transport, saved: Saved) -> AsyncIterator[bytes]:
        at = 0
        while at < saved.size:
            await self._look()
            try:
                piece = await source.read_saved(*self._job, name=saved.name, offset=at)
            except (UnreachableNodeError, RefusedError) as error:
                raise HandoverError(str(error)) from error
            if not piece:
                return  # the file is shorter than its manifest says: the hash will not match
            at += len(piece)
            yield piece

    async def _look(self) -> None:
        """Cancel the copy if the job has to stop."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_SECONDS:
            return
        self._looked = now
        if await self._service.read(is_to_leave, self._rank.member_id):
            raise HandoverError("the job is being preempted again")


class _DamagedError(Exception):
    """The state of a checkpoint does not match its manifest."""


def _record_event(service: Service, rank: MemberRef, kind: str, **facts: str | int) -> None:
    happening = TrainingEvent(kind=kind, facts=MappingProxyType(dict(facts)))
    service.post(Happened(node_id=rank.node_id, rank=rank, happenings=(happening,)))
