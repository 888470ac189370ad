"""The clock of the database, used for leases, heartbeats, events and waits.

The clocks of hosts differ. A PostgreSQL server is queried for its time every few seconds; in
between, its time is derived from this host's monotonic clock, so that callers need no query. A
SQLite file is on this host, so its time is the host's.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, connections
from django.utils import timezone

MOST_SKEW: Final = timedelta(seconds=2)
"""Largest clock difference from the database with which a host manages nodes."""
MEASURE_EVERY: Final = 5.0
LONGEST_TRIP: Final = 0.25
"""Limit of a round trip in seconds; slower ones are repeated, since half of it may be error."""
TRIES: Final = 3


def _boot_seconds() -> float:
    """Return seconds since the boot; on Linux including suspended time."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """The server's time ``at`` (seconds since the epoch) at this host's ``ticks``.

    ``error`` bounds the error of ``at``: half of the round trip to the server.
    """

    at: float
    ticks: float
    error: float


class ServerClock:
    """The time of a server that is queried at intervals; thread-safe."""

    def __init__(
        self, *, ticks: Callable[[], float] = _boot_seconds, every: float = MEASURE_EVERY
    ) -> None:
        """Start without a time.

        Args:
            ticks: this host's monotonic clock in seconds.
            every: seconds between two queries.
        """
        self._ticks = ticks
        self._every = every
        self._measured: _Measured | None = None

    def now(self, ask: Callable[[], float]) -> datetime:
        """Return the server's time; queries the server if the last response is too old.

        Args:
            ask: returns the server's time in seconds since the epoch.

        Raises:
            DatabaseError: the server does not respond and has never responded before.
        """
        if self._measured is None or self._ticks() - self._measured.ticks > self._every:
            try:
                self._measured = self._measure(ask)
            except DatabaseError:
                if self._measured is None:
                    raise
        return _instant(self._measured, self._ticks())

    def estimate(self) -> datetime | None:
        """Return the server's time computed from the last response; None without a response."""
        return _instant(self._measured, self._ticks()) if self._measured is not None else None

    def ahead(self, wall: Callable[[], datetime], ask: Callable[[], float]) -> timedelta:
        """Return the minimum lead of a clock over the server's; negative if it is behind.

        Args:
            wall: the clock.
            ask: as for ``now``.

        Raises:
            DatabaseError: the server does not respond and has never responded before.
        """
        before, server, after = wall(), self.now(ask), wall()
        # This process may have been frozen between two of the three readings.
        ahead = min(before - server, after - server, key=abs)
        error = timedelta(seconds=self._measured.error if self._measured is not None else 0.0)
        certain = max(abs(ahead) - error, timedelta(0))
        return certain if ahead > timedelta(0) else -certain

    def _measure(self, ask: Callable[[], float]) -> _Measured:
        """Query until a response is fast enough; the fastest one is used."""
        answers: list[_Measured] = []
        while len(answers) < TRIES and all(one.error > LONGEST_TRIP / 2 for one in answers):
            begun = self._ticks()
            at = ask()
            error = (self._ticks() - begun) / 2
            answers.append(_Measured(at=at, ticks=begun + error, error=error))
        return min(answers, key=lambda answer: answer.error)


_server: Final = ServerClock()


def database_now() -> datetime:
    """Return the database's time, for callers of services; a query at most every 5 s.

    Raises:
        DatabaseError: the server does not respond and has never responded to this process.
    """
    return _server.now(_ask_server) if _has_server() else timezone.now()


def estimated_now() -> datetime:
    """Return the database's time without a query; the host's before the first query."""
    return (_server.estimate() if _has_server() else None) or timezone.now()


def host_skew() -> timedelta:
    """Return the lead of this host's clock over the database's; negative if it is behind.

    Raises:
        DatabaseError: the server does not respond and has never responded to this process.
    """
    return _server.ahead(timezone.now, _ask_server) if _has_server() else timedelta(0)


def is_skewed(skew: timedelta) -> bool:
    """Return whether a host's clock is too far off to manage nodes."""
    return abs(skew) > MOST_SKEW


def _has_server() -> bool:
    # ``connection`` is a new object in each task of asyncio, which costs 0.1 ms.
    return str(connections.settings[DEFAULT_DB_ALIAS]["ENGINE"]).endswith("postgresql")


def _ask_server() -> float:
    """Return PostgreSQL's current time, also inside a transaction."""
    connection.ensure_connection()
    # Uses the driver's cursor, so that the query does not count as a query of the request.
    with connection.wrap_database_errors, connection.connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        return float(cursor.fetchone()[0])


def _instant(measured: _Measured, ticks: float) -> datetime:
    return datetime.fromtimestamp(measured.at + ticks - measured.ticks, UTC)
