"""When a job starts, in the words of the pages."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import inf
from typing import Any

from tessera.cli.times import shown
from tessera.ranges import StartRange, start_range, units


def in_words(seconds: Mapping[str, Any], now: datetime, *, utc: bool = False) -> str:
    """A range of the API: ``in 15 min – 35 min``; over 12 h ``today 20:00 – 21:30 CET``.

    Args:
        seconds: ``p10`` and ``p90`` from now; ``open``: ``p90`` is only as far as was looked;
            ``gate``: for how long a gate stays closed.
        now: the present.
        utc: show times of the day in UTC, else in the local time zone.
    """
    found = start_range(
        float(seconds["p10"]),
        inf if seconds.get("open") else seconds["p90"],
        soonest=float(seconds.get("gate") or 0.0),
    )
    if found is None:
        return "now"
    if found.by_clock:
        zone = shown(now + timedelta(seconds=found.low), utc=utc).tzname()
        return f"{_by_the_clock(found, now, utc=utc)} {zone}"
    if found.is_point:
        return f"in {_length(found.low)}"
    if found.high is None:
        return f"in {_length(found.low)} or later" if found.low else "at any time"
    low, high = _length(found.low), _length(found.high)
    return f"in {low.split()[0] if found.has_one_unit else low} – {high}"


def _by_the_clock(found: StartRange, now: datetime, *, utc: bool) -> str:
    low = _clock(found.low, now, utc=utc)
    day, _, time = low.rpartition(" ")
    if found.is_point:
        return f"at {time}" if day == "today" else low
    if found.high is None:
        return f"{low} or later"
    high = _clock(found.high, now, utc=utc)
    last_day, _, last_time = high.rpartition(" ")
    return f"{low} – {last_time if last_day == day else high}"


def _length(seconds: int) -> str:
    return " ".join(" ".join(pair) for pair in units(seconds))


def _clock(seconds: int, now: datetime, *, utc: bool) -> str:
    at = shown(now + timedelta(seconds=seconds), utc=utc)
    ahead = (at.date() - shown(now, utc=utc).date()).days
    day = {0: "today", 1: "tomorrow"}.get(ahead, f"{at.day} {at:%b}")
    return f"{day} {at:%H:%M}"
