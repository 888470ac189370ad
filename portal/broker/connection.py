"""This process's connection to the broker, with back-off, and keys that processes share."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, Protocol
from urllib.parse import urlsplit

import redis
from django.conf import settings
from kombu.exceptions import KombuError

from workers.redis_address import redis_client

logger = logging.getLogger(__name__)

AWAY_SECONDS: Final = 1.0
REPLY_SECONDS: Final = 2.0

_away_until: Final = [float("-inf")]
_warned: dict[str, int] = {}


def has_broker() -> bool:
    """Return whether a broker is configured (tests run without one)."""
    return urlsplit(settings.TESSERA.redis_url).scheme != "memory"


def broker_responds() -> bool:
    """Return whether the broker is reachable; True if none is configured."""
    if not has_broker():
        return True
    try:
        client().ping()
    except (redis.RedisError, OSError) as error:
        _warn("the broker does not respond", error)
        return False
    return True


def client() -> "redis.Redis[bytes]":
    """Return this process's client; it fails fast, since every message is only a hint.

    Raises:
        redis.ConnectionError: the broker did not respond within the last second. It is not
            tried again before that second has passed.
    """
    if time.monotonic() < _away_until[0]:
        raise _AwayError("the broker did not respond recently")
    return _redis_client()


@contextmanager
def tolerated(consequence: str) -> Iterator[None]:
    """Log errors of the broker with their consequence instead of raising them."""
    try:
        yield
    except (redis.RedisError, KombuError, OSError) as error:
        _warn(consequence, error)


class _AwayError(redis.ConnectionError):
    """The broker did not respond recently, and was not called again."""


@cache
def _redis_client() -> "redis.Redis[bytes]":
    return redis_client(settings.TESSERA.redis_url, seconds=REPLY_SECONDS)


def _warn(consequence: str, error: Exception) -> None:
    """Warn at most once a minute: an unreachable broker would otherwise fill the log."""
    if not isinstance(error, _AwayError):
        _away_until[0] = time.monotonic() + AWAY_SECONDS
    minute = int(time.monotonic() // 60)
    if _warned.get(consequence) != minute:
        _warned[consequence] = minute
        logger.warning("%s (%s)", consequence, error)


class Keys(Protocol):
    """Values by key; every method is atomic."""

    def claim(self, key: str, value: str, *, seconds: float) -> bool:
        """Create ``key`` for ``seconds`` unless it exists; return whether it was created."""

    def put(self, key: str, value: str, *, seconds: float) -> None:
        """Create or replace ``key`` for ``seconds``."""

    def get(self, key: str) -> str:
        """Return the value; empty if missing."""

    def seconds_left(self, key: str) -> float:
        """Return the seconds until ``key`` expires; 0 if it does not exist."""

    def increment(self, key: str) -> None:
        """Add 1 to a number that does not expire and starts at 0."""

    def delete(self, key: str) -> None:
        """Remove ``key`` if it exists."""


class RedisKeys:
    """Keys in Redis.

    Args:
        client: returns the client for one operation; its errors are raised.
    """

    def __init__(self, client: "Callable[[], redis.Redis[bytes]]") -> None:
        self._client = client

    def claim(self, key: str, value: str, *, seconds: float) -> bool:
        """Store a value unless the key exists (``SET`` with ``NX``)."""
        return bool(self._client().set(key, value, nx=True, px=_milliseconds(seconds)))

    def put(self, key: str, value: str, *, seconds: float) -> None:
        """Store a value (``SET``)."""
        self._client().set(key, value, px=_milliseconds(seconds))

    def get(self, key: str) -> str:
        """Return the value of a key (``GET``)."""
        return (self._client().get(key) or b"").decode()

    def seconds_left(self, key: str) -> float:
        """Return the remaining lifetime of a key in seconds (``PTTL``)."""
        return max(self._client().pttl(key), 0) / 1000.0

    def increment(self, key: str) -> None:
        """Increment a counter (``INCR``)."""
        self._client().incr(key)

    def delete(self, key: str) -> None:
        """Delete a key (``DEL``)."""
        self._client().delete(key)


class LocalKeys:
    """Keys in this process, for an installation without a broker and for tests.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[str, float]] = {}

    def claim(self, key: str, value: str, *, seconds: float) -> bool:
        with self._lock:
            if self._entry(key) is not None:
                return False
            self._entries[key] = (value, self._clock() + seconds)
            return True

    def put(self, key: str, value: str, *, seconds: float) -> None:
        """Replace value and expiry."""
        with self._lock:
            self._entries[key] = (value, self._clock() + seconds)

    def get(self, key: str) -> str:
        """Return the value; None for an expired key."""
        with self._lock:
            entry = self._entry(key)
        return entry[0] if entry else ""

    def seconds_left(self, key: str) -> float:
        """Return the remaining lifetime of a key by the clock of this object."""
        with self._lock:
            entry = self._entry(key)
        return entry[1] - self._clock() if entry else 0.0

    def increment(self, key: str) -> None:
        """Increment a counter, which does not expire."""
        with self._lock:
            entry = self._entry(key)
            self._entries[key] = (str(int(entry[0] if entry else 0) + 1), float("inf"))

    def delete(self, key: str) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def _entry(self, key: str) -> tuple[str, float] | None:
        entry = self._entries.get(key)
        return entry if entry and entry[1] > self._clock() else None


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000.0 * seconds))
