"""Device use of jobs from telemetry, for policies and the detection of idle jobs."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Final

from scheduling.core.watching.idleness import IdleAction, IdleScope, Places
from scheduling.runs.services.progress import Used, followed_attempts, keep_uses
from scheduling.watching.services.idling import Watched, look, watched
from workers.models import NodeTelemetry

log = logging.getLogger(__name__)

MINUTE: Final = timedelta(minutes=1)
LOOKED_BACK: Final = timedelta(minutes=10)
#: Until then every node of a gang has reported its minute.
SETTLED: Final = timedelta(minutes=2)
#: Utilisation and memory in use of a node's devices, by the minute.
Readings = Mapping[int, Mapping[datetime, tuple[list[Any], list[Any]]]]
#: Utilisation alone.
BusyReadings = Mapping[int, Mapping[datetime, list[float | None]]]


def sum_up_use(*, now: datetime) -> int:
    """Add new minutes of telemetry to attempts; return the number of changed attempts."""
    followed = followed_attempts()
    if not followed:
        return 0
    first = max(now - LOOKED_BACK, min(one.since for one in followed))
    readings = _readings({node for one in followed for node, _ in one.members}, first, now)
    changed = [after for one in followed if (after := _added(one, readings)) is not one]
    keep_uses(changed)
    return len(changed)


def _added(one: Used, readings: Readings) -> Used:
    """Return the use of an attempt, including its new minutes."""
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
    """Return the known values of some devices."""
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


def look_at_idling(*, now: datetime) -> dict[int, IdleAction]:
    """Apply the idle policies of all watched jobs; returns the actions by job."""
    jobs = watched()
    if not jobs:
        return {}
    readings = _busy_readings({node for one in jobs for node, _ in one.members}, now)
    done: dict[int, IdleAction] = {}
    for one in jobs:
        step = look(one, minutes_of(one, readings), now=now)
        if step is not IdleAction.NOTHING:
            done[one.job_id] = step
            log.info("job %s idles: %s", one.job_id, step)
    return done


def minutes_of(one: Watched, readings: BusyReadings) -> dict[datetime, Places]:
    """Return by minute the devices of a job that are known to be idle, as its policy counts them.

    Minutes without a sample of a node are omitted; a busy or unknown device is not idle. A policy
    for all devices counts none while one of them is busy.
    """
    nodes = {node for node, _ in one.members}
    if not nodes:
        return {}
    common = set.intersection(*(set(readings.get(node, ())) for node in nodes))
    share, every = one.policy.below / 100, one.places
    found = {}
    for minute in common:
        if minute < one.running_at:
            continue
        idle = frozenset(
            (node, index) for node, index in every if _idles(readings[node][minute], index, share)
        )
        is_counted = idle == every or one.policy.devices is IdleScope.ANY
        found[minute] = idle if is_counted else frozenset()
    return found


def _idles(busy: list[float | None], index: int, share: float) -> bool:
    value = busy[index] if index < len(busy) else None
    return value is not None and value < share


def _busy_readings(node_ids: set[int], now: datetime) -> BusyReadings:
    rows = NodeTelemetry.objects.filter(
        node__in=node_ids, span_seconds=60, at__gte=now - LOOKED_BACK, at__lt=now
    )
    found: dict[int, dict[datetime, list[float | None]]] = {}
    for node_id, at, busy in rows.values_list("node_id", "at", "utilisation"):
        found.setdefault(node_id, {})[at] = busy
    return found
