"""Rounds rest between each other where they cost much and only new jobs ask for them.

With ten thousand live jobs a round takes most of a second of a processor. Jobs that stream in
would have it begin anew at once, and wait themselves for the processor and the database.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import redis

REST_KEY: Final = "tessera:round-rest"
COSTLY_SECONDS: Final = 0.25
"""A round that is done sooner needs no rest: a small cluster starts jobs at once."""
MOST_SECONDS: Final = 2.0


class Pace:
    """How long new jobs let rounds rest: as long as the last one took.

    The process that runs rounds tells it to a key, which all others look at. The key is a hint
    like everything in the broker: without it rounds follow one another at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Know of no round yet."""
        self._clock = clock
        self._began: float | None = None
        self._took = 0.0

    def begin(self, client: "redis.Redis[bytes]") -> None:
        """A round begins here; it is taken to last as long as the one before."""
        self._began = self._clock()
        _tell(client, 2 * self._took)

    def end(self, client: "redis.Redis[bytes]") -> None:
        """The round that began here has committed."""
        if self._began is None:
            return
        seconds = self._clock() - self._began
        self._began = None
        self._took = min(seconds, MOST_SECONDS) if seconds >= COSTLY_SECONDS else 0.0
        _tell(client, self._took)
        if not self._took:
            client.delete(REST_KEY)  # told as it began, when it was taken to last longer


def rest_left(client: "redis.Redis[bytes]") -> float:
    """Seconds for which the next round that only new jobs ask for shall wait."""
    return max(client.pttl(REST_KEY), 0) / 1000.0


def _tell(client: "redis.Redis[bytes]", seconds: float) -> None:
    if seconds > 0.0:
        client.set(REST_KEY, "1", px=round(1000.0 * seconds))
