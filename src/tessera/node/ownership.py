"""Transfer of a run's files to the job's user, in directories that jobs and the account change.

Root opens nothing by a name that may have become a link or a device: each name is opened as a
place (``O_PATH``), and only a directory is opened again, through its place, to be listed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

PROGRESS_SECONDS = 5.0
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Receiver(NamedTuple):
    """The new owner of files.

    Attributes:
        uid: the user.
        group: the new group of the files.
        owners: users whose files are given.
    """

    uid: int
    group: int
    owners: FrozenSet[int]


def give(path: str, receiver: Receiver, channel: int) -> None:
    """Give a directory with the runner's files in it to the job's user.

    Links are not followed, and a file with a second name is skipped. The runner gets a sign of
    progress every few seconds.

    Raises:
        OSError: a part of the path is a link, or directories are nested deeper than this process
            may have descriptors.
    """
    told_at = time.monotonic()
    levels: List[Tuple[int, Iterator[str]]] = []
    here = _given(_open_exact(path), receiver)
    while here is not None or levels:
        if here is not None:
            levels.append((here, iter(os.listdir(here))))
        if time.monotonic() - told_at >= PROGRESS_SECONDS:
            told_at = time.monotonic()
            os.write(channel, b"giving\n")
        above, names = levels[-1]
        name = next(names, None)
        if name is None:
            os.close(above)
            levels.pop()
            here = None
        else:
            here = _given(os.open(name, _PLACE, dir_fd=above), receiver)


def _open_exact(path: str) -> int:
    """Open a directory that is reached without links.

    Raises:
        OSError: a part of the path is a link now, or it is missing.
    """
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if os.readlink(f"/proc/self/fd/{descriptor}") == path:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _given(place: int, receiver: Receiver) -> Optional[int]:
    """Give one file and close its place; returns a descriptor to list it if it is a directory."""
    try:
        found = os.fstat(place)
        if found.st_uid in receiver.owners:
            _give_opened(place, found, receiver)
        return os.open(".", _LISTED, dir_fd=place) if stat.S_ISDIR(found.st_mode) else None
    except PermissionError:
        if found.st_uid in receiver.owners:
            raise
        return None  # the file system squashes root (NFS): the owner cannot change
    finally:
        os.close(place)


def _give_opened(place: int, found: os.stat_result, receiver: Receiver) -> None:
    path = f"/proc/self/fd/{place}"
    if stat.S_ISDIR(found.st_mode):
        os.chown(path, receiver.uid, receiver.group)
        # New files get the runner's group, so that a runner that is not root can read them.
        os.chmod(path, 0o2770)  # noqa: S103
    elif stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        os.chown(path, receiver.uid, receiver.group)
        os.chmod(path, stat.S_IMODE(found.st_mode) & 0o777 | 0o660)
