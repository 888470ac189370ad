"""Removal of directories with files of jobs: any depth, permissions and names.

A directory below the top is emptied after it was moved up to the top. So two descriptors are
enough for every depth, no path gets longer, and an interrupted removal is continued later.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from typing import List, Optional

_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_NAMES = 4096
"""Names read from a directory at a time: a job may have created millions."""


def remove_tree(path: str, seconds: float) -> bool:
    """Remove a file, link or directory with its content; does not raise errors.

    Links are not followed, and other file systems are not entered.

    Args:
        path: need not exist.
        seconds: time limit of the call; a later call removes the rest.

    Returns:
        Whether the removal is complete.
    """
    deadline = time.monotonic() + seconds
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return True
        top = _open(path, None)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        _Removal(top, deadline).empty()
    except OSError:
        return False
    finally:
        os.close(top)
    try:
        os.rmdir(path)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def empty_opened(descriptor: int, seconds: float) -> bool:
    """Remove the content of a directory; does not raise errors.

    Args:
        descriptor: descriptor of the directory.
        seconds: time limit of the call.

    Returns:
        Whether it is empty.
    """
    try:
        top = os.open(".", _LISTED, dir_fd=descriptor)
        try:
            _Removal(top, time.monotonic() + seconds).empty()
            return not _names(top)
        finally:
            os.close(top)
    except OSError:
        return False


def make_movable(path: str) -> None:
    """Grant this account all rights to a directory, which a rename needs."""
    try:
        descriptor = os.open(path, _NAMED)
    except OSError:
        return
    _give_rights(descriptor)
    os.close(descriptor)


def _open(name: str, above: Optional[int], device: Optional[int] = None) -> int:
    """Open a directory to list and change it, regardless of its permissions.

    Raises:
        OSError: the entry is not such a directory, or is not on the device.
    """
    here = os.open(name, _NAMED, dir_fd=above)
    try:
        found = os.fstat(here)
        if device not in (None, found.st_dev):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        if found.st_mode & 0o700 != 0o700:
            _give_rights(here)
        return os.open(".", _LISTED, dir_fd=here)
    finally:
        os.close(here)


def _give_rights(descriptor: int) -> None:
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    except OSError:
        pass  # owned by another account: later calls fail if they need the rights


class _Removal:
    """Empties one directory.

    Args:
        top: descriptor of the directory.
        deadline: end of the time limit by the monotonic clock.
    """

    def __init__(self, top: int, deadline: float) -> None:
        self._top, self._deadline = top, deadline
        self._device = os.fstat(top).st_dev
        self._prefix = f".{os.urandom(8).hex()}."
        self._moved = 0

    def empty(self) -> None:
        """Remove as much as possible until the deadline.

        Raises:
            OSError: the directory cannot be listed.
        """
        is_progress = True
        while is_progress and time.monotonic() < self._deadline:
            names = _names(self._top)
            # All entries are tried: one that cannot be removed must not block the others.
            is_progress = sum(map(self._remove, names)) > 0

    def _remove(self, name: str) -> bool:
        """Remove an entry of the top; the content of a directory may only be moved up.

        Returns:
            Whether something has changed.
        """
        if time.monotonic() >= self._deadline:
            return False
        try:
            if not _is_directory(name, self._top):
                os.unlink(name, dir_fd=self._top)
                return True
            here = _open(name, self._top, self._device)
        except OSError:
            return False
        try:
            is_changed = self._take_out(here)
        finally:
            os.close(here)
        try:
            os.rmdir(name, dir_fd=self._top)
        except OSError:
            return is_changed
        return True

    def _take_out(self, here: int) -> bool:
        """Delete the files of a directory, and move its subdirectories up to the top."""
        is_changed = False
        while time.monotonic() < self._deadline:
            names = _names(here)
            taken = sum(self._take(name, here) for name in names)
            is_changed = is_changed or taken > 0
            if taken == 0:
                break
        return is_changed

    def _take(self, name: str, here: int) -> bool:
        try:
            if not _is_directory(name, here):
                os.unlink(name, dir_fd=here)
                return True
            os.close(_open(name, here, self._device))  # a rename needs rights to the directory
            self._moved += 1
            new = f"{self._prefix}{self._moved}"
            os.rename(name, new, src_dir_fd=here, dst_dir_fd=self._top)
        except OSError:
            return False
        return True


def _is_directory(name: str, above: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)


def _names(here: int) -> List[str]:
    with os.scandir(here) as entries:
        return [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
