"""Requests for rounds and start estimates, coalesced by keys that all processes share.

With 10,000 live jobs a round takes most of a second of a processor. A stream of new jobs would
start the next round at once and compete with it for the processor and the database. New jobs
therefore delay the next round by the duration of the last one; other causes do not wait.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from portal.broker.connection import Keys, tolerated

WANTED_KEY: Final = "tessera:round-wanted"
WANTED_SECONDS: Final = 2
"""Lifetime of a request key, for workers that die; a round deletes its key when it begins."""
BEGUN_KEY: Final = "tessera:rounds-begun"
REST_KEY: Final = "tessera:round-rest"
AT_KEY_SECONDS: Final = 3600
NEW_JOBS: Final = "submit"
RESTING: Final = "rest"
COSTLY_SECONDS: Final = 0.25
"""Rounds shorter than this cause no pause, so that a small cluster starts jobs at once."""
MOST_REST_SECONDS: Final = 2.0
NOT_REQUESTED: Final = "no round could be requested; the next beat tick runs one"
ALL_KEY: Final = "tessera:estimates"
ALL_SECONDS: Final = 15
QUIET_KEY: Final = "tessera:estimates-quiet"
QUIET_SECONDS: Final = 30
NEW_WAITS_WANTED_KEY: Final = "tessera:new-waits-wanted"
NEW_WAITS_GOING_KEY: Final = "tessera:new-waits-going"
NEW_WAITS_REST_KEY: Final = "tessera:new-waits-rest"
NEW_WAITS_SECONDS: Final = 60
"""Timeout after which a worker that estimates new waits counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMessage:
    """One message to the round workers.

    Attributes:
        after: number of rounds begun when it was sent; None if it runs in any case.
        countdown: seconds until it is due.
        at: due time instead, if not None.
    """

    cause: str
    after: int | None = None
    countdown: float = 0.0
    at: datetime | None = None


