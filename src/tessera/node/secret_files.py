"""Secrets of runs in a file system in memory: not on a disk, and removed by a restart.

The run directory has a link to them. Without such a file system, or if another account has
taken the name, the secrets are in the run directory itself.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import Dict

from tessera import protocol
from tessera.node import removal, system
from tessera.node.directories import SECRETS_SECONDS, SECRETS_TOP, is_private
from tessera.node.runs import Run, Store

TOKEN_BYTES = 16


def write(run: Run, secrets: Dict[str, str]) -> None:
    """Create the directory of a run's secrets with a file for each, and its token for reports.

    Raises:
        OSError: a file cannot be written.
    """
    link, place = run.file(protocol.SECRETS_DIR), run.secrets_in_memory()
    if _is_memory(SECRETS_TOP) and _made(place):
        os.symlink(place, link)
    else:
        place = link
        os.mkdir(place, 0o700)
    for name, value in secrets.items():
        system.write_new(os.path.join(place, name), value.encode("utf-8"))
    token = os.urandom(TOKEN_BYTES).hex().encode("ascii")
    system.write_new(os.path.join(place, os.path.basename(protocol.REPORTS_TOKEN)), token)


@functools.lru_cache(maxsize=1)
def _is_memory(path: str) -> bool:
    """Return whether a file system in memory is mounted there."""
    mounts = (line.split(" ") for line in system.read_text("/proc/self/mounts").splitlines())
    return any(fields[1:3] == [path, "tmpfs"] for fields in mounts)


def _made(place: str) -> bool:
    """Create an empty directory for one run, and its parents, all private to this account."""
    above = os.path.dirname(place)
    for _ in range(2):  # the end of another run may remove the parent directory
        try:
            if not (_is_private(os.path.dirname(above)) and _is_private(above)):
                return False
            removal.remove_tree(place, SECRETS_SECONDS)
            if not _is_private(place):
                return False
        except FileNotFoundError:
            continue
        return True
    return False


def _is_private(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    os.lstat(path)  # raises if another run has removed it
    return is_private(path)


def check(run: Run) -> None:
    """Check that the secrets of a prepared run still exist.

    Raises:
        FileNotFoundError: the secrets are missing.
    """
    link = run.file(protocol.SECRETS_DIR)
    if os.path.islink(link) and not os.path.isdir(link):
        raise FileNotFoundError(errno.ENOENT, "the secrets of the run were removed from memory")


def sweep(store: Store) -> None:
    """Remove the secrets of runs that have left the node."""
    place = store.secrets_in_memory()
    if not store.owns_secrets_in_memory():
        return
    try:
        names = os.listdir(place)
    except OSError:
        return
    for name in names:
        if not os.path.isdir(os.path.join(store.runs, name)):
            removal.remove_tree(os.path.join(place, name), SECRETS_SECONDS)
