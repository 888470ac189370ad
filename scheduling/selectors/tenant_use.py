"""What tenants and their people have used, and which virtual clusters a member may use."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import (
    Count,
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Q,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce

from scheduling.enums import LeaseKind
from scheduling.models import Lease, VcLimit
from scheduling.selectors.hours import DeviceHours
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
    """Use of each tenant whose jobs the viewer may see, by tenant id, in one query."""
    return _use_by("job__tenant_id", viewer, Q(), now)


def use_by_person(viewer: Viewer, tenant_id: int, *, now: datetime) -> Mapping[int, Use]:
    """Use of each person in one tenant, by user id, in one query."""
    return _use_by("job__owner_id", viewer, Q(job__tenant_id=tenant_id), now)


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


def _use_by(key: str, viewer: Viewer, narrowed: Q, now: datetime) -> Mapping[int, Use]:
    until = Coalesce(F("released_at"), Value(now, output_field=DateTimeField()))
    held = ExpressionWrapper(until - F("taken_at"), output_field=DurationField())
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    leases = Lease.objects.filter(narrowed, kind=LeaseKind.USING)
    if visible is not None:
        leases = leases.filter(job__tenant_id__in=visible)
    rows: Any = (
        leases.order_by()
        .values_list(key, "device__is_gpu")
        .annotate(total=Sum(held), live=Count("id", filter=Q(released_at=None)))
    )
    hours: dict[int, dict[bool, float]] = defaultdict(dict)
    devices: dict[int, int] = defaultdict(int)
    for whose, is_gpu, total, live in rows:
        hours[whose][is_gpu] = max(total.total_seconds(), 0.0) / 3600 if total else 0.0
        devices[whose] += live
    return {
        whose: Use(
            hours=DeviceHours(gpu=parts.get(True, 0.0), slot=parts.get(False, 0.0)),
            devices=devices[whose],
        )
        for whose, parts in hours.items()
    }
