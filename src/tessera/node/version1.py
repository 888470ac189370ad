"""Run directories of version 1 of this code, with its formats for reads and writes.

They have a file each for the spec, the state, the reserved space for it, the lease, the lock of
the preparation, and the versions of the code in use.
"""

from __future__ import annotations

import errno
import os
from typing import List, Optional

from tessera.node import system
from tessera.node.state import lease_text, parse_lease
from tessera.protocol import Json

SPEC_FILE, STATE_FILE, RESERVE_FILE = "spec.json", "state.json", "state.reserve"
LEASE_FILE = "lease"
PREPARE_LOCK_FILE, VERSIONS_FILE = "prepare.lock", "versions"


def is_here(directory: str) -> bool:
    """Return whether version 1 has prepared the run in this directory."""
    return os.path.lexists(os.path.join(directory, STATE_FILE))


def load(directory: str) -> Optional[Json]:
    """Load the status; None if it cannot be read."""
    return system.read_json(os.path.join(directory, STATE_FILE))


def load_spec(directory: str) -> Optional[Json]:
    """Load the specification; None if it cannot be read."""
    return system.read_json(os.path.join(directory, SPEC_FILE))


def write(directory: str, content: bytes, *, durable: bool) -> None:
    """Write the status; on a full disk the reserve is used."""
    try:
        system.replace_file(os.path.join(directory, STATE_FILE), content, durable=durable)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _write_in_reserve(directory, content)


def _write_in_reserve(directory: str, content: bytes) -> None:
    """Overwrite the reserve and swap it with the state file, which becomes the reserve."""
    reserve, path = os.path.join(directory, RESERVE_FILE), os.path.join(directory, STATE_FILE)
    descriptor = system.open_regular(reserve, write=True)
    try:
        os.pwrite(descriptor, content.ljust(os.fstat(descriptor).st_size), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    kept = path + ".kept"
    system.remove_quietly(kept)
    os.link(path, kept)
    os.rename(reserve, path)
    os.rename(kept, reserve)


def renew(directory: str, deadline: float) -> None:
    """Overwrite the lease in place, which works on a full disk."""
    flags = os.O_WRONLY | os.O_CREAT | system.SAFE_OPEN
    descriptor = os.open(os.path.join(directory, LEASE_FILE), flags, 0o600)
    try:
        os.pwrite(descriptor, lease_text(deadline), 0)
    finally:
        os.close(descriptor)


def lease(directory: str) -> Optional[float]:
    """Return the lease's deadline; None when it cannot be read."""
    return parse_lease(system.read_file(os.path.join(directory, LEASE_FILE)))


def versions(directory: str) -> List[str]:
    """Return the versions of the code that the run depends on."""
    noted = system.read_file(os.path.join(directory, VERSIONS_FILE))
    return noted.decode("ascii", "replace").split()


def note_version(directory: str, version: str) -> None:
    """Record another version."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.SAFE_OPEN
    descriptor = os.open(os.path.join(directory, VERSIONS_FILE), flags, 0o600)
    try:
        os.write(descriptor, f"{version}\n".encode("ascii"))
    finally:
        os.close(descriptor)


def lock_file(directory: str) -> str:
    """Return the file locked during a preparation by version 1."""
    return os.path.join(directory, PREPARE_LOCK_FILE)


def owner(directory: str) -> Optional[int]:
    """Return the pid of the process that prepares the run."""
    text = system.read_file(lock_file(directory)).strip()
    return int(text) if text.isdigit() and int(text) > 1 else None
