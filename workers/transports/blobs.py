"""Uploads of source archives to a node, in pieces between the session's other requests."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Protocol

from tessera import protocol
from tessera.wire import Fields
from workers.transports import replies
from workers.transports.base import PrepareError, RefusedError

PIECE_BYTES: Final = 256 << 10
MOST_ROUNDS: Final = 3


class Ask(Protocol):
    """Sends one request of the session and waits for the reply."""

    async def __call__(self, operation: str, **arguments: Any) -> protocol.Json:
        """Ask."""


async def upload(ask: Ask, archive: Path, sha256: str) -> None:
    """Upload an archive unless the node has it; an interrupted upload resumes.

    Raises:
        PrepareError: the archive is missing here, or does not arrive whole.
    """
    if not await asyncio.to_thread(archive.is_file):
        raise PrepareError("archive-missing", f"the archive {sha256[:12]} is not stored any more")
    for _ in range(MOST_ROUNDS):
        have, complete = _progress(await ask(protocol.BLOB, sha256=sha256))
        if complete or await _send(ask, archive, sha256, have):
            return
    raise PrepareError("archive-broken", f"the archive {sha256[:12]} did not arrive whole")


async def _send(ask: Ask, archive: Path, sha256: str, have: int) -> bool:
    """Send the bytes from ``have`` on; returns whether the node has the whole archive."""
    with archive.open("rb") as file:
        file.seek(have)
        while True:
            piece = await asyncio.to_thread(file.read, PIECE_BYTES)
            data = base64.b64encode(piece).decode("ascii")
            arguments = {"data": data, "offset": have} if piece else {"last": True}
            now, complete = _progress(await ask(protocol.BLOB, sha256=sha256, **arguments))
            if complete or not piece:
                return complete
            if now != have + len(piece):
                return False  # another task sends the same archive
            have = now


async def upload_state(
    ask: Ask, pieces: AsyncIterator[bytes], *, installation: str, job_id: str, sha256: str
) -> None:
    """Upload a checkpoint's state; leftovers of an earlier upload are ignored.

    Raises:
        RefusedError: it did not arrive whole, or the node cannot write it.
    """
    whose = {"installation": installation, "job_id": job_id, "sha256": sha256}
    have, complete = _progress(await ask(protocol.BLOB, **whose))
    if complete:
        return
    at = 0
    async for piece in pieces:
        rest = piece[max(0, have - at) :] if have > at else piece
        at += len(piece)
        if complete or not rest:
            continue
        data = base64.b64encode(rest).decode("ascii")
        now, complete = _progress(await ask(protocol.BLOB, **whose, data=data, offset=have))
        if now != have + len(rest) and not complete:
            raise RefusedError("upload-met-another", "somebody else sends the same bytes")
        have = now
    if not complete:
        _, complete = _progress(await ask(protocol.BLOB, **whose, last=True))
    if not complete:
        raise RefusedError("upload-broken", "the bytes did not arrive whole")


def _progress(reply: protocol.Json) -> tuple[int, bool]:
    def read(found: protocol.Json) -> tuple[int, bool]:
        take = Fields(found, "blob")
        return take.integer("have", 0, 0, 1 << 60), take.boolean("complete", default=False)

    return replies.checked(read, reply)
