"""Uploads to a node: the node part, verified by its hash, and source archives in pieces."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Protocol

from tessera import protocol
from tessera.wire import Fields
from workers.transports import replies
from workers.transports.base import PrepareError, RefusedError

# Constant text, run by python3 on the node. It contains no single quotes, since they enclose it.
# Variable input comes on stdin: a line with size and hash, then the bytes.
_PROGRAM: Final = """
import hashlib, json, os, sys, tempfile
take = sys.stdin.buffer
head = json.loads(take.readline())
body = take.read(head["size"])
if hashlib.sha256(body).hexdigest() != head["sha256"]:
    sys.exit("the bundle arrived damaged")
place = os.path.join(os.path.expanduser("~"), ".tessera", head["sha256"])
target = os.path.join(place, "node.pyz")
for path, good in ((place, os.path.isdir), (target, os.path.isfile)):
    if os.path.lexists(path) and (os.path.islink(path) or not good(path)):
        os.rename(path, tempfile.mktemp(dir=os.path.dirname(path), prefix="replaced-"))
os.makedirs(place, 0o700, exist_ok=True)
handle, name = tempfile.mkstemp(dir=place)
with os.fdopen(handle, "wb") as file:
    file.write(body)
    file.flush()
    os.fsync(file.fileno())
os.chmod(name, 0o644)
os.replace(name, target)
print("installed")
"""

INSTALL_COMMAND: Final = f"exec python3 -I -S -c '{_PROGRAM}'"

# Hashes the bytes that it then executes. They are in memory that other processes cannot change, so
# jobs may have access to the file and its directory.
_START: Final = """
import fcntl, hashlib, os, sys
path, sha256 = sys.argv[1:3]
handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
with os.fdopen(handle, "rb") as file:
    code = file.read(64 << 20) or b""
if hashlib.sha256(code).hexdigest() != sha256:
    sys.exit("the bundle on the node is not the expected one")
try:
    sealed = os.memfd_create("tessera", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
except AttributeError:
    import tempfile
    unnamed = tempfile.TemporaryFile()
    sealed = unnamed.fileno()
rest = memoryview(code)
while rest:
    rest = rest[os.write(sealed, rest):]
try:
    fcntl.fcntl(sealed, 1033, 15)
except OSError:
    pass
sys.path.insert(0, "/proc/self/fd/%d" % sealed)
from tessera.node.__main__ import main
sys.exit(main(["serve"], path))
"""


def serve_command(sha256: str) -> str:
    """Build the command of sessions; it refuses a bundle without this hash."""
    checked = protocol.check_sha256(sha256)
    place = f'"$HOME/{protocol.ROOT_DIR}/{checked}/node.pyz"'
    return f"exec python3 -I -S -c '{_START}' {place} {checked}"


PIECE_BYTES: Final = 256 << 10
MOST_ROUNDS: Final = 3


class Ask(Protocol):
    """Sends one request of the session and waits for the reply."""

    async def __call__(self, operation: str, **arguments: Any) -> protocol.Json:
        """Send the request and return the reply."""


async def upload(ask: Ask, archive: Path, sha256: str) -> None:
    """Upload an archive unless the node has it; an interrupted upload resumes.

    Raises:
        PrepareError: the archive is missing here, or does not arrive whole.
    """
    if not await asyncio.to_thread(archive.is_file):
        raise PrepareError("archive-missing", f"the archive {sha256[:12]} is no longer stored")
    for _ in range(MOST_ROUNDS):
        have, complete = _progress(await ask(protocol.BLOB, sha256=sha256))
        if complete or await _send(ask, archive, sha256, have):
            return
    raise PrepareError("archive-broken", f"the archive {sha256[:12]} did not arrive complete")


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
        RefusedError: the state is incomplete, or the node cannot write it.
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
            raise RefusedError("upload-met-another", "another process is sending the same data")
        have = now
    if not complete:
        _, complete = _progress(await ask(protocol.BLOB, **whose, last=True))
    if not complete:
        raise RefusedError("upload-broken", "the data did not arrive complete")


def _progress(reply: protocol.Json) -> tuple[int, bool]:
    def read(found: protocol.Json) -> tuple[int, bool]:
        take = Fields(found, "blob")
        return take.integer("have", 0, 0, 1 << 60), take.boolean("complete", default=False)

    return replies.checked(read, reply)
