"""What tenants and their people have used, and which virtual clusters a member may use."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Q, Sum

from scheduling.enums import LeaseKind
from scheduling.models import Lease, VcLimit
from scheduling.selectors.hours import EVER, DeviceHours, held_until, runs_since
from tenants.models import UsedSoFar
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What somebody has held so far, and holds now.

    Attributes:
        hours: of GPUs and of declared CPU slots, counted apart, up to now.
        devices: held at this moment.
    """

    hours: DeviceHours
    devices: int


NO_USE = Use(hours=DeviceHours(), devices=0)


def use_by_tenant(viewer: Viewer, *, now: datetime) -> Mapping[int, Use]:
    """Use of each tenant whose jobs the viewer may see, by tenant id, in two queries."""
    return _use_by(person=False, viewer=viewer, tenant_id=None, now=now)


def use_by_person(viewer: Viewer, tenant_id: int, *, now: datetime) -> Mapping[int, Use]:
    """Use of each person in one tenant, by user id, in two queries."""
    return _use_by(person=True, viewer=viewer, tenant_id=tenant_id, now=now)


def limits_of_members(viewer: Viewer, tenant_id: int) -> Mapping[int, tuple[str, ...]]:
    """Names of the only virtual clusters that a member may use, by membership id.

    Members that are missing may use all of the tenant's.
    """
    viewer.require(Permission.VIEW_MEMBERS, tenant_id, what="the members of the tenant")
    found: dict[int, list[str]] = defaultdict(list)
    for membership_id, name in (
        VcLimit.objects.filter(membership__tenant_id=tenant_id)
        .order_by("virtual_cluster__name")
        .values_list("membership_id", "virtual_cluster__name")
    ):
        found[membership_id].append(name)
    return {membership_id: tuple(names) for membership_id, names in found.items()}


def _use_by(
    *, person: bool, viewer: Viewer, tenant_id: int | None, now: datetime
) -> Mapping[int, Use]:
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    seconds: dict[tuple[int, bool], float] = defaultdict(float)
    devices: dict[int, int] = defaultdict(int)
    until = EVER
    for row in UsedSoFar.objects.unscoped():
        until = row.until
        if tenant_id in (None, row.tenant_id) and (visible is None or row.tenant_id in visible):
            seconds[row.user_id if person else row.tenant_id, row.is_gpu] += row.seconds
    leases = Lease.objects.filter(attempt_id__in=runs_since(until), kind=LeaseKind.USING)
    if visible is not None:
        leases = leases.filter(job__tenant_id__in=visible)
    if tenant_id is not None:
        leases = leases.filter(job__tenant_id=tenant_id)
    rows: Any = (
        leases.order_by()
        .values_list("job__owner_id" if person else "job__tenant_id", "device__is_gpu")
        .annotate(total=Sum(held_until(now)), live=Count("id", filter=Q(released_at=None)))
    )
    for whose, is_gpu, total, live in rows:
        seconds[whose, is_gpu] += max(total.total_seconds(), 0.0) if total else 0.0
        devices[whose] += live
    return {
        whose: Use(
            hours=DeviceHours(
                gpu=seconds.get((whose, True), 0.0) / 3600,
                slot=seconds.get((whose, False), 0.0) / 3600,
            ),
            devices=devices[whose],
        )
        for whose in {whose for whose, _ in seconds}
    }
