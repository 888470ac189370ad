"""Charged GPU-hours and slot-hours of jobs, tenants and people.

A device is charged from the start of its process to its end on the node (see
``scheduling.core.charging``). A lease without a process, during preparation or until the whole
gang has left, costs nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
    Max,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Greatest

from scheduling.clusters.models import VcLimit
from scheduling.core.charging import charged_seconds
from scheduling.enums import LeaseKind, MemberStep
from scheduling.runs.models import Lease
from scheduling.runs.queries.shared_charges import (
    CHARGED,
    divided_charges,
    shared_devices_of,
)
from scheduling.usage.models import UsageDay, UsageMark
from tenants.models import UsedSoFar
from tenants.roles import Permission
from tenants.viewers import Viewer

EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHours:
    """Use in hours of one device; a declared CPU slot is not a GPU."""

    gpu: float = 0.0
    slot: float = 0.0


def hours_of_jobs(job_ids: Iterable[int], *, now: datetime) -> Mapping[int, DeviceHours]:
    """Return the hours of each job up to ``now``, in one query.

    Jobs that have shared a device cost further queries. The caller has checked that the viewer may
    see the jobs.
    """
    found: dict[int, dict[bool, float]] = defaultdict(dict)
    shared: set[int] = set()
    for job_id, is_gpu, total, peers, orders in (
        Lease.objects.filter(CHARGED, job_id__in=list(job_ids))
        .order_by()
        .values_list("job_id", "device__is_gpu")
        .annotate(
            total=Sum(charged_until(now)),
            peers=Count("id", filter=Q(is_peer=True)),
            orders=Max("member__share_version"),
        )
    ):
        found[job_id][is_gpu] = max(total.total_seconds(), 0.0) / 3600 if total else 0.0
        if peers or orders:
            shared.add(job_id)
    if shared:
        _divide(found, shared, now)
    return {
        job_id: DeviceHours(gpu=hours.get(True, 0.0), slot=hours.get(False, 0.0))
        for job_id, hours in found.items()
    }


def _divide(found: dict[int, dict[bool, float]], job_ids: set[int], now: datetime) -> None:
    """Correct the hours of jobs that have shared devices as equals."""
    rows = Lease.objects.filter(CHARGED, job_id__in=job_ids).select_related("member", "device")
    leases = list(rows.order_by())
    devices = shared_devices_of({lease.attempt_id for lease in leases})
    charges = divided_charges(devices, until=now)
    for lease in leases:
        if lease.pk in charges:
            ended = [at for at in (lease.member.exited_at, lease.released_at) if at is not None]
            full = charged_seconds(
                lease.member.started_at, min(ended, default=None), since=lease.taken_at, until=now
            )
            hours = found[lease.job_id]
            more = (charges[lease.pk] - full) / 3600
            hours[lease.device.is_gpu] = max(hours[lease.device.is_gpu] + more, 0.0)


def charged_until(now: datetime, *, since: datetime = EVER) -> Any:
    """Return an expression for the charge of a lease between ``since`` and ``now``."""
    at = DateTimeField()
    # A promoted guest holds its device only since the lease began.
    begun = Greatest(F("member__started_at"), F("taken_at"), Value(since, output_field=at))
    ended = Coalesce(F("member__exited_at"), F("released_at"), Value(now, output_field=at))
    span = ExpressionWrapper(ended - begun, output_field=DurationField())
    # GREATEST ignores NULL in PostgreSQL, and a process that has not started must not count.
    return Case(
        When(member__started_at__isnull=False, member__started_at__lt=now, then=span),
        default=Value(timedelta(), output_field=DurationField()),
        output_field=DurationField(),
    )


def summed_until() -> datetime:
    """Return the end of the daily sums; only leases contain later use."""
    return UsageMark.objects.values_list("summed_until", flat=True).first() or EVER


def leases_since(instant: datetime, *, now: datetime) -> QuerySet[Lease]:
    """Return leases that hold after ``instant``, each with its charge (``charged``) since then.

    The charge is negative if an earlier sum charged a process beyond its end, because the end was
    observed later. An end known to the sums adds nothing, even while the rest of the gang runs.
    """
    until = Value(now, output_field=DateTimeField())
    was_known = Q(member__step_since__lte=instant) | Q(member__step=MemberStep.RELEASED)
    charged = Case(
        When(Q(member__exited_at__lte=instant) & was_known, then=Value(timedelta())),
        default=charged_until(now, since=instant),
        output_field=DurationField(),
    )
    return (
        # Almost every lease began in the past, so an index scan by start would read all of them.
        # The expression makes the database use the index by end.
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
        hours: hours of GPUs and of CPU slots up to now, counted separately.
        devices: number of devices held now.
    """

    hours: DeviceHours
    devices: int


