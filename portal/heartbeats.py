"""Heartbeats of web server, workers and beat; election of the active beat.

The loop that does the work of a process also writes its heartbeats. If the process hangs, they
stop, and the supervisor restarts it. The node service writes its own heartbeats. Each heartbeat
also checks for nodes that no node service manages.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from celery import bootsteps
from celery.beat import Scheduler
from django.conf import settings
from django.db import DatabaseError, Error, close_old_connections, connection, connections

from portal.broker import connection as broker
from scheduling.storage.opening import open_storage
from tenants.clock import database_now, host_skew

if TYPE_CHECKING:
    from workers.services.duties import Duty
    from workers.services.unattended import UnattendedWatch

logger = logging.getLogger(__name__)

MOST_SECONDS_WITHOUT_BROKER: Final = 10.0
"""Interval between rounds without a broker; below 15 s including the poll and the round."""
PATIENCE_SECONDS: Final = 5.0
"""Patience while the broker responds: above 1.5 intervals, for workers that start or work."""
CAUSE: Final = "no-round"
EVERY_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 2.0
ROUND_SECONDS: Final = 5.0
BEAT_DUTY: Final = "beat"
WORKER_KINDS: Final = frozenset({"rounds", "default"})
"""Kinds of workers whose heartbeats this module writes, by the part of their name before the @."""


def run_directly() -> None:
    from scheduling.tasks import run_round  # noqa: PLC0415 tasks need the loaded applications

    run_round(cause=CAUSE)


class MissedRounds:
    """Runs a round in its own thread if the newest round is too old.

    Two concurrent runs are harmless: round numbers are unique, so only one commit succeeds.
    """

    def __init__(
        self, run: Callable[[], None] = run_directly, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Allow the round workers time for the first round; ``clock`` is monotonic, in seconds."""
        self._run = run
        self._clock = clock
        self._begun_at = clock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._begun_at = self._clock()

    def look(self, *, has_broker: bool) -> bool:
        """Run a round if the newest one is too old; return whether one was started."""
        if self._thread is not None and self._thread.is_alive():
            return False
        limit = self._limit(has_broker=has_broker)
        waited = self._clock() - self._begun_at
        if (has_broker and waited < limit) or not _is_newest_older_than(limit):
            return False
        logger.warning("no round for %g s: running one in this process", limit)
        self._thread = threading.Thread(target=self._run_and_close, name="missed-round")
        self._thread.start()
        return True

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _run_and_close(self) -> None:
        try:
            self._run()
        except Exception:
            logger.exception("the round in this process failed; it is retried at the next check")
        finally:
            connections.close_all()

    @staticmethod
    def _limit(*, has_broker: bool) -> float:
        seconds = float(settings.TESSERA.round_seconds)
        if has_broker:
            return 1.5 * seconds + PATIENCE_SECONDS
        return min(seconds, MOST_SECONDS_WITHOUT_BROKER)


def _is_newest_older_than(seconds: float) -> bool:
    from scheduling.rounds.models import Round  # noqa: PLC0415 models need the loaded applications

    try:
        newest = Round.objects.order_by("-number").values_list("committed_at", flat=True).first()
        return newest is None or database_now() - newest > timedelta(seconds=seconds)
    except DatabaseError as error:
        logger.warning("the newest round could not be read: %s", error)
        return False


class HeartbeatWriter:
    """Writes the heartbeat row of this process, at most once in a few seconds."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.process = f"{kind}@{socket.gethostname()}:{os.getpid()}"
        self._written_at = float("-inf")
        self._unattended: UnattendedWatch | None = None

    def beat(self) -> None:
        """Write this process's heartbeat, and mark unmanaged nodes as suspect."""
        from workers.services import heartbeats  # noqa: PLC0415 needs the loaded applications
        from workers.services.unattended import UnattendedWatch  # noqa: PLC0415 likewise

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
            self._unattended = self._unattended or UnattendedWatch()
            self._unattended.look(now=database_now(), ticks=time.monotonic())
            open_storage(settings.TESSERA.storage).store_spooled()
        except Error as error:
            logger.warning("the heartbeat of %s could not be written: %s", self.process, error)
        finally:
            # A child process must not inherit an open connection.
            connection.close()

    def forget(self) -> None:
        """Delete the heartbeat row at a clean stop."""
        from workers.services import heartbeats  # noqa: PLC0415 needs the loaded applications

        with suppress(Error):
            heartbeats.forget(processes=[self.process])
        connection.close()


class HeartbeatScheduler(Scheduler):
    """Celery beat that sends periodic tasks only while this process holds the lease of this duty.

    The lease stores the last send time of each entry, so that its next holder sends no entry too
    early. While the broker is unreachable, nothing is sent, and missed rounds run in this process.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._writer = HeartbeatWriter("beat")
        self._duty: Duty | None = None
        self._missed = MissedRounds()
        self._closed = False
        super().__init__(*arguments, **options)

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Send at most one entry that is due.

        Returns:
            Seconds until the next tick.
        """
        self._writer.beat()
        close_old_connections()
        if not self._is_active():
            return LOOK_SECONDS
        has_broker = broker.broker_responds()
        self._missed.look(has_broker=has_broker)
        if not has_broker:
            return LOOK_SECONDS
        return min(float(super().tick(*arguments, **options)), LOOK_SECONDS)

    def close(self) -> None:
        """Release the duty and delete the heartbeat, so that another process takes over."""
        if not self._closed:
            self._closed = True
            if self._duty is not None:
                self._duty.release(self._sent())
            self._missed.wait(ROUND_SECONDS)
            self._writer.forget()
        super().close()

    def _is_active(self) -> bool:
        from workers.services.duties import Duty  # noqa: PLC0415 needs the loaded applications
        from workers.services.heartbeats import process_name  # noqa: PLC0415 likewise

        self._duty = self._duty or Duty(BEAT_DUTY, owner=process_name("beat"))
        return self._duty.hold(self._sent, begin=self._begin)

    def _begin(self, sent: Mapping[str, Any]) -> None:
        """Resume with the send times of the last holder of the duty."""
        logger.info("this process sends periodic tasks from now on")
        for name, moment in sent.items():
            entry = self.schedule.get(name)
            if entry is not None:
                entry.last_run_at = datetime.fromisoformat(moment)
        self._heap = None
        self._missed.begin()

    def _sent(self) -> dict[str, str]:
        """Return the last send time of each entry, in the database's time."""
        return {
            name: entry.last_run_at.isoformat()
            for name, entry in self.schedule.items()
            if entry.last_run_at is not None
        }


async def beat_forever(kind: str) -> None:
    """Write heartbeats from the running event loop until cancelled."""
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
    """Writes heartbeats from the timer of a round or housekeeping worker.

    The node service does not use this class: its heartbeat comes from the loop that manages nodes.
    """

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        kind = str(worker.hostname).partition("@")[0]
        self._writer = HeartbeatWriter(kind) if kind in WORKER_KINDS else None
        self._timer: Any = None

    def start(self, worker: Any) -> None:
        if self._writer is not None:
            self._writer.beat()
            self._timer = worker.timer.call_repeatedly(EVERY_SECONDS, self._writer.beat)

    def stop(self, worker: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.forget()
