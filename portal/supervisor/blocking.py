"""Detection of a child that hangs during a write and blocks the database.

SQLite has one writer at a time. A process that is stopped, or hangs, in its transaction blocks all
others, including their heartbeats. Missing heartbeats then do not identify the process; the lock
does.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from portal.supervisor.children import Child

BLOCKED_SECONDS: Final = 90.0
"""Well above the 30 s for which a step may block without harm."""
WAL_WRITE_LOCK: Final = 120
"""The byte of the ``-shm`` file that a writer locks (sqlite.org/walformat.html, 2.3)."""
LOCKS: Final = Path("/proc/locks")

FindHolders = Callable[[], Collection[int]]


class BlockWatch:
    """Records how long the same process groups have blocked writes of this process.

    The thread that writes heartbeats updates it; the thread that supervises children reads it.
    """

    def __init__(
        self,
        find_holders: FindHolders,
        *,
        seconds: float = BLOCKED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without records.

        Args:
            find_holders: returns the process groups that hold the write lock now.
            seconds: time for which a group may block the writes of others.
            clock: monotonic time in seconds.
        """
        self.seconds = seconds
        self._find_holders = find_holders
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[int, float] = {}

    def note(self, *, could_write: bool) -> None:
        """Record the result of an attempt to write."""
        holders = () if could_write else self._find_holders()
        now = self._clock()
        with self._lock:
            self._since = {group: self._since.get(group, now) for group in holders}

    def blocking(self, children: Iterable[Child]) -> set[int]:
        """Return the process ids of children that have held the lock for too long."""
        now = self._clock()
        with self._lock:
            long = {group for group, since in self._since.items() if now - since > self.seconds}
        return {child.pid for child in children if child.pid in long and child.pid is not None}


def groups_that_write() -> set[int]:
    """Return the process groups that hold the write lock of this portal's SQLite database."""
    from django.db import connection  # noqa: PLC0415 the supervisor starts long before it

    if connection.vendor != "sqlite":
        return set()
    return lock_holders(Path(str(connection.settings_dict["NAME"])))


def lock_holders(database: Path) -> set[int]:
    """Return the process groups that hold the write lock of a SQLite database in WAL mode.

    The function reads the kernel's lock table: opening and closing the database file would release
    all locks of this process on it.

    Args:
        database: path of the database file.

    Returns:
        The process groups; empty if the lock table is unavailable or no process writes.
    """
    try:
        inode = database.with_name(f"{database.name}-shm").stat().st_ino
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return set()
    groups: set[int] = set()
    for line in lines:
        # Example: 1: POSIX  ADVISORY  WRITE 4711 fe:00:2187272 120 120   (a waiting lock has an
        # arrow)
        fields = line.split()
        if fields[1:2] != ["POSIX"] or fields[3:4] != ["WRITE"] or len(fields) != 8:
            continue
        pid, first, last = int(fields[4]), int(fields[6]), float(fields[7].replace("EOF", "inf"))
        is_ours = int(fields[5].rpartition(":")[2]) == inode and first <= WAL_WRITE_LOCK <= last
        if is_ours and pid > 0:  # 0: the process is in another namespace
            with suppress(ProcessLookupError, PermissionError):
                groups.add(os.getpgid(pid))
    return groups
