"""Alarms for almost full disks of nodes and of hosts of the control plane.

Admins get one notification by mail and webhooks, and the next one only after the disk had enough
free space.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from scheduling.clusters.models import Node
from scheduling.notices.services.outbox import put_host_disk, put_node_disk
from workers.models import DiskAlarm, Heartbeat
from workers.transports.base import NodeLoad

_MEBI: Final = 1 << 20
LEAST_FREE_BYTES: Final = 512 * _MEBI
LEAST_FREE_SHARE: Final = 0.05
ENOUGH_FREE_BYTES: Final = 10 << 30
MOST_SHARE: Final = 0.1
ENDS_AT: Final = 1.25
"""Multiple of the free space of an alarm at which it ends, to avoid flapping."""
FRESH: Final = timedelta(seconds=30)
"""Maximum age of the heartbeat of a live process."""


def least_free(total_bytes: int) -> float:
    """Return the free bytes below which a file system is almost full.

    5 % of its size, at least 512 MiB and at most 10 GiB, but at most a tenth of the size.
    """
    wanted = min(max(LEAST_FREE_BYTES, LEAST_FREE_SHARE * total_bytes), ENOUGH_FREE_BYTES)
    return min(wanted, MOST_SHARE * total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Free bytes and size of a file system, for the account that writes there."""

    free_bytes: int
    total_bytes: int

    @property
    def is_almost_full(self) -> bool:
        """Return whether an alarm is due."""
        return self.free_bytes < least_free(self.total_bytes)

    @property
    def is_enough(self) -> bool:
        """Return whether an alarm ends."""
        return self.free_bytes >= ENDS_AT * least_free(self.total_bytes)

    def as_facts(self) -> dict[str, int]:
        """Return free bytes and size, for events."""
        return {"disk_free_bytes": self.free_bytes, "disk_total_bytes": self.total_bytes}


def look_at_hosts(*, now: datetime) -> int:
    """Raise and end the alarms of the data directories of all hosts; return the number of new
    alarms.

    Alarms of hosts without a live process remain.
    """
    rows = Heartbeat.objects.filter(at__gt=now - FRESH, disk_total_bytes__gt=0)
    columns = ("host", "disk_free_bytes", "disk_total_bytes")
    rooms = {
        host: DiskSpace(free_bytes=free, total_bytes=total)
        for host, free, total in rows.order_by("at").values_list(*columns)
    }
    known = set(DiskAlarm.objects.filter(node=None).values_list("host", flat=True))
    return sum(_look_at_host(host, room, host in known, now) for host, room in rooms.items())


@transaction.atomic
def _look_at_host(host: str, room: DiskSpace, is_known: bool, now: datetime) -> bool:
    if is_known and room.is_enough:
        DiskAlarm.objects.filter(node=None, host=host).delete()
    if is_known or not room.is_almost_full:
        return False
    _, is_new = DiskAlarm.objects.get_or_create(node=None, host=host, defaults={"since": now})
    if is_new:
        put_host_disk(name=host, facts=room.as_facts(), now=now)
    return is_new


@transaction.atomic
def look_at_node(*, node_id: int, readings: Sequence[NodeLoad], now: datetime) -> bool:
    """Raise or end the alarm of a node's disk; return whether it was raised."""
    room = _room_of(readings)
    if room is None or not (room.is_almost_full or room.is_enough):
        return False
    if room.is_enough:
        DiskAlarm.objects.filter(node_id=node_id).delete()
        return False
    name = Node.objects.filter(pk=node_id, removed_at=None).values_list("name", flat=True).first()
    if name is None:
        return False
    _, is_new = DiskAlarm.objects.get_or_create(node_id=node_id, defaults={"since": now})
    if is_new:
        put_node_disk(node_id=node_id, name=name, facts=room.as_facts(), now=now)
    return is_new


def _room_of(readings: Sequence[NodeLoad]) -> DiskSpace | None:
    measured = [reading for reading in readings if reading.disk_total_bytes]
    if not measured:
        return None
    newest = measured[-1]
    return DiskSpace(
        free_bytes=newest.disk_free_bytes or 0, total_bytes=newest.disk_total_bytes or 0
    )
