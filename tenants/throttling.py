"""How long a sign-in has to wait after failed ones: pure functions of what was counted.

Three tallies are counted: of a name with the source of the attempt (the *pair*), of a source over
all names, and of a name over all sources that have never signed in with it. A source is a device,
by its cookie, or an address. One that has signed in with a name before is *known* for it, and
waits for its own failures only. No tally locks a name: waits grow with the failures of one source,
and a source that has not failed with a name waits at most ``LONGEST_CROWD_WAIT``.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

FREE_OF_PAIR: Final = 5
FREE_UNDER_ATTACK: Final = 1
ATTACKED_FROM: Final = 20
"""Failures of a name from unknown sources from which its unknown sources wait earlier."""
FREE_OF_SOURCE: Final = 10
CROWD: Final = 500
"""Failures of a name from which its unknown sources take turns, however many they are."""
FIRST_WAIT: Final = 2.0
FIRST_WAIT_UNDER_ATTACK: Final = 15.0
FIRST_WAIT_OF_SOURCE: Final = 4.0
LONGEST_WAIT: Final = 900.0
LONGEST_CROWD_WAIT: Final = 30.0
PAIR_HALF_LIFE: Final = timedelta(hours=1)
SOURCE_HALF_LIFE: Final = timedelta(minutes=30)
NAME_HALF_LIFE: Final = timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Failed attempts of one kind.

    Attributes:
        failures: as many as there were at ``at``, older ones counted less.
        at: the last attempt; None if there was none.
    """

    failures: float = 0.0
    at: datetime | None = None

    def faded(self, now: datetime, half_life: timedelta) -> float:
        """The failures as they count now; a clock that went back changes nothing."""
        if self.at is None:
            return 0.0
        age = max((now - self.at) / half_life, 0.0)
        return float(self.failures * 0.5 ** min(age, 64.0))

    def plus_one(self, now: datetime, half_life: timedelta) -> "Tally":
        """With one more failure, now."""
        return Tally(failures=self.faded(now, half_life) + 1.0, at=now)


def seconds_to_wait(
    *, pair: Tally, source: Tally, name: Tally, is_known: bool, now: datetime
) -> float:
    """Seconds until the next attempt is checked; 0 for at once.

    Args:
        pair: failures of the name from this source.
        source: failures of this source with any name it is not known for.
        name: failures of the name from sources that are not known for it.
        is_known: the source has signed in with the name before.
        now: the time.
    """
    of_pair = pair.faded(now, PAIR_HALF_LIFE)
    if is_known:
        return _left(pair, _growing(of_pair - FREE_OF_PAIR, FIRST_WAIT), now)
    of_name = name.faded(now, NAME_HALF_LIFE)
    waits = [
        _left(pair, _pair_wait(of_pair, of_name), now),
        _left(
            source,
            _growing(source.faded(now, SOURCE_HALF_LIFE) - FREE_OF_SOURCE, FIRST_WAIT_OF_SOURCE),
            now,
        ),
        _left(name, _crowd_wait(of_name), now),
    ]
    return max(waits)


def _pair_wait(of_pair: float, of_name: float) -> float:
    if of_name < ATTACKED_FROM:
        return _growing(of_pair - FREE_OF_PAIR, FIRST_WAIT)
    return _growing(of_pair - FREE_UNDER_ATTACK, FIRST_WAIT_UNDER_ATTACK)


def _growing(beyond: float, first: float) -> float:
    """A wait that doubles with each failure beyond those that are free."""
    # A failure fades at once by a little; the one that was just counted is still a whole one.
    steps = beyond + 0.5
    return 0.0 if steps < 0 else float(min(LONGEST_WAIT, first * 2.0 ** min(int(steps), 32)))


def _crowd_wait(of_name: float) -> float:
    if of_name < CROWD:
        return 0.0
    return float(min(LONGEST_CROWD_WAIT, 2.0 ** min((of_name - CROWD) / 100, 8.0)))


def _left(tally: Tally, wait: float, now: datetime) -> float:
    if tally.at is None or wait <= 0:
        return 0.0
    # A clock that went back must not make the wait longer than it is.
    return min(wait, max(0.0, wait - (now - tally.at).total_seconds()))
