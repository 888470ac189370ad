"""State of coordinators, from the telemetry of nodes: one row for each device with guests."""

from collections.abc import Sequence
from datetime import datetime

from scheduling.enums import LeaseKind
from scheduling.runs.models import Lease, SharedDevice
from tessera.run_spec import make_run_id
from workers.transports.base import DeviceReading

_COLUMNS = (
    "baseline", "loss", "loss_low", "loss_high", "open", "account", "reserve", "closings",
    "delay_seconds", "memory_free",
)  # fmt: skip


def keep_shared(*, node_id: int, devices: Sequence[DeviceReading], now: datetime) -> int:
    """Store the state of each coordinator; returns the number of devices.

    A state is stored only for a device that the named run holds, and guests only if they have a
    lease of the device. A node can thus report nothing about jobs of other nodes.

    Args:
        node_id: the reporting node.
        devices: its newest readings, by device number.
        now: time to store.
    """
    newest = {device.index: device.company for device in devices if device.company is not None}
    if not newest:
        return 0
    leases = Lease.objects.filter(
        device__node_id=node_id, device__index__in=list(newest), released_at=None
    ).values_list(
        "device_id", "device__index", "kind", "member_id", "job_id",
        "attempt__uid", "member__role", "member__rank",
    )  # fmt: skip
    holders: dict[int, tuple[int, int, str]] = {}
    guests: dict[tuple[int, str], int] = {}
    for device_id, index, kind, member_id, job_id, uid, role, rank in leases:
        run_id = make_run_id(uid, role, rank)
        if kind == LeaseKind.GUEST:
            guests[index, run_id] = job_id
        elif kind == LeaseKind.USING:
            holders[index] = device_id, member_id, run_id
    rows = []
    for index, company in newest.items():
        if index not in holders or holders[index][2] != company.holder_run_id:
            continue
        device_id, member_id, _ = holders[index]
        rows.append(
            SharedDevice(
                device_id=device_id,
                holder_id=member_id,
                at=now,
                guests=[
                    {**guest.to_json(), "job": guests[index, guest.run_id]}
                    for guest in company.guests
                    if (index, guest.run_id) in guests
                ],
                **{name: getattr(company, name) for name in _COLUMNS},
            )
        )
    SharedDevice.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["device"],
        update_fields=["holder", "at", "guests", *_COLUMNS],
    )
    return len(rows)
