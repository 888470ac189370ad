"""What tenants and their people have used, and which virtual clusters a member may use."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum

from scheduling.models import UsageDay, VcLimit
from scheduling.selectors.hours import EVER, DeviceHours, leases_since, summed_until
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
    """Use of each tenant whose jobs the viewer may see, by tenant id, in four queries."""
    return _use_by(person=False, viewer=viewer, tenant_id=None, now=now)


def use_by_person(viewer: Viewer, tenant_id: int, *, now: datetime) -> Mapping[int, Use]:
    """Use of each person in one tenant, by user id, in four queries."""
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
    # Months that are closed, the days since, and what is in no day yet.
    whose = "user_id" if person else "tenant_id"
    closed_until, closed = EVER, UsedSoFar.objects.unscoped()
    for row in closed:
        closed_until = row.until
        if tenant_id in (None, row.tenant_id) and (visible is None or row.tenant_id in visible):
            seconds[getattr(row, whose), row.is_gpu] += row.seconds
    summed = summed_until()
    days: QuerySet[Any] = UsageDay.objects.unscoped().filter(day__gte=closed_until.date())
    whose = "owner_id" if person else "tenant_id"
    rows = _of(days, "", visible, tenant_id).order_by().values_list(whose, "is_gpu")
    for who, is_gpu, held in rows.annotate(total=Sum(F("guaranteed") + F("borrowed"))):
        seconds[who, is_gpu] += held
    leases = _of(leases_since(summed, now=now), "job__", visible, tenant_id)
    newest: Any = leases.values_list(f"job__{whose}", "device__is_gpu").annotate(
        total=Sum("held"), live=Count("id", filter=Q(released_at=None))
    )
    for who, is_gpu, total, live in newest:
        seconds[who, is_gpu] += max(total.total_seconds(), 0.0) if total else 0.0
        devices[who] += live
    return {
        who: Use(
            hours=DeviceHours(
                gpu=seconds.get((who, True), 0.0) / 3600,
                slot=seconds.get((who, False), 0.0) / 3600,
            ),
            devices=devices[who],
        )
        for who in {who for who, _ in seconds}
    }


def _of(
    rows: "QuerySet[Any]", prefix: str, visible: Collection[int] | None, tenant_id: int | None
) -> "QuerySet[Any]":
    if visible is not None:
        rows = rows.filter(**{f"{prefix}tenant_id__in": visible})
    return rows if tenant_id is None else rows.filter(**{f"{prefix}tenant_id": tenant_id})