class BrokerRoundRequests:
    """Implements `scheduling.ports.RoundRequests`.

    Args:
        keys: shared with all other processes.
        send: sends a message to the queue of the round workers.
        clock: monotonic, in seconds; measures rounds of this process.
    """

    def __init__(
        self,
        keys: Keys,
        send: Callable[[RoundMessage], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._send = send
        self._clock = clock
        self._began: float | None = None
        self._took = 0.0

    def request(self, cause: str) -> None:
        """Claim the key of the requested round, and send a message if it was free."""
        with tolerated(NOT_REQUESTED):
            rest = self._claim(cause)
            if rest is not None:
                self._send(RoundMessage(cause=cause, after=self._begun(), countdown=rest))

    def request_at(self, at: datetime) -> None:
        """Claim the key of that second, and send a message if it was free."""
        with tolerated(NOT_REQUESTED):
            key = f"{WANTED_KEY}:{int(at.timestamp())}"
            if self._keys.claim(key, "wake", seconds=AT_KEY_SECONDS):
                self._send(RoundMessage(cause="wake", at=at))

    def is_overtaken(self, after: int) -> bool:
        """Compare the count of begun rounds; False while the broker is unreachable."""
        # Without it, delayed rounds and immediate rounds would accumulate.
        begun = 0
        with tolerated("the round runs even if it is no longer needed"):
            begun = self._begun()
        return begun > after

    def begin(self) -> None:
        """Count this round and free the key."""
        with tolerated("the key of the requested round remains until it expires"):
            # Counted first: a process that finds the key relies on a later round.
            self._keys.increment(BEGUN_KEY)
            self._keys.delete(WANTED_KEY)
            self._began = self._clock()
            self._store_rest(2 * self._took)  # expected duration: that of the last one

    def finish(self) -> None:
        """Measure the round and delay the next one by its duration if it was costly."""
        if self._began is None:
            return
        seconds, self._began = self._clock() - self._began, None
        self._took = min(seconds, MOST_REST_SECONDS) if seconds >= COSTLY_SECONDS else 0.0
        with tolerated("rounds run without a pause between them"):
            self._store_rest(self._took)
            if not self._took:
                self._keys.delete(REST_KEY)  # stored at its start, with a longer expected duration

    def _claim(self, cause: str) -> float | None:
        """Return the seconds until the round for this cause is due; None if already requested.

        One command claims a round and stores whether it is delayed. Between two commands, another
        process would mistake a delayed round for an immediate one and wait with it. If two
        end a delay at the same instant, both request a round, and the later one is overtaken.
        """
        rest = self._keys.seconds_left(REST_KEY) if cause == NEW_JOBS else 0.0
        word, seconds = (RESTING, math.ceil(rest)) if rest else (cause, 0)
        if self._keys.claim(WANTED_KEY, word, seconds=WANTED_SECONDS + seconds):
            return rest
        if cause == NEW_JOBS or self._keys.get(WANTED_KEY) != RESTING:
            return None
        self._keys.put(WANTED_KEY, cause, seconds=WANTED_SECONDS)
        return 0.0

    def _begun(self) -> int:
        return int(self._keys.get(BEGUN_KEY) or 0)

    def _store_rest(self, seconds: float) -> None:
        if seconds > 0.0:
            self._keys.put(REST_KEY, "1", seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateMessage:
    """One message to the workers that estimate starts.

    Attributes:
        new_waits: compute estimates only for newly queued jobs.
        countdown: seconds until it is due.
        expires: seconds until it is dropped.
    """

    new_waits: bool
    countdown: float = 0.0
    expires: float


class BrokerEstimateRequests:
    """Implements `scheduling.ports.EstimateRequests`.

    Args:
        keys: shared with all other processes.
        send: sends a message to the queue of the workers.
    """

    def __init__(self, keys: Keys, send: Callable[[EstimateMessage], None]) -> None:
        self._keys = keys
        self._send = send

    def request(self, *, changed: bool) -> None:
        """Send at most one message in 15 s after a change, in 30 s otherwise."""
        key, seconds = (ALL_KEY, ALL_SECONDS) if changed else (QUIET_KEY, QUIET_SECONDS)
        with tolerated("no start estimates are computed after this round"):
            if self._keys.claim(key, "1", seconds=seconds):
                self._send(EstimateMessage(new_waits=False, expires=ALL_SECONDS))

    def rest(self, seconds: float) -> None:
        """Suppress requests for this time, at least as long as a request would."""
        with tolerated("estimates may be requested while others are being computed"):
            for key, least in ((ALL_KEY, ALL_SECONDS), (QUIET_KEY, QUIET_SECONDS)):
                self._keys.put(key, "1", seconds=max(least, seconds))

    def request_new_waits(self) -> None:
        """Send a message that is due when the suppression ends."""
        with tolerated("new waiting jobs are estimated together with all others"):
            rest = self._keys.seconds_left(NEW_WAITS_REST_KEY)
            until = math.ceil(rest) + NEW_WAITS_SECONDS
            if not self._keys.get(NEW_WAITS_GOING_KEY) and self._keys.claim(
                NEW_WAITS_WANTED_KEY, "1", seconds=until
            ):
                self._send(EstimateMessage(new_waits=True, countdown=rest, expires=until))

    def begin_new_waits(self) -> None:
        """Record that a worker has started; the record expires after at most a minute."""
        with tolerated("two workers may estimate new waiting jobs at the same time"):
            self._keys.put(NEW_WAITS_GOING_KEY, "1", seconds=NEW_WAITS_SECONDS)
            self._keys.delete(NEW_WAITS_WANTED_KEY)

    def finish_new_waits(self, *, rest_seconds: float) -> None:
        with tolerated("new waiting jobs are estimated without a pause"):
            self._keys.put(NEW_WAITS_REST_KEY, "1", seconds=rest_seconds)
            self._keys.delete(NEW_WAITS_GOING_KEY)
