"""Keys with an expiry that processes share: in the broker, or in this process without one."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import redis


class Keys(Protocol):
    """Values by key; every method is atomic."""

    def claim(self, key: str, value: str, *, seconds: float) -> bool:
        """Create ``key`` for ``seconds`` unless it exists; return whether it was created."""

    def put(self, key: str, value: str, *, seconds: float) -> None:
        """Create or replace ``key`` for ``seconds``."""

    def get(self, key: str) -> str:
        """Return the value; empty if missing."""

    def seconds_left(self, key: str) -> float:
        """Seconds until ``key`` expires; 0 if it does not exist."""

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
        """``SET`` with ``NX``."""
        return bool(self._client().set(key, value, nx=True, px=_milliseconds(seconds)))

    def put(self, key: str, value: str, *, seconds: float) -> None:
        """``SET``."""
        self._client().set(key, value, px=_milliseconds(seconds))

    def get(self, key: str) -> str:
        """``GET``."""
        return (self._client().get(key) or b"").decode()

    def seconds_left(self, key: str) -> float:
        """``PTTL``, in seconds."""
        return max(self._client().pttl(key), 0) / 1000.0

    def increment(self, key: str) -> None:
        """``INCR``."""
        self._client().incr(key)

    def delete(self, key: str) -> None:
        """``DEL``."""
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
        """Measure by the clock of this object."""
        with self._lock:
            entry = self._entry(key)
        return entry[1] - self._clock() if entry else 0.0

    def increment(self, key: str) -> None:
        """Add 1; the value does not expire."""
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
