"""Measures how much of a disk a run uses, in a child now and then, without quotas of the disk."""

from __future__ import annotations

import errno
import os
import stat
from typing import Iterable, List, Optional, Set, Tuple

from tessera import protocol
from tessera.node import plans, system
from tessera.node.runs import Run
from tessera.protocol import RunSpec

LEAST_SECONDS = 5.0
COST_FACTOR = 50.0
"""A measurement that took 1 s is repeated after 50 s: at most 2 % of a processor."""
LEAST_BYTES = 4096
"""What each entry counts: an empty file needs an inode and a name, too."""
_MOST_LINKED = 1 << 20  # files with several names that are remembered; others count twice
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # removed or replaced meanwhile


def directories_of(run: Run, spec: RunSpec) -> List[str]:
    """Where a job may write on the node's disk: its run directory and its checkpoints."""
    names = (protocol.WORK_DIR, protocol.JOB_DIR, plans.HOME_DIR)
    return [*map(run.file, names), protocol.checkpoint_dir(run.store.root, spec)]


class Meter:
    """Compares the size of directories with a limit, again and again.

    Args:
        directories: that are measured together.
        limit: in bytes; 0 for none.
    """

    def __init__(self, directories: List[str], limit: int) -> None:
        self._directories, self._limit = directories, limit
        self._result = -1
        self._child = 0
        self._begun = 0.0
        self._next_at = 0.0

    def excess(self, now: float) -> Optional[int]:
        """The size in bytes if it is above the limit, else None; never waits.

        Args:
            now: seconds on the boot clock.
        """
        if not self._limit:
            return None
        if self._result < 0:
            if now >= self._next_at:
                self._begin(now)
            return None
        try:
            text = os.read(self._result, 64)
        except BlockingIOError:
            return None
        os.close(self._result)
        self._result = -1
        self._reap()
        self._next_at = now + max(LEAST_SECONDS, (now - self._begun) * COST_FACTOR)
        size = int(text) if text.isdigit() else 0
        return size if size > self._limit else None

    def _reap(self) -> None:
        try:
            os.waitpid(self._child, 0)
        except ChildProcessError:
            pass  # the payload reaps all children of its runner

    def _begin(self, now: float) -> None:
        self._begun = now
        self._result, writer = os.pipe()
        os.set_blocking(self._result, False)
        self._child = os.fork()
        if self._child:
            os.close(writer)
            return
        try:
            system.close_others({writer})
            os.nice(10)
            size = size_of(self._directories, self._limit)
        except (RecursionError, OSError):  # too deep to be measured, as no honest job's is
            size = self._limit + 1
        os.write(writer, b"%d" % size)
        os._exit(0)


def size_of(directories: Iterable[str], enough: int) -> int:
    """Allocated bytes of all files below some directories; counting ends above ``enough``.

    Each entry counts at least ``LEAST_BYTES``, and a file with several names once. Links and
    other file systems are not followed.
    """
    count = _Count(enough)
    for top in directories:
        try:
            here = _opened(top, None)
        except OSError as error:
            if error.errno in _GONE:
                continue
            raise
        count.add_all_in(here)
    return count.total


class _Count:
    """Adds up files until there is enough."""

    def __init__(self, enough: int) -> None:
        self.total = 0
        self._enough = enough
        self._seen: Set[Tuple[int, int]] = set()

    def add_all_in(self, here: int) -> None:
        """Add what a directory holds, whose descriptor is closed then."""
        try:
            device = os.fstat(here).st_dev
            with os.scandir(here) as entries:
                for entry in entries:
                    if self.total > self._enough:
                        break
                    self._add_if_there(here, entry.name, device)
        finally:
            os.close(here)

    def _add_if_there(self, here: int, name: str, device: int) -> None:
        try:
            self._add(here, name, device)
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def _add(self, here: int, name: str, device: int) -> None:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        key = (found.st_dev, found.st_ino)
        if found.st_dev != device or key in self._seen:
            return
        self.total += max(found.st_blocks * 512, LEAST_BYTES)
        if stat.S_ISDIR(found.st_mode):
            self.add_all_in(_opened(name, here))
        elif found.st_nlink > 1 and len(self._seen) < _MOST_LINKED:
            self._seen.add(key)


def _opened(name: str, here: Optional[int]) -> int:
    """Open a directory to list it; one that its owner has made unreadable is made readable."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=here)
    except PermissionError:
        path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        try:
            os.chmod(f"/proc/self/fd/{path}", 0o700)
        finally:
            os.close(path)
        return os.open(name, flags, dir_fd=here)


def sentence(size: int, limit: int) -> str:
    """Why a job is stopped."""
    return f"{protocol.CAUSE_DISK}: the run uses {_mib(size)} of disk; the limit is {_mib(limit)}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
