"""Brings a job's last checkpoint from the node where it was saved to the one where it goes on."""

import logging
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Final

from workers.node_service.box import Service
from workers.services.dispatch import Rank
from workers.services.happenings import CHECKPOINT_LEFT, CHECKPOINT_MOVED, Happening
from workers.services.news import Happened
from workers.transports.base import LastSaved, RefusedError, Saved, Transport, UnreachableError

log = logging.getLogger(__name__)

TRIES: Final = 2


class HandoverError(Exception):
    """A checkpoint stays where it is; the message says why."""


async def bring(*, service: Service, line: Transport, rank: Rank, last: LastSaved) -> None:
    """Bring the last checkpoint of a job to the node behind ``line``, unless it is there.

    The run is prepared only after it. What cannot be brought is said in the job's events, and the
    run begins with what its node has: training does not wait for a node that may never answer.

    Raises:
        UnreachableError: the node behind ``line`` is gone.
    """
    installation, job_id = service.settings.installation, str(rank.job_id)
    try:
        here = await line.saved(installation, job_id)
        if here is not None and (here.sha256 == last.sha256 or here.step > last.step):
            return
        moved = await _move(service, line, installation, job_id, last)
    except (HandoverError, RefusedError) as error:
        log.warning("%s: its checkpoint stays on %s: %s", rank.run_id, last.node, error)
        _tell(service, rank, CHECKPOINT_LEFT, step=last.step, path=last.node, reason=str(error))
        return
    _tell(
        service,
        rank,
        CHECKPOINT_MOVED,
        step=moved.step,
        sha256=moved.sha256,
        bytes=moved.size,
        path=last.node,
    )


async def _move(
    service: Service, line: Transport, installation: str, job_id: str, last: LastSaved
) -> Saved:
    source = service.line_to(last.node_id)
    if source is None:
        raise HandoverError("that node cannot be reached from here")
    try:
        saved = await _newest(source, installation, job_id)
        if saved is None:
            raise HandoverError("there is no whole checkpoint any more")
        most = service.settings.transfer_bytes
        if saved.size > most:
            raise HandoverError(f"it has {saved.size:,} bytes, and {most:,} may be brought")
        for turn in range(TRIES):
            pieces = _pieces(source, installation, job_id, saved)
            try:
                await line.put_saved(installation, job_id, saved, pieces)
            except RefusedError:
                # What an upload of old has left may be wrong; it is gone by now.
                if turn + 1 == TRIES:
                    raise
            else:
                break
    except _SourceLostError as error:
        raise HandoverError(str(error)) from error
    return saved


class _SourceLostError(Exception):
    """The node that has the checkpoint stopped answering."""


async def _newest(source: Transport, installation: str, job_id: str) -> Saved | None:
    try:
        return await source.saved(installation, job_id)
    except UnreachableError as error:
        raise _SourceLostError(str(error)) from error


async def _pieces(
    source: Transport, installation: str, job_id: str, saved: Saved
) -> AsyncIterator[bytes]:
    at = 0
    while at < saved.size:
        try:
            piece = await source.read_saved(installation, job_id, name=saved.name, offset=at)
        except (UnreachableError, RefusedError) as error:
            raise _SourceLostError(f"{error}") from error
        if not piece:
            return  # it is shorter than its manifest says: the hash will not be right
        at += len(piece)
        yield piece


def _tell(service: Service, rank: Rank, kind: str, **facts: str | int) -> None:
    happening = Happening(kind=kind, facts=MappingProxyType(dict(facts)))
    service.post(Happened(node_id=rank.node_id, rank=rank, happenings=(happening,)))
