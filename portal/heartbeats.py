"""Signs of life of the processes in this room: web, round worker, housekeeping worker, beat.

Each is written from the loop that does the process's work, so that a process that hangs falls
silent and the supervisor starts it again. The node service writes its own.
"""

import asyncio
import logging
import os
import socket
import time
from contextlib import suppress
from typing import Any, Final

from asgiref.sync import sync_to_async
from celery import bootsteps
from celery.beat import PersistentScheduler
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection

from tenants.clock import database_now, host_skew

logger = logging.getLogger(__name__)

EVERY_SECONDS: Final = 5.0
WORKER_KINDS: Final = frozenset({"rounds", "default"})
"""Workers that beat here, by the part of their name before the @."""


class HeartbeatWriter:
    """Writes this process's row, at most once in a few seconds however often it is asked."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.process = f"{kind}@{socket.gethostname()}:{os.getpid()}"
        self._written_at = float("-inf")

    def beat(self) -> None:
        """Say that this process is alive; a database that is away is said once in the log."""
        from workers.services import heartbeats  # noqa: PLC0415 needs the loaded applications

        if time.monotonic() - self._written_at < EVERY_SECONDS * 0.9:
            return
        self._written_at = time.monotonic()
        try:
            heartbeats.beat(
                process=self.process,
                kind=self.kind,
                now=database_now(),
                facts=heartbeats.host_facts(settings.TESSERA.data_dir, skew=host_skew()),
            )
        except DatabaseError as error:
            logger.warning("the heartbeat of %s could not be written: %s", self.process, error)
        finally:
            # A child that is forked later must not find an open connection.
            connection.close()

    def forget(self) -> None:
        """Remove the row: this process ends in order."""
        from workers.services import heartbeats  # noqa: PLC0415 needs the loaded applications

        with suppress(DatabaseError):
            heartbeats.forget(processes=[self.process])
        connection.close()


class HeartbeatScheduler(PersistentScheduler):
    """Beat's usual scheduler, which says at every tick that it ticks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._writer = HeartbeatWriter("beat")
        super().__init__(*arguments, **options)

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Do what is due, and say so.

        Returns:
            Seconds until the next look.
        """
        self._writer.beat()
        return min(float(super().tick(*arguments, **options)), EVERY_SECONDS)

    def close(self) -> None:
        """End in order."""
        self._writer.forget()
        super().close()


async def beat_forever(kind: str) -> None:
    """Beat from the running event loop until cancelled."""
    writer = HeartbeatWriter(kind)
    beat = sync_to_async(writer.beat, thread_sensitive=False)
    forget = sync_to_async(writer.forget, thread_sensitive=False)
    try:
        while True:
            await beat()
            await asyncio.sleep(EVERY_SECONDS)
    finally:
        await forget()


class HeartbeatStep(bootsteps.StartStopStep):
    """Beats from the timer of a round or housekeeping worker's own loop.

    The node service is not among them: it speaks for the loop that carries the nodes.
    """

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        kind = str(worker.hostname).partition("@")[0]
        self._writer = HeartbeatWriter(kind) if kind in WORKER_KINDS else None
        self._timer: Any = None

    def start(self, worker: Any) -> None:
        """Begin to beat."""
        if self._writer is not None:
            self._writer.beat()
            self._timer = worker.timer.call_repeatedly(EVERY_SECONDS, self._writer.beat)

    def stop(self, worker: Any) -> None:
        """End in order."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.forget()
