"""A run in one file that is written in place: notes, the status in two slots, and the spec.

A status goes into the slot that does not hold the newest one, with a number and a checksum. So a
reader gets the old or the new status, never a partial one, even after a kill or a power failure.
After the first write, no name changes and no space is allocated: the end of a run can be recorded,
and a lease renewed, on a full disk. One writer at a time: the holder of the lock on the ``go``
file, or, before it exists, of the lock on this file.

    0       the lease's deadline, the process that prepares, versions of the code in use
    4096    slot 0
    12288   slot 1
    20480   the specification, which does not change
"""

from __future__ import annotations

import binascii
import json
import os
from typing import List, NamedTuple, Optional, Tuple

from tessera.node import system
from tessera.protocol import Json

NOTES_BYTES, SLOT_BYTES = 4096, 8192
FILE_BYTES = NOTES_BYTES + 2 * SLOT_BYTES
MOST_SPEC_BYTES = 4 << 20
LEASE_BYTES = 20
_OWNER_AT, _OWNER_BYTES = 64, 16
_VERSIONS_AT, _VERSION_BYTES, MOST_VERSIONS = 128, 65, 32


class Loaded(NamedTuple):
    """Content of a file: the newest readable status, and whether any was written."""

    found: Optional[Json]
    written: bool


def lease_text(deadline: float) -> bytes:
    """Format a deadline with constant length; 0 means unset."""
    return f"{deadline:020.3f}".encode("ascii")


def parse_lease(text: bytes) -> Optional[float]:
    """Parse a stored deadline; None if it is not valid."""
    try:
        return float(text)
    except ValueError:
        return None


def load(path: str) -> Loaded:
    """Return the newest status in a file; None in it for a missing file."""
    content = _read(path)
    return Loaded(_newest(content)[2], bool(content[NOTES_BYTES:].strip(b"\0")))


def begin(descriptor: int, content: bytes, spec: bytes, versions: List[str]) -> None:
    """Write size and spec of a locked file, and then its first status.

    After a kill in between, either all exists, or no status, and the run is prepared again.
    """
    noted = b"".join(f"{version}\n".encode("ascii") for version in versions[:MOST_VERSIONS])
    head = lease_text(0.0).ljust(_VERSIONS_AT, b"\0") + noted
    first = _slot(1, content)
    view = memoryview(head.ljust(FILE_BYTES, b"\0") + spec)
    if spec:  # an interrupted write of a longer spec may precede
        os.ftruncate(descriptor, len(view))
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], done)
    os.pwrite(descriptor, first, NOTES_BYTES)


def load_spec(path: str) -> Optional[Json]:
    """Load the specification; None if it cannot be read."""
    try:
        found = json.loads(_read(path, FILE_BYTES, MOST_SPEC_BYTES))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write(path: str, content: bytes, *, durable: bool) -> bool:
    """Replace the oldest status; False if the file has none yet.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        descriptor = system.open_regular(path, write=True)
    except FileNotFoundError:
        return False
    try:
        number, slot, _ = _newest(os.pread(descriptor, FILE_BYTES, 0))
        if not number:
            return False
        at = NOTES_BYTES + (1 - slot) * SLOT_BYTES
        os.pwrite(descriptor, _slot(number + 1, content), at)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if durable:
        system.sync_directory(os.path.dirname(path))
    return True


def note_owner(descriptor: int, pid: int) -> None:
    """Store the pid of the process that prepares the run."""
    os.pwrite(descriptor, b"%0*d" % (_OWNER_BYTES, pid), _OWNER_AT)


def owner(path: str) -> Optional[int]:
    """Return the stored pid of the process that prepares the run."""
    text = _read(path)[_OWNER_AT : _OWNER_AT + _OWNER_BYTES]
    return int(text) if text.isdigit() and int(text) > 1 else None


def renew(path: str, deadline: float) -> bool:
    """Move the lease's deadline in one short write; False if the file is missing."""
    return _patch(path, lease_text(deadline), 0)


def lease(path: str) -> Optional[float]:
    """Return the lease's deadline; None when it cannot be read."""
    return parse_lease(_read(path)[:LEASE_BYTES])


def versions(path: str) -> List[str]:
    """Return the versions of the code that the run depends on."""
    end = _VERSIONS_AT + MOST_VERSIONS * _VERSION_BYTES
    text = _read(path)[_VERSIONS_AT:end].rstrip(b"\0").decode("ascii", "replace")
    return text.split()


def note_version(path: str, version: str) -> bool:
    """Record another version; return False if the file is missing."""
    known = versions(path)
    if version in known:
        return True
    line = f"{version}\n".encode("ascii")
    place = min(len(known), MOST_VERSIONS - 1)
    return _patch(path, line, _VERSIONS_AT + place * _VERSION_BYTES)


def _patch(path: str, content: bytes, at: int) -> bool:
    try:
        descriptor = system.open_regular(path, write=True)
    except FileNotFoundError:
        return False
    try:
        os.pwrite(descriptor, content, at)
    finally:
        os.close(descriptor)
    return True


def _read(path: str, at: int = 0, most: int = FILE_BYTES) -> bytes:
    try:
        descriptor = system.open_regular(path)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, most, at)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _slot(number: int, content: bytes) -> bytes:
    """Build a slot as stored: checksum, number, length, content."""
    told = b"%d %d\n" % (number, len(content)) + content
    slot = b"%08x %s" % (binascii.crc32(told), told)
    if len(slot) > SLOT_BYTES:
        raise OSError("the status is too long")
    return slot


def _newest(content: bytes) -> Tuple[int, int, Optional[Json]]:
    """Return number and place of the newest status, and the status; (0, 0, None) without one."""
    best, place, body = 0, 0, b""
    for slot in (0, 1):
        at = NOTES_BYTES + slot * SLOT_BYTES
        number, found = _checked(content[at : at + SLOT_BYTES])
        if number > best:
            best, place, body = number, slot, found
    if not best:
        return 0, 0, None
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        status = {}
    return best, place, status if isinstance(status, dict) else {}


def _checked(slot: bytes) -> Tuple[int, bytes]:
    """Return the number and content of a slot; 0 if the checksum does not match."""
    end = slot.find(b"\n", 0, 64)
    words = slot[:end].split(b" ") if end > 0 else []
    if len(words) != 3 or not (words[1].isdigit() and words[2].isdigit()):
        return 0, b""
    told = slot[len(words[0]) + 1 : end + 1 + int(words[2])]
    good = words[0] == b"%08x" % binascii.crc32(told)
    return (int(words[1]), slot[end + 1 : end + 1 + int(words[2])]) if good else (0, b"")
