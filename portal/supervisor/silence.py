"""Detection of hanging children by their heartbeat rows."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from portal.supervisor.blocking import BlockWatch
from portal.supervisor.children import Child

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 30.0
START_SECONDS: Final = 90.0
READ_EVERY: Final = 3.0

ReadBeats = Callable[[], Mapping[int, datetime]]
Probe = Callable[[], bool]


class SilenceWatch:
    """Reads heartbeats in its own thread, since a database query may block.

    A child is silent if its heartbeat has not changed for some time by this process's clock. A
    suspended machine or an unreachable database therefore makes no child appear silent.
    """

    def __init__(
        self,
        read_beats: ReadBeats,
        clock: Callable[[], float] = time.monotonic,
        *,
        blocks: BlockWatch | None = None,
        every: float = READ_EVERY,
    ) -> None:
        """Start without heartbeats.

        Args:
            read_beats: reads the rows, and raises an error if the database cannot be written.
            clock: monotonic time in seconds.
            blocks: records whether the database could be written.
            every: seconds between two reads.
        """
        self._read_beats = read_beats
        self._clock = clock
        self._blocks = blocks
        self._every = every
        self._lock = threading.Lock()
        self._last: dict[int, datetime] = {}
        self._changed_at: dict[int, float] = {}
        self._read_at = float("-inf")
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="heartbeats", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def note(self, beats: Mapping[int, datetime]) -> None:
        """Record the newest heartbeat of each process group."""
        now = self._clock()
        with self._lock:
            if now - self._read_at > SILENT_SECONDS / 2:
                # This process was suspended, so heartbeats in the meantime are unknown.
                self._changed_at = dict.fromkeys(self._changed_at, now)
            self._read_at = now
            for group, at in beats.items():
                if self._last.get(group) != at:
                    self._last[group] = at
                    self._changed_at[group] = now

    def silent(self, children: Iterable[Child]) -> set[int]:
        """Return process IDs of children whose heartbeats have been missing for too long."""
        now = self._clock()
        with self._lock:
            if now - self._read_at > SILENT_SECONDS / 2:
                return set()
            return {
                child.pid
                for child in children
                if child.pid is not None
                and child.program.has_heartbeat
                and self._is_silent(child, child.pid, now)
            }

    def _is_silent(self, child: Child, pid: int, now: float) -> bool:
        changed_at = self._changed_at.get(pid)
        # A heartbeat from before the start belongs to an earlier process with the same ID.
        if changed_at is None or changed_at < child.started_at:
            return now - child.started_at > START_SECONDS
        return now - changed_at > SILENT_SECONDS

    def _run(self) -> None:
        while not self._ended.is_set():
            could_write = True
            try:
                self.note(self._read_beats())
            except Exception as error:
                could_write = False
                logger.warning("heartbeats cannot be read: %r", error)
            if self._blocks is not None:
                self._blocks.note(could_write=could_write)
            self._ended.wait(self._every)


def with_probes(
    read_beats: ReadBeats, probes: Mapping[str, Probe], children: Mapping[str, Child]
) -> ReadBeats:
    """Add heartbeats of programs that write no rows: a successful probe counts as a heartbeat.

    Args:
        read_beats: reads the rows.
        probes: health checks by child name.
        children: the children by name.
    """

    def read() -> Mapping[int, datetime]:
        beats = dict(read_beats())
        for name, answers in probes.items():
            child = children.get(name)
            pid = child.pid if child is not None else None
            if pid is not None and answers():
                beats[pid] = datetime.now(UTC)
        return beats

    return read


def read_heartbeats() -> dict[int, datetime]:
    """Return the newest heartbeat of each process group on this machine, from the database.

    Raises:
        DatabaseError: the database cannot be read or written. Missing heartbeats
            prove nothing then, since no process can write.
    """
    import django  # noqa: PLC0415 the supervisor starts long before it needs the models

    django.setup()
    from django.db import connection  # noqa: PLC0415

    from tenants.clock import database_now  # noqa: PLC0415
    from workers.services.heartbeats import beat, beats_of_host  # noqa: PLC0415

    mine = f"supervisor@{socket.gethostname()}:{os.getpid()}"
    newest: dict[int, datetime] = {}
    try:
        beat(process=mine, kind="supervisor", now=database_now())
        for pid, at in beats_of_host(host=socket.gethostname()):
            try:
                group = os.getpgid(pid)
            except (ProcessLookupError, PermissionError):
                continue
            newest[group] = max(at, newest.get(group, at))
    finally:
        connection.close()
    return newest
