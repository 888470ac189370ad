"""Places for binds in a sandbox that root builds for an untrusted account.

Another process of the account may replace directories by links meanwhile. So a place is reached
without following links, it is created only in the sandbox's own file systems, and mounted upon by
its descriptor. Only the flags of the new mount are set by its path.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import AbstractSet

_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_place(path: str, *, is_directory: bool, devices: AbstractSet[int]) -> int:
    """Open a place, which is created if missing.

    Args:
        path: absolute and normalised.
        is_directory: a directory, else a file.
        devices: the file systems in which it may be created.

    Raises:
        OSError: a part of the path is a link or not of the expected kind, or it is missing in
            another file system.
    """
    *above, last = path.split("/")[1:]
    here = os.open("/", _NAMED | os.O_DIRECTORY)
    try:
        for name in above:
            here = _entered(here, name, devices, is_directory=True)
        return _entered(here, last, devices, is_directory=is_directory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _entered(here: int, name: str, devices: AbstractSet[int], *, is_directory: bool) -> int:
    """Open a name in a directory, and close the directory's descriptor."""
    flags = _NAMED | (os.O_DIRECTORY if is_directory else 0)
    try:
        try:
            found = os.open(name, flags, dir_fd=here)
        except FileNotFoundError:
            if os.fstat(here).st_dev not in devices:
                raise
            _make(here, name, is_directory=is_directory)
            found = os.open(name, flags, dir_fd=here)
    finally:
        os.close(here)
    if not is_directory and stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found


def _make(here: int, name: str, *, is_directory: bool) -> None:
    if is_directory:
        os.mkdir(name, 0o755, dir_fd=here)
        return
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(name, flags, 0o644, dir_fd=here))
