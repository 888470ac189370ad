"""Idle devices of a job of which other devices work, for a hint on its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from scheduling.runs.models import Member
from workers.models import NodeTelemetry

WINDOW: Final = timedelta(minutes=15)
LEAST_MINUTES: Final = 10
IDLE_BELOW: Final = 0.05
"""Share of a minute; a busier device works."""
Utilisation = Mapping[int, Sequence[Sequence[float | None]]]
"""Utilisation of the devices of a node, minute by minute, by node ID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleDevices:
    """Devices of a job that are idle while others work.

    Attributes:
        idle: number of devices that were idle in each observed minute.
        total: devices of the job.
        minutes: observed minutes.
    """

    idle: int
    total: int
    minutes: int


def idle_devices_of(job_id: int, *, now: datetime) -> IdleDevices | None:
    """Return the idle devices of a running job; None if all work, none works, or it is unknown.

    The caller has checked the rights.
    """
    members = Member.objects.filter(
        attempt__job=job_id, attempt__ended_at=None, attempt__running_at__lte=now - WINDOW
    )
    places = [
        (node, index)
        for node, devices in members.values_list("node_id", "devices")
        for index in devices
    ]
    if len(places) < 2:
        return None
    rows = NodeTelemetry.objects.filter(
        node__in={node for node, _ in places}, span_seconds=60, at__gte=now - WINDOW, at__lt=now
    )
    seen: dict[int, list[list[float | None]]] = {}
    for node, busy in rows.values_list("node_id", "utilisation"):
        seen.setdefault(node, []).append(busy)
    return idle_among(places, seen)


def idle_among(places: Sequence[tuple[int, int]], seen: Utilisation) -> IdleDevices | None:
    """Count the devices that were idle in each minute, if another one worked in each minute.

    Args:
        places: node ID and index of each device of the job.
        seen: utilisation of its nodes; a minute without a value of a device is no idle minute.
    """
    minutes = min((len(seen.get(node, ())) for node, _ in places), default=0)
    if minutes < LEAST_MINUTES:
        return None
    idle = working = 0
    for node, index in places:
        values = [busy[index] if index < len(busy) else None for busy in seen[node]]
        idle += all(value is not None and value < IDLE_BELOW for value in values)
        working += all(value is not None and value >= IDLE_BELOW for value in values)
    if not idle or not working:
        return None
    return IdleDevices(idle=idle, total=len(places), minutes=minutes)
