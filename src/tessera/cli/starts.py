"""When a job starts, in the words of the pages."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from tessera.ranges import start_range, units


def in_words(seconds: Mapping[str, Any], now: datetime) -> str:
    """A range of the API: ``in 15 min – 35 min``, ``in 2 h or later``; over 12 h by the clock.

    Args:
        seconds: ``p10`` and ``p90`` from now; ``open``: ``p90`` is only as far as was looked;
            ``gate``: for how long a gate stays closed.
        now: the present.
    """
    found = start_range(
        float(seconds["p10"]),
        inf if seconds.get("open") else seconds["p90"],
        soonest=float(seconds.get("gate") or 0.0),
    )
    if found is None:
        return "now"
    if found.is_point:
        return _point(found.low, now) if found.by_clock else f"in {_length(found.low)}"
    if found.high is None:
        if not found.low:
            return "at any time"
        return (
            f"{_clock(found.low, now)} or later"
            if found.by_clock
            else f"in {_length(found.low)} or later"
        )
    if found.by_clock:
        low, high = _clock(found.low, now), _clock(found.high, now)
        day, _, time = high.rpartition(" ")
        return f"{low} – {time if low.startswith(day) else high}"
    low, high = _length(found.low), _length(found.high)
    return f"in {low.split()[0] if found.has_one_unit else low} – {high}"


def _length(seconds: int) -> str:
    return " ".join(" ".join(pair) for pair in units(seconds))


def _point(seconds: int, now: datetime) -> str:
    day, time = _clock(seconds, now).rsplit(" ", 1)
    return f"at {time}" if day == "today" else f"{day} {time}"


def _clock(seconds: int, now: datetime) -> str:
    at = (now + timedelta(seconds=seconds)).astimezone(UTC)
    ahead = (at.date() - now.astimezone(UTC).date()).days
    day = {0: "today", 1: "tomorrow"}.get(ahead, f"{at.day} {at:%b}")
    return f"{day} {at:%H:%M}"
