"""Idle detection from telemetry, for jobs with an idle policy; unknown counts as busy."""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from scheduling.core.watching.idleness import IdleAction
from scheduling.watching.services.idling import Watched, look, watched
from workers.models import NodeTelemetry

log = logging.getLogger(__name__)

LOOKED_BACK: Final = timedelta(minutes=10)
Readings = Mapping[int, Mapping[datetime, list[float | None]]]


def look_at_idling(*, now: datetime) -> dict[int, IdleAction]:
    """Apply the idle policies of all watched jobs; returns the actions by job."""
    jobs = watched()
    if not jobs:
        return {}
    readings = _readings({node for one in jobs for node, _ in one.members}, now)
    done: dict[int, IdleAction] = {}
    for one in jobs:
        step = look(one, minutes_of(one, readings), now=now)
        if step is not IdleAction.NOTHING:
            done[one.job_id] = step
            log.info("job %s idles: %s", one.job_id, step)
    return done


def minutes_of(one: Watched, readings: Readings) -> dict[datetime, bool]:
    """Return by minute whether all of a job's devices are known to be idle.

    A minute without a reading of a node is left out; one with a busy or unknown device
    is False.
    """
    nodes = {node for node, _ in one.members}
    if not nodes:
        return {}
    common = set.intersection(*(set(readings.get(node, ())) for node in nodes))
    share = one.policy.below / 100
    return {
        minute: all(
            _idles(readings[node][minute], devices, share) for node, devices in one.members
        )
        for minute in common
        if minute >= one.running_at
    }


def _idles(busy: list[float | None], devices: Iterable[int], share: float) -> bool:
    values = [busy[index] if index < len(busy) else None for index in devices]
    return bool(values) and all(value is not None and value < share for value in values)


def _readings(node_ids: set[int], now: datetime) -> Readings:
    rows = NodeTelemetry.objects.filter(
        node__in=node_ids, span_seconds=60, at__gte=now - LOOKED_BACK, at__lt=now
    )
    found: dict[int, dict[datetime, list[float | None]]] = {}
    for node_id, at, busy in rows.values_list("node_id", "at", "utilisation"):
        found.setdefault(node_id, {})[at] = busy
    return found
