"""Requests for start estimates, coalesced by keys that all processes share."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from portal.broker.connection import tolerated
from portal.broker.keys import Keys

ALL_KEY: Final = "tessera:estimates"
ALL_SECONDS: Final = 15
QUIET_KEY: Final = "tessera:estimates-quiet"
QUIET_SECONDS: Final = 30
NEW_WAITS_WANTED_KEY: Final = "tessera:new-waits-wanted"
NEW_WAITS_GOING_KEY: Final = "tessera:new-waits-going"
NEW_WAITS_REST_KEY: Final = "tessera:new-waits-rest"
NEW_WAITS_SECONDS: Final = 60
"""After this time a worker that was to estimate new waits is taken for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateMessage:
    """One message to the workers that estimate starts.

    Attributes:
        new_waits: only for newly queued jobs.
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
        with tolerated("no starts are estimated after this round"):
            if self._keys.claim(key, "1", seconds=seconds):
                self._send(EstimateMessage(new_waits=False, expires=ALL_SECONDS))

    def rest(self, seconds: float) -> None:
        """Set both keys for this time, at least as long as a request would."""
        with tolerated("estimates may be requested while others are made"):
            for key, least in ((ALL_KEY, ALL_SECONDS), (QUIET_KEY, QUIET_SECONDS)):
                self._keys.put(key, "1", seconds=max(least, seconds))

    def request_new_waits(self) -> None:
        """Send a message that is due after the rest interval."""
        with tolerated("new waits are estimated with all others"):
            rest = self._keys.seconds_left(NEW_WAITS_REST_KEY)
            until = math.ceil(rest) + NEW_WAITS_SECONDS
            if not self._keys.get(NEW_WAITS_GOING_KEY) and self._keys.claim(
                NEW_WAITS_WANTED_KEY, "1", seconds=until
            ):
                self._send(EstimateMessage(new_waits=True, countdown=rest, expires=until))

    def begin_new_waits(self) -> None:
        """Store for at most a minute that a worker has started."""
        with tolerated("two workers may estimate new waits at once"):
            self._keys.put(NEW_WAITS_GOING_KEY, "1", seconds=NEW_WAITS_SECONDS)
            self._keys.delete(NEW_WAITS_WANTED_KEY)

    def finish_new_waits(self, *, rest_seconds: float) -> None:
        with tolerated("new waits are estimated without a rest"):
            self._keys.put(NEW_WAITS_REST_KEY, "1", seconds=rest_seconds)
            self._keys.delete(NEW_WAITS_GOING_KEY)
