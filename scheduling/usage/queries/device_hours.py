"""Charged device hours: GPU-hours and slot-hours, counted apart, from when processes ran.

A device is charged from the start of its process to its end, both by the node (see
``scheduling.core.charging``); while it is only leased, for preparation or until its gang has left
as a whole, it is free.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import (
    Case,
    Count,
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Greatest

from scheduling.clusters.models import VcLimit
from scheduling.enums import LeaseKind, MemberStep
from scheduling.runs.models import Lease
from scheduling.usage.models import UsageDay, UsageMark
from tenants.models import UsedSoFar
from tenants.roles import Permission
from tenants.viewers import Viewer

EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHours:
    """Use of a job in hours of one device; a declared CPU slot is not a GPU."""

    gpu: float = 0.0
    slot: float = 0.0


def hours_of_jobs(job_ids: Iterable[int], *, now: datetime) -> Mapping[int, DeviceHours]:
    """Hours by job up to ``now``, in one query; the caller has checked that they may be seen."""
    found: dict[int, dict[bool, float]] = defaultdict(dict)
    for job_id, is_gpu, total in (
        Lease.objects.filter(job_id__in=list(job_ids), kind=LeaseKind.USING)
        .order_by()
        .values_list("job_id", "device__is_gpu")
        .annotate(total=Sum(charged_until(now)))
    ):
        found[job_id][is_gpu] = max(total.total_seconds(), 0.0) / 3600 if total else 0.0
    return {
        job_id: DeviceHours(gpu=hours.get(True, 0.0), slot=hours.get(False, 0.0))
        for job_id, hours in found.items()
    }


def charged_until(now: datetime, *, since: datetime = EVER) -> Any:
    """End of the charge of a lease after ``since``; up to ``now`` if in use."""
    at = DateTimeField()
    begun = Greatest(F("member__started_at"), Value(since, output_field=at))
    ended = Coalesce(F("member__exited_at"), F("released_at"), Value(now, output_field=at))
    span = ExpressionWrapper(ended - begun, output_field=DurationField())
    # GREATEST ignores NULL in PostgreSQL: a process that has not started must not count.
    return Case(
        When(member__started_at__isnull=False, member__started_at__lt=now, then=span),
        default=Value(timedelta(), output_field=DurationField()),
        output_field=DurationField(),
    )


def summed_until() -> datetime:
    """The end of the use in the rows of days; later use is in the leases alone."""
    return UsageMark.objects.values_list("summed_until", flat=True).first() or EVER


def leases_since(instant: datetime, *, now: datetime) -> QuerySet[Lease]:
    """Leases that hold after an instant, each with its charge (``charged``) since then.

    The charge is negative if earlier sums charged a process beyond its end, which was observed
    only later. An end known to the sums adds nothing, even while the rest of the gang runs.
    """
    until = Value(now, output_field=DateTimeField())
    was_known = Q(member__step_since__lte=instant) | Q(member__step=MemberStep.RELEASED)
    charged = Case(
        When(Q(member__exited_at__lte=instant) & was_known, then=Value(timedelta())),
        default=charged_until(now, since=instant),
        output_field=DurationField(),
    )
    return (
        # Almost every lease was taken before now: as an expression, no index by that is walked,
        # but the one of ends.
        Lease.objects.alias(begun=Coalesce(F("taken_at"), until))
        .filter(
            Q(released_at=None) | Q(released_at__gt=instant), kind=LeaseKind.USING, begun__lt=until
        )
        .annotate(charged=charged)
        .order_by()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Past and present use.

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


def use_together(uses: Iterable[Use]) -> Use:
    """The sum of several uses: of a tenant, those of its people."""
    uses = tuple(uses)
    return Use(
        hours=DeviceHours(
            gpu=sum(use.hours.gpu for use in uses), slot=sum(use.hours.slot for use in uses)
        ),
        devices=sum(use.devices for use in uses),
    )


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
    # Read before the days: without rows of days, leases count from this mark.
    mark = summed_until()
    seconds, told = _seconds_of_days(person=person, visible=visible, tenant_id=tenant_id)
    summed = told or mark
    devices: dict[int, int] = defaultdict(int)
    # Use after the last day, of all tenants: for one tenant, the database would begin with
    # all past jobs of the tenant. Sums that the viewer may not see are dropped below.
    newest: Any = (
        leases_since(summed, now=now)
        .order_by()
        .values_list("job__tenant_id", "job__owner_id", "device__is_gpu")
        .annotate(total=Sum("charged"), live=Count("id", filter=Q(released_at=None)))
    )
    for tenant, owner, is_gpu, total, live in newest:
        if tenant_id not in (None, tenant) or (visible is not None and tenant not in visible):
            continue
        who = owner if person else tenant
        seconds[who, is_gpu] += total.total_seconds() if total else 0.0
        devices[who] += live
    return {
        who: Use(
            hours=DeviceHours(
                gpu=max(seconds.get((who, True), 0.0), 0.0) / 3600,
                slot=max(seconds.get((who, False), 0.0), 0.0) / 3600,
            ),
            devices=devices[who],
        )
        for who in {who for who, _ in seconds}
    }


def _seconds_of_days(
    *, person: bool, visible: frozenset[int] | None, tenant_id: int | None
) -> tuple[dict[tuple[int, bool], float], datetime | None]:
    """Device seconds by whose they are and whether of a GPU: closed months, and the days since.

    With them up to when the days are summed up; None where there are none.
    """
    seconds: dict[tuple[int, bool], float] = defaultdict(float)
    whose = "user_id" if person else "tenant_id"
    closed_until = EVER
    for row in UsedSoFar.objects.unscoped():
        closed_until = row.until
        if tenant_id in (None, row.tenant_id) and (visible is None or row.tenant_id in visible):
            seconds[getattr(row, whose), row.is_gpu] += row.seconds
    days: QuerySet[Any] = UsageDay.objects.unscoped().filter(day__gte=closed_until.date())
    if visible is not None:
        days = days.filter(tenant_id__in=visible)
    if tenant_id is not None:
        days = days.filter(tenant_id=tenant_id)
    whose = "owner_id" if person else "tenant_id"
    rows = days.order_by().values_list(whose, "is_gpu")
    summed = None
    # In one statement, or days might be summed up between the two, and then count twice.
    mark = Subquery(UsageMark.objects.values("summed_until")[:1])
    for who, is_gpu, held, until in rows.annotate(
        total=Sum(F("guaranteed") + F("borrowed")), summed=mark
    ):
        seconds[who, is_gpu] += held
        summed = until
    return seconds, summed
