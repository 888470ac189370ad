"""Rounding and units of time ranges, for pages and command line."""

import math
from dataclasses import dataclass
from typing import Final

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
BY_THE_CLOCK: Final = 12 * HOUR
"""Limit in seconds above which a range is shown as times of the day, not as durations."""
_STEPS: Final = (
    (20, 1),
    (90, 5),
    (10 * MINUTE, MINUTE),
    (HOUR, 5 * MINUTE),
    (4 * HOUR, 15 * MINUTE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRange:
    """A start or an end between two times, rounded outwards.

    Attributes:
        low: seconds from now.
        high: seconds from now; None if beyond the horizon.
        by_clock: shown as times of the day, not as durations.
        is_point: both ends are the time at which a gate opens.
    """

    low: int
    high: int | None
    by_clock: bool
    is_point: bool = False

    @property
    def has_one_unit(self) -> bool:
        """Return whether both ends use the same unit, as in *15 – 35 min*."""
        both = [units(end) for end in (self.low, self.high) if end is not None]
        return len(both) == 2 and len({unit for parts in both for _, unit in parts}) == 1


def start_range(p10: float, p90: float, *, soonest: float = 0.0) -> StartRange | None:
    """Return the displayed range of a start, or None if it starts now.

    Args:
        p10: 10 % quantile, seconds from now.
        p90: 90 % quantile, seconds from now; infinite if beyond the horizon.
        soonest: seconds from now until a gate opens; no range begins earlier.
    """
    if p90 <= 0:
        return None
    gate = _rounded_up(soonest)
    if soonest > 0 and p90 <= soonest:
        return StartRange(low=gate, high=gate, by_clock=gate >= MINUTE, is_point=True)
    low = max(_outwards(p10, up=False), gate)
    if math.isinf(p90):
        return StartRange(low=low, high=None, by_clock=p10 > BY_THE_CLOCK)
    high = max(_outwards(p90, up=True), low)
    if p90 <= BY_THE_CLOCK and low == high:
        high += 1 if high < MINUTE else MINUTE
    return StartRange(low=low, high=high, by_clock=p90 > BY_THE_CLOCK)


def _rounded_up(seconds: float) -> int:
    """Round up to whole seconds below a minute, then to whole minutes."""
    step = 1 if seconds < MINUTE else MINUTE
    return step * math.ceil(max(0.0, seconds) / step)


def units(whole: int) -> tuple[tuple[str, str], ...]:
    """Split a duration in seconds into at most two units: ``("5", "h"), ("13", "min")``."""
    if whole < MINUTE:
        return ((str(whole), "s"),)
    if whole < HOUR:
        minutes, rest = divmod(whole, MINUTE)
        return _two((minutes, "min"), (rest if minutes < 5 else 0, "s"))
    if whole < DAY:
        hours, rest = divmod(round(whole / MINUTE), MINUTE)
        return _two((hours, "h"), (rest, "min"), digits=2)
    days, rest = divmod(round(whole / HOUR), 24)
    return _two((days, "d"), (rest, "h"))


def _two(
    first: tuple[int, str], second: tuple[int, str], *, digits: int = 1
) -> tuple[tuple[str, str], ...]:
    found = (str(first[0]), first[1])
    return (found, (f"{second[0]:0{digits}}", second[1])) if second[0] else (found,)


def _outwards(seconds: float, *, up: bool) -> int:
    """Round to about a tenth: steps of 1 s, 5 s, 1, 5, 15 and 30 min as the value grows."""
    step = next((step for limit, step in _STEPS if seconds < limit), 30 * MINUTE)
    scaled = max(0.0, seconds) / step
    return step * (math.ceil(scaled) if up else math.floor(scaled))
