"""Throttling of sign-ins after failures: pure functions of the counts.

Four tallies are counted: of a name with the source of the attempt (the *pair*), of a source over
all names, of a name over all sources that have never signed in with it, and of a name with the
*site* of the source (its IPv4 address, or the /48 of its IPv6 address). A source is a device, by
its cookie, or an address. A source that has signed in with a name before is *known* for the name,
and is delayed only by its own failures.

No tally blocks a name completely. The tally of a name has room for ``ROOM[0]`` attempts by sources
that have
not failed with it, for fewer by sources with one or two failures, and for few by others. So
sources with failures leave room for a person at a new address, independently of the number of
their attempts.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

FREE_OF_PAIR: Final = 5
FREE_UNDER_ATTACK: Final = 1
ATTACKED_FROM: Final = 20
"""Number of attempts with a name by unknown sources above which these are delayed earlier."""
FREE_OF_SOURCE: Final = 10
ROOM: Final = (300, 200, 100, 10)
"""Attempts with a name that count at a time, by failures of the source (last: 3 or more)."""
SOURCES_OF_SITE: Final = 8
"""Failures of an IPv6 site that count as one of each source in it."""
FIRST_WAIT: Final = 2.0
FIRST_WAIT_UNDER_ATTACK: Final = 15.0
FIRST_WAIT_OF_SOURCE: Final = 4.0
LONGEST_WAIT: Final = 900.0
PAIR_HALF_LIFE: Final = timedelta(hours=1)
SITE_HALF_LIFE: Final = timedelta(hours=12)
"""Half-life with which a source that failed with a name regains about 4 attempts a day."""
SOURCE_HALF_LIFE: Final = timedelta(minutes=30)
NAME_HALF_LIFE: Final = timedelta(minutes=3, seconds=30)
"""Half-life with which ``ROOM`` admits 59, 40, 20 and 2 attempts a minute in the long run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTally:
    """Failed attempts of one kind.

    Attributes:
        failures: count as of ``at``, older ones weighted less.
        at: the last attempt; None if there was none.
    """

    failures: float = 0.0
    at: datetime | None = None

    def faded(self, now: datetime, half_life: timedelta) -> float:
        """Return the decayed failures; a clock that was set back changes nothing."""
        if self.at is None:
            return 0.0
        age = max((now - self.at) / half_life, 0.0)
        return float(self.failures * 0.5 ** min(age, 64.0))

    def plus_one(self, now: datetime, half_life: timedelta) -> "FailureTally":
        """Add one failure, now."""
        return FailureTally(failures=self.faded(now, half_life) + 1.0, at=now)


def seconds_to_wait(
    *,
    pair: FailureTally,
    source: FailureTally,
    name: FailureTally,
    site: FailureTally,
    sources_of_site: int,
    is_known: bool,
    now: datetime,
) -> float:
    """Return the seconds until the next attempt is checked; 0 for at once.

    Args:
        pair: failures of the name from this source.
        source: failures of this source with any name it is not known for.
        name: attempts with the name from sources that are not known for it.
        site: failures of the name from the site of this source.
        sources_of_site: failures of the site that count as one of this source.
        is_known: the source has signed in with the name before.
        now: current time.
    """
    of_pair = pair.faded(now, PAIR_HALF_LIFE)
    if is_known:
        return _left(pair, _growing(of_pair - FREE_OF_PAIR, FIRST_WAIT), now)
    of_name = name.faded(now, NAME_HALF_LIFE)
    of_site = site.faded(now, SITE_HALF_LIFE)
    waits = [
        _left(pair, _pair_wait(of_pair, of_name), now),
        _left(
            source,
            _growing(source.faded(now, SOURCE_HALF_LIFE) - FREE_OF_SOURCE, FIRST_WAIT_OF_SOURCE),
            now,
        ),
        _room_wait(of_name, max(of_pair, of_site / sources_of_site)),
    ]
    return max(waits)


def _pair_wait(of_pair: float, of_name: float) -> float:
    if of_name < ATTACKED_FROM:
        return _growing(of_pair - FREE_OF_PAIR, FIRST_WAIT)
    return _growing(of_pair - FREE_UNDER_ATTACK, FIRST_WAIT_UNDER_ATTACK)


def _growing(beyond: float, first: float) -> float:
    """Return a wait that doubles with each failure above the free ones."""
    # Failures decay continuously; the newest one still counts as 1.
    steps = beyond + 0.5
    return 0.0 if steps < 0 else float(min(LONGEST_WAIT, first * 2.0 ** min(int(steps), 32)))


def _room_wait(of_name: float, failures: float) -> float:
    """Return the time until attempts with a name have faded enough for a source with failures."""
    room = ROOM[min(int(failures + 0.5), len(ROOM) - 1)]
    if of_name < room:
        return 0.0
    fading = NAME_HALF_LIFE.total_seconds() * math.log2(of_name / room)
    return min(max(fading, 1.0), LONGEST_WAIT)


def _left(tally: FailureTally, wait: float, now: datetime) -> float:
    if tally.at is None or wait <= 0:
        return 0.0
    # A clock that was set back must not lengthen the wait.
    return min(wait, max(0.0, wait - (now - tally.at).total_seconds()))
