"""Rounds run by beat while no message reaches a round worker, or none works.

A second runner is harmless: the unique number of a round lets one commit.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import DatabaseError, connections

from tenants.clock import database_now

logger = logging.getLogger(__name__)

MOST_SECONDS_WITHOUT_BROKER: Final = 10.0
"""Between two rounds while the broker is away; with the look and the round itself below 15 s."""
PATIENCE_SECONDS: Final = 5.0
"""Beyond one and a half intervals, while the broker answers: round workers may start, or work."""
CAUSE: Final = "no-round"


def run_directly() -> None:
    from scheduling.tasks import run_round  # noqa: PLC0415 tasks need the loaded applications

    run_round(cause=CAUSE)


class MissedRounds:
    """Checks the age of the newest round, and runs one in its own thread when it is too old."""

    def __init__(
        self, run: Callable[[], None] = run_directly, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Wait for the round workers first.

        Args:
            run: runs a round.
            clock: monotonic, in seconds.
        """
        self._run = run
        self._clock = clock
        self._begun_at = clock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start to check from now on."""
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
            logger.exception("the round in this process failed; the next look tries again")
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
