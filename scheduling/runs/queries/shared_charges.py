"""Charges of jobs that share a device as equals: each moment is divided among them."""

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime
from typing import Final

from django.db.models import Q

from scheduling.core.sharing.divided_time import Span, divided_seconds
from scheduling.enums import LeaseKind
from scheduling.runs.models import Lease

CHARGED: Final = Q(kind=LeaseKind.USING) | Q(is_peer=True)
"""Leases that are charged: those of holders, and of the equals beside them."""


def divided_charges(
    devices: Collection[int], *, until: datetime, since: datetime | None = None
) -> dict[int, float]:
    """Return the charged seconds of each lease on devices that equals share, by lease ID.

    Args:
        devices: IDs of the devices.
        until: end of the period; running processes are charged until then.
        since: begin of the period; None for the begin of each process.
    """
    if not devices:
        return {}
    rows = Lease.objects.filter(CHARGED, device_id__in=devices, taken_at__lt=until)
    if since is not None:
        rows = rows.filter(Q(released_at=None) | Q(released_at__gt=since))
    spans: dict[int, dict[int, Span]] = defaultdict(dict)
    for pk, device, taken, started, exited, released in rows.order_by("id").values_list(
        "id", "device_id", "taken_at", "member__started_at", "member__exited_at", "released_at"
    ):
        if started is None:
            continue
        # A promotion ends a lease while the process runs, and begins another one.
        begin = max(at for at in (started, taken, since) if at is not None)
        end = min(at for at in (exited, released, until) if at is not None)
        spans[device][pk] = begin.timestamp(), end.timestamp()
    return {
        pk: seconds
        for of_device in spans.values()
        for pk, seconds in zip(of_device, divided_seconds(list(of_device.values())), strict=True)
    }


def shared_devices_of(attempt_ids: Collection[int]) -> list[int]:
    """Return the devices on which some attempts have run with equals."""
    rows = Lease.objects.filter(
        Q(beside__attempt_id__in=attempt_ids) | Q(attempt_id__in=attempt_ids), is_peer=True
    )
    return sorted(set(rows.order_by().values_list("device_id", flat=True)))


def charges_of_attempts(attempt_ids: Collection[int], *, until: datetime) -> dict[int, float]:
    """Return the charged device-seconds of attempts with equals, by attempt ID."""
    devices = shared_devices_of(attempt_ids)
    charges = divided_charges(devices, until=until)
    found: dict[int, float] = defaultdict(float)
    rows = Lease.objects.filter(pk__in=charges, attempt_id__in=attempt_ids)
    for pk, attempt in rows.order_by().values_list("id", "attempt_id"):
        found[attempt] += charges[pk]
    return dict(found)
