"""Which job is on which device now, as far as the viewer may know."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduling.enums import LeaseKind
from scheduling.models import Lease
from tenants.roles import Permission
from tenants.viewers import Viewer

_COLUMNS: Final = (
    "device_id",
    "kind",
    "virtual_cell",
    "attempt__uid",
    "job_id",
    "job__tenant_id",
    "job__virtual_cluster_id",
    "job__virtual_cluster__name",
    "job__name",
    "job__owner__username",
    "job__state",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """What holds a device.

    Attributes:
        allocation: tells allocations apart; opaque.
        tenant: its name, or "another tenant".
        job_id: None when the viewer may not see the job; then name, user and VC are empty.
        opportunistic: it is outside its virtual cluster's guarantee.
        reserved: the device is claimed, and its present user is leaving.
    """

    allocation: str
    tenant: str
    job_id: int | None
    name: str
    user: str
    virtual_cluster: str
    state: str
    opportunistic: bool
    reserved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLease:
    """A lease that is not released, before anything is hidden; for counting only."""

    device_id: int
    job_id: int
    tenant_id: int
    virtual_cluster_id: int
    virtual_cell: str
    reserved: bool

    @property
    def opportunistic(self) -> bool:
        """Whether the device is outside its virtual cluster's guarantee."""
        return not self.virtual_cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The live leases, and by device what may be shown of them."""

    leases: tuple[LiveLease, ...]
    by_device: Mapping[int, Occupant]


def occupancy(viewer: Viewer, *, node_id: int | None = None) -> Occupancy:
    """All live leases, or those of one node, in one query; the user of a device before a claim."""
    rows = Lease.objects.filter(released_at=None)
    if node_id is not None:
        rows = rows.filter(device__node_id=node_id)
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    leases: list[LiveLease] = []
    by_device: dict[int, Occupant] = {}
    seen: dict[tuple[str, bool, bool], Occupant] = {}
    for row in rows.values_list(*_COLUMNS).iterator(chunk_size=2000):
        lease = LiveLease(
            device_id=row[0],
            job_id=row[4],
            tenant_id=row[5],
            virtual_cluster_id=row[6],
            virtual_cell=row[2],
            reserved=row[1] == LeaseKind.RESERVED,
        )
        leases.append(lease)
        key = (row[3], lease.opportunistic, lease.reserved)
        if key not in seen:
            is_visible = visible is None or lease.tenant_id in visible
            seen[key] = _occupant(viewer, lease, row, is_visible=is_visible)
        if not lease.reserved or lease.device_id not in by_device:
            by_device[lease.device_id] = seen[key]
    return Occupancy(leases=tuple(leases), by_device=by_device)


def _occupant(
    viewer: Viewer, lease: LiveLease, row: tuple[Any, ...], *, is_visible: bool
) -> Occupant:
    return Occupant(
        allocation=hashlib.sha256(row[3].encode()).hexdigest()[:12],
        tenant=viewer.name_of(lease.tenant_id),
        job_id=lease.job_id if is_visible else None,
        name=row[8] if is_visible else "",
        user=row[9] if is_visible else "",
        virtual_cluster=row[7] if is_visible else "",
        state=row[10],
        opportunistic=lease.opportunistic,
        reserved=lease.reserved,
    )
