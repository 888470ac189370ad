"""Usual waits of a virtual cluster, its present waits, and the time in which its queue drains.

Waits of started jobs are biased while a queue grows: the longest waits have not ended. So the
newest waits are combined with the open ones, which are censored (Kaplan and Meier, JASA 1958).
For long queues, the delays of the newest starts and of jobs still queued predict waits well
(Ibrahim and Whitt, Manufacturing and Service Operations Management 2009). The demand ahead of
a job drains about as fast as an equal demand did before (Little, Operations Research 1961).
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp
from typing import Final, TypeAlias

Quantiles: TypeAlias = tuple[float, float, float]

LEVELS: Final = (0.1, 0.5, 0.9)
LEAST: Final = 5
"""Minimum number of finished waits for a usual wait."""

NEWEST: Final = 60
"""Maximum number of the newest waits."""

FRESH: Final = 15.0
"""Number of newer waits after which the weight of a wait falls to a third."""

DRAINS: Final = (0.3, 0.7, 1.6)
"""Waits at the quantiles, relative to the time in which the same number of devices was
allocated."""


def usual_waits(ordered: Sequence[float], waited: float) -> Quantiles | None:
    """Return remaining waits of jobs that waited as long; of all jobs if those are few.

    Args:
        ordered: completed waits in seconds, shortest first.
        waited: wait of the job so far.
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
    """Estimate remaining waits from the newest and the open waits; None if too few have ended.

    Args:
        over: completed waits in seconds, in the order of their ends.
        going_on: waits so far of the jobs that still wait.
        waited: wait of the job so far.
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
    """Return the remaining wait by the time of the last equal drain; None after too few starts.

    Args:
        given: start times in seconds of jobs that had waited, and their devices (one or more); in
            the order of time.
        needed: devices of the job and of all jobs queued before it.
        now: the present.
        began: start of counting; if fewer devices were allocated since, the time is extrapolated.
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
    """Return the fraction of waits that end by each length; the last length has none after it."""
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
    # The end of the longest waits is unknown: they count as ended now.
    return [*steps, (marks[-1][0], 1.0)]


def _crossing(steps: Sequence[tuple[float, float]], level: float) -> float:
    """Time at which a line through the steps reaches the level."""
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
