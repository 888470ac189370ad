"""Directories of the node's program: runs and blobs, trash, and secrets in memory."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import time
from typing import List

from tessera import protocol
from tessera.node import helped, removal

SECRETS_TOP = "/dev/shm"  # noqa: S108 - each level below it is checked
SECRETS_SECONDS = 1.0
"""Limit of the removal of secrets; a later session removes the rest."""
TRASH_SHARE_SECONDS = 5.0


def is_private(path: str) -> bool:
    """Return whether a directory (not a link) is this account's and closed to others."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return mine and not stat.S_IMODE(found.st_mode) & 0o077


def names_in(path: str) -> List[str]:
    """Return the sorted names in a directory; empty if it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def changed_at(path: str) -> float:
    """Time of the last change of a file or directory; 0 if there is none."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


class Directories:
    """The directories below one root.

    Attributes:
        root: ``~/.tessera``.
        runs, blobs, notify, trash: directories in it.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.runs = os.path.join(root, protocol.RUNS_DIR)
        self.blobs = os.path.join(root, protocol.BLOBS_DIR)
        self.notify = os.path.join(root, protocol.NOTIFY_DIR)
        self.trash = os.path.join(root, protocol.TRASH_DIR)

    def create(self) -> None:
        """Create the directories, readable only by their owner."""
        for path in (self.root, self.runs, self.blobs, self.notify, self.trash):
            os.makedirs(path, mode=0o700, exist_ok=True)

    @functools.lru_cache(maxsize=1)  # noqa: B019 - a process has one store
    def secrets_in_memory(self) -> str:
        """Return the path of the secrets of all runs if the node has a file system in memory."""
        digest = hashlib.sha256(os.fsencode(os.path.realpath(self.root))).hexdigest()[:16]
        return f"{SECRETS_TOP}/tessera-{os.geteuid()}/{digest}"

    def owns_secrets_in_memory(self) -> bool:
        """Return whether this account owns that directory, which another may have created."""
        place = self.secrets_in_memory()
        return is_private(os.path.dirname(place)) and is_private(place)

    def throw_away(self, path: str, name: str) -> None:
        """Move a directory into the trash, even one whose permissions a job has removed.

        Args:
            path: the directory.
            name: prefix of its name in the trash, before the time.

        Raises:
            OSError: the entry is missing, or on another file system.
        """
        target = os.path.join(self.trash, f"{name}.{time.time_ns()}")
        try:
            os.rename(path, target)
        except PermissionError:
            if helped.is_of_job(path):
                helped.empty(path, 0.0)
            else:
                removal.make_movable(path)
            os.rename(path, target)

    def empty_trash(self, seconds: float, share_seconds: float = TRASH_SHARE_SECONDS) -> bool:
        """Delete discarded directories, regardless of their content.

        Args:
            seconds: approximate limit of the call.
            share_seconds: limit for one directory, while others wait.

        Returns:
            Whether the time was sufficient; entries that cannot be removed remain.
        """
        deadline = time.monotonic() + seconds
        is_done = True
        for name in os.listdir(self.trash):
            begun = time.monotonic()
            share = min(share_seconds, max(0.0, deadline - begun))
            if not _removed(os.path.join(self.trash, name), share):
                is_done = is_done and time.monotonic() - begun < share
        return is_done


def _removed(path: str, seconds: float) -> bool:
    """Remove a tree in which directories may belong to users of jobs."""
    deadline = time.monotonic() + seconds
    if removal.remove_tree(path, seconds):
        return True
    tops = [path, *(os.path.join(path, name) for name in names_in(path))]
    for top in filter(helped.is_of_job, tops):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        helped.empty(top, left)
    return removal.remove_tree(path, max(0.0, deadline - time.monotonic()))
