"""Device utilisation and memory of jobs whose policies read them, from telemetry."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Final

from scheduling.runs.services.device_use import Used, followed_attempts, keep_uses
from workers.models import NodeTelemetry

MINUTE: Final = timedelta(minutes=1)
LOOKED_BACK: Final = timedelta(minutes=10)
#: Until then every node of a gang has reported its minute.
SETTLED: Final = timedelta(minutes=2)
#: Utilisation and memory in use of a node's devices, by the minute.
Readings = Mapping[int, Mapping[datetime, tuple[list[Any], list[Any]]]]


def sum_up_use(*, now: datetime) -> int:
    """Add the new minutes of telemetry to attempts; returns the number of attempts."""
    followed = followed_attempts()
    if not followed:
        return 0
    first = max(now - LOOKED_BACK, min(one.since for one in followed))
    readings = _readings({node for one in followed for node, _ in one.members}, first, now)
    changed = [after for one in followed if (after := _added(one, readings)) is not one]
    keep_uses(changed)
    return len(changed)


def _added(one: Used, readings: Readings) -> Used:
    """The use of one attempt with its new minutes; unchanged without any."""
    minutes = sorted(
        {
            minute
            for node, _devices in one.members
            for minute in readings.get(node, ())
            if minute >= one.since
        }
    )
    for minute in minutes:
        one = _with_minute(one, readings, minute)
    return one


def _with_minute(one: Used, readings: Readings, minute: datetime) -> Used:
    shares: list[float] = []
    bytes_used: list[int] = []
    for node, devices in one.members:
        busy, memory = readings.get(node, {}).get(minute, ([], []))
        shares += _told(busy, devices)
        bytes_used += _told(memory, devices)
    after = replace(one, since=minute + MINUTE)
    if bytes_used:
        after = replace(after, memory_peak=max(*bytes_used, one.memory_peak or 0))
    if shares:
        total = (one.busy or 0.0) * one.minutes + fmean(shares)
        after = replace(after, minutes=one.minutes + 1, busy=min(1.0, total / (one.minutes + 1)))
    return after


def _told(values: list[Any], devices: tuple[int, ...]) -> list[Any]:
    """The known values of some devices."""
    known = (values[index] for index in devices if index < len(values))
    return [value for value in known if value is not None]


def _readings(node_ids: set[int], since: datetime, now: datetime) -> Readings:
    rows = NodeTelemetry.objects.filter(
        node__in=node_ids, span_seconds=60, at__gte=since, at__lt=now - SETTLED
    )
    found: dict[int, dict[datetime, tuple[list[Any], list[Any]]]] = {}
    for node_id, at, busy, memory in rows.values_list(
        "node_id", "at", "utilisation", "memory_bytes"
    ):
        found.setdefault(node_id, {})[at] = (busy, memory)
    return found
