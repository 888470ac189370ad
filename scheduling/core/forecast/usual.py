"""How long jobs of a virtual cluster usually wait, how long just now, and how its queue drains.

What jobs waited that have started tells too little while a queue grows: those that wait longest
have not started. So the newest waits are taken together with those that go on, which count as far
as they have come (Kaplan and Meier, JASA 1958). Where queues are long, the delays of the last to
leave and of those that still stand there are hard to beat (Ibrahim and Whitt, Manufacturing and
Service Operations Management 2009). What stands before a job is given out about as fast as as much
was given out before (Little, Operations Research 1961).
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp
from typing import Final, TypeAlias

Quantiles: TypeAlias = tuple[float, float, float]

LEVELS: Final = (0.1, 0.5, 0.9)
LEAST: Final = 5
"""With fewer waits that are over there are no usual ones."""

NEWEST: Final = 60
"""So many of the newest waits are looked at."""

FRESH: Final = 15.0
"""The weight of a wait falls to a third after so many newer ones."""

DRAINS: Final = (0.3, 0.7, 1.6)
"""Waits at the quantiles, as parts of the time in which as many devices were given out."""


def usual_waits(ordered: Sequence[float], waited: float) -> Quantiles | None:
    """How much longer others waited that had waited so long; of all where these were few.

    Args:
        ordered: whole waits that are over, in seconds, the shortest first.
        waited: how long the job has waited already.
    """
    begin = bisect_right(ordered, waited)
    if len(ordered) - begin < LEAST:
        begin, waited = 0, 0.0
    if len(ordered) < LEAST:
        return None
    p10, p50, p90 = (_between(ordered, begin, level) - waited for level in LEVELS)
    return p10, p50, p90


def present_waits(
    over: Sequence[float], going_on: Sequence[float], waited: float
) -> Quantiles | None:
    """The same from the newest waits and those that go on; None: too few are over.

    Args:
        over: whole waits that are over, in seconds, in the order in which they ended.
        going_on: how long the jobs that wait have waited so far.
        waited: how long the job has waited already.
    """
    if len(over) < LEAST:
        return None
    newest = [(wait, exp(-rank / FRESH)) for rank, wait in enumerate(reversed(over[-NEWEST:]))]
    longer = [(wait, weight) for wait, weight in newest if wait > waited]
    if len(longer) < LEAST:
        longer, waited = newest, 0.0
    steps = [(waited, 0.0), *_ended_by(longer, [age for age in going_on if age > waited])]
    p10, p50, p90 = (_crossing(steps, level) - waited for level in LEVELS)
    return p10, p50, p90


def drained_waits(
    given: Sequence[tuple[float, int]], needed: int, *, now: float, began: float
) -> Quantiles | None:
    """By the time in which as many devices were given out last; None: there were too few starts.

    Args:
        given: when jobs that had waited started, in seconds, and on how many devices each (one or
            more); in the order of time.
        needed: devices of the job and of all that stand before it.
        now: the present.
        began: when counting began; were fewer given out since then, the time is stretched.
    """
    if len(given) < LEAST:
        return None
    left = needed
    for at, devices in reversed(given):
        if left <= 0:
            span = now - at
            break
        left -= devices
    else:
        span = (now - began) * max(1.0, needed / (needed - left))
    low, middle, high = DRAINS
    return low * span, middle * span, high * span


def _ended_by(
    over: Sequence[tuple[float, float]], going_on: Sequence[float]
) -> list[tuple[float, float]]:
    """The share of waits that are over by each length; the last length has no more after it."""
    marks = sorted(
        [(wait, True, weight) for wait, weight in over] + [(age, False, 1.0) for age in going_on]
    )
    at_risk = sum(weight for _, _, weight in marks)
    left = 1.0
    steps: list[tuple[float, float]] = []
    for seconds, is_over, weight in marks:
        if is_over:
            left *= max(0.0, 1.0 - weight / max(at_risk, weight))
            steps.append((seconds, 1.0 - left))
        at_risk -= weight
    # Nobody knows how long the longest will go on: they count as over now.
    return [*steps, (marks[-1][0], 1.0)]


def _crossing(steps: Sequence[tuple[float, float]], level: float) -> float:
    """Where a line through the steps reaches the level."""
    before, below = steps[0]
    for seconds, share in steps[1:]:
        if share >= level:
            part = (level - below) / (share - below) if share > below else 1.0
            return before + part * (seconds - before)
        before, below = seconds, share
    return before


def _between(ordered: Sequence[float], begin: int, level: float) -> float:
    place = begin + level * (len(ordered) - 1 - begin)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
