"""Measurement of the disk usage of directories, regardless of their permissions."""

from __future__ import annotations

import errno
import os
import stat
from typing import Iterable, Optional, Set, Tuple

LEAST_BYTES = 4096
"""Minimum size of each entry: an empty file needs an inode and a name, too."""
_MOST_LINKED = 1 << 20  # files with several names that are remembered; others count twice
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # removed or replaced meanwhile


class NotMeasuredError(Exception):
    """The size is unknown; another measurement may succeed."""


def size_of(directories: Iterable[str], enough: int) -> int:
    """Return the allocated bytes of all files below some directories, at most about ``enough``.

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
    """Adds up file sizes up to a limit."""

    def __init__(self, enough: int) -> None:
        self.total = 0
        self._enough = enough
        self._seen: Set[Tuple[int, int]] = set()

    def add_all_in(self, here: int) -> None:
        """Add the content of a directory, and close its descriptor."""
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
    """Open a directory to list it; an unreadable one is given read permission first."""
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