NO_USE = Use(hours=DeviceHours(), devices=0)


def use_by_tenant(viewer: Viewer, *, now: datetime) -> Mapping[int, Use]:
    """Return the use of each tenant whose jobs the viewer may see, by tenant ID; four queries."""
    return _use_by(person=False, viewer=viewer, tenant_id=None, now=now)


def use_by_person(viewer: Viewer, tenant_id: int, *, now: datetime) -> Mapping[int, Use]:
    """Return the use of each person in one tenant, by user ID; four queries."""
    return _use_by(person=True, viewer=viewer, tenant_id=tenant_id, now=now)


def use_together(uses: Iterable[Use]) -> Use:
    """Return the sum of several uses, such as the uses of all people of a tenant."""
    uses = tuple(uses)
    return Use(
        hours=DeviceHours(
            gpu=sum(use.hours.gpu for use in uses), slot=sum(use.hours.slot for use in uses)
        ),
        devices=sum(use.devices for use in uses),
    )


def limits_of_members(viewer: Viewer, tenant_id: int) -> Mapping[int, tuple[str, ...]]:
    """Return the virtual clusters to which members are limited, by membership ID.

    Members without a limit are omitted.
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
    # Read before the daily rows: without daily rows, leases count from this time.
    mark = summed_until()
    seconds, told = _seconds_of_days(person=person, visible=visible, tenant_id=tenant_id)
    summed = told or mark
    devices: dict[int, int] = defaultdict(int)
    # Use after the last day, of all tenants: for a filter by tenant, the database would read all
    # past jobs of the tenant first. The code below drops sums that the viewer may not see.
    newest: Any = (
        leases_since(summed, now=now)
        .order_by()
        .values_list("job__tenant_id", "job__owner_id", "device__is_gpu")
        .annotate(
            total=Sum("charged"),
            live=Count("id", filter=Q(released_at=None)),
            orders=Max("member__share_version"),
        )
    )
    is_shared = False
    for tenant, owner, is_gpu, total, live, orders in newest:
        is_shared = is_shared or bool(orders)
        if tenant_id not in (None, tenant) or (visible is not None and tenant not in visible):
            continue
        who = owner if person else tenant
        seconds[who, is_gpu] += total.total_seconds() if total else 0.0
        devices[who] += live
    for tenant, owner, is_gpu, more in _divided_since(summed, now) if is_shared else ():
        if tenant_id in (None, tenant) and (visible is None or tenant in visible):
            seconds[owner if person else tenant, is_gpu] += more
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


def _divided_since(instant: datetime, now: datetime) -> Iterator[tuple[int, int, bool, float]]:
    """Yield corrections of the use after ``instant`` on devices that equals have shared.

    Each row has the tenant and the owner of a job, whether the device is a GPU, and the seconds to
    add: those of an equal, and minus those of its holder that are charged to others.
    """
    peers = Lease.objects.filter(
        Q(released_at=None) | Q(released_at__gt=instant), is_peer=True, taken_at__lt=now
    )
    devices = set(peers.order_by().values_list("device_id", flat=True))
    charges = divided_charges(devices, until=now, since=instant)
    since: Any = leases_since(instant, now=now).filter(pk__in=charges)
    held: dict[int, timedelta] = dict(since.values_list("id", "charged"))
    rows = Lease.objects.filter(pk__in=charges).order_by("id")
    for pk, tenant, owner, is_gpu in rows.values_list(
        "id", "job__tenant_id", "job__owner_id", "device__is_gpu"
    ):
        # A negative charge corrects earlier sums, and stays.
        full = max(held.get(pk, timedelta()).total_seconds(), 0.0)
        yield tenant, owner, is_gpu, charges[pk] - full


def _seconds_of_days(
    *, person: bool, visible: frozenset[int] | None, tenant_id: int | None
) -> tuple[dict[tuple[int, bool], float], datetime | None]:
    """Return device-seconds by owner and GPU flag, from closed months and later days.

    The second value is the end of the daily sums, or None if there are none.
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
    # One statement: otherwise a day could be summed up between two statements and count twice.
    mark = Subquery(UsageMark.objects.values("summed_until")[:1])
    for who, is_gpu, held, until in rows.annotate(
        total=Sum(F("guaranteed") + F("borrowed")), summed=mark
    ):
        seconds[who, is_gpu] += held
        summed = until
    return seconds, summed
