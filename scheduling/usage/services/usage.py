"""Daily sums of charged use, and closing of past months.

The daily rows are the only source of use; ``UsedSoFar``, budgets and other sums derive from them.
``scheduling.core.charging`` defines the charge. If the end of a process is observed after the day
on which it ended, earlier sums charged it for too long, so the days since its end are summed
again.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Exists, F, Max, Min, OuterRef, Q, QuerySet, Sum

from scheduling.jobs.models import Job
from scheduling.runs.models import CpuLease, Lease
from scheduling.usage.models import UsageDay, UsageJob, UsageMark, UsageMonth
from scheduling.usage.services.day_sums import (
    DAY,
    KINDS,
    SUMS,
    DaySum,
    chunks,
    day_sums,
    start_of,
)
from tenants.models import UsedSoFar

Whose = tuple[int, int, bool]
"""Tenant, person, and whether it is of GPUs."""

_HELD: Final = F("guaranteed") + F("borrowed")


def add_days_before(day: date) -> None:
    """Add the daily rows before ``day`` to ``UsedSoFar``; call it in a transaction.

    Args:
        day: the first day after a month that is being closed; all earlier months are closed, so
            their rows do not change.
    """
    known = {(row.tenant_id, row.user_id, row.is_gpu): row for row in UsedSoFar.objects.unscoped()}
    since = next((row.until for row in known.values()), None)
    until = datetime.combine(day, time(), UTC)
    if since is not None and since >= until:
        return
    grown = _days(since.date() if since else date.min, day)
    UsedSoFar.objects.unscoped().update(until=until)
    for key, seconds in grown.items():
        if key in known:
            row = UsedSoFar.objects.unscoped().filter(pk=known[key].pk)
            row.update(seconds=known[key].seconds + seconds)
            continue
        tenant_id, user_id, is_gpu = key
        UsedSoFar.objects.create(
            tenant_id=tenant_id, user_id=user_id, is_gpu=is_gpu, seconds=seconds, until=until
        )


def _days(first: date, end: date) -> Mapping[Whose, float]:
    rows = (
        UsageDay.objects.unscoped()
        .filter(day__gte=first, day__lt=end)
        .order_by()
        .values_list("tenant_id", "owner_id", "is_gpu")
        .annotate(total=Sum(_HELD))
    )
    return {(tenant, owner, is_gpu): total for tenant, owner, is_gpu, total in rows}


MARK: Final = "usage"
MOST_DAYS: Final = 40
"""Maximum number of days per call; the next call sums up the rest."""

CLOSES_AFTER: Final = timedelta(days=1)
"""Delay between the end of a month and its closing."""

MARGIN: Final = timedelta(minutes=10)
"""Ends within this span before a sum may have been committed later."""

LATEST_CHANGE: Final = timedelta(days=31)
"""Maximum delay between an end and its observation for which earlier days are corrected."""


class _OvertakenError(Exception):
    """Another process has summed up use meanwhile."""


def sum_usage(*, now: datetime) -> int:
    """Sum up every day since the last call, including today; idempotent.

    Days of closed months do not change. A day that another process has summed up meanwhile is
    skipped.

    Returns:
        The number of days; if it is ``MOST_DAYS``, further days may remain.
    """
    mark = _mark(now)
    if mark is None or mark.summed_until >= now:
        return 0
    first = _first_changed(mark.summed_until - MARGIN).astimezone(UTC).date()
    today = now.astimezone(UTC).date()
    days = [first + timedelta(days=n) for n in range(min((today - first).days + 1, MOST_DAYS))]
    try:
        for day in days:
            _write_day(day, now, mark)
    except _OvertakenError:
        return 0
    return len(days)


def _first_changed(since: datetime) -> datetime:
    """Return the earliest time whose sums change by observations after ``since``."""
    newer = Lease.objects.filter(kind__in=KINDS, member__step_since__gt=since)
    released = newer.filter(released_at__gt=since)
    live = newer.filter(released_at=None)
    ends = released.aggregate(first=Min("member__exited_at"))
    runs = Q(member__exited_at=None)
    starts = live.aggregate(
        first=Min("member__started_at", filter=runs), ended=Min("member__exited_at")
    )
    cpus = _newer_cpu_leases(since).aggregate(
        first=Min("member__exited_at"),
        started=Min("member__started_at", filter=runs),
    )
    found: list[datetime | None] = [ends["first"], starts["first"], starts["ended"], since]
    found += [cpus["first"], cpus["started"]]
    return max(min(at for at in found if at is not None), since - LATEST_CHANGE)


def _newer_cpu_leases(since: datetime) -> "QuerySet[CpuLease]":
    """Return leases of CPUs whose charge may have changed after ``since``."""
    rows = CpuLease.objects.filter(member__step_since__gt=since)
    return rows.filter(Q(released_at=None) | Q(released_at__gt=since))


def sum_all_usage(*, now: datetime) -> None:
    """Sum up all use until now, with any number of days since the last call."""
    while sum_usage(now=now) == MOST_DAYS:
        pass


def close_months(*, now: datetime) -> list[date]:
    """Close every past month that is summed up, and return the closed months."""
    mark = UsageMark.objects.filter(name=MARK).first()
    if mark is None:
        return []
    closed = []
    done = set(UsageMonth.objects.values_list("month", flat=True))
    for month in _months_with_rows():
        end = start_of(_next_month(month))
        if month in done or mark.summed_until < end or now < end + CLOSES_AFTER:
            continue
        try:
            _close(month, now, mark)
        except _OvertakenError:
            break
        closed.append(month)
    return closed


def month_digest(month: date) -> tuple[str, int]:
    """Return the SHA-256 of a month's rows as text, and the number of rows."""
    rows = (
        UsageDay.objects.unscoped()
        .filter(day__gte=month, day__lt=_next_month(month))
        .order_by("day", "virtual_cluster_id", "owner_id", "is_gpu")
        .values_list(
            "day", "tenant_id", "virtual_cluster_id", "owner_id", "is_gpu",
            "guaranteed", "borrowed", "lost_preempted", "lost_failed", "guest", "delay", "cpu",
        )
    )  # fmt: skip
    digest, count = hashlib.sha256(), 0
    for row in rows:
        *whose, guaranteed, borrowed, preempted, failed, guest, delay, cpu = row
        # Without later columns, the digest must equal that of months closed before them.
        shared: tuple[float, ...] = (guest, delay) if delay else (guest,) if guest else ()
        if cpu:
            shared = (guest, delay, cpu)
        values = (guaranteed, borrowed, preempted, failed, *shared)
        numbers = (f"{value:.3f}" for value in values)
        digest.update(",".join((*map(str, whose), *numbers)).encode() + b"\n")
        count += 1
    return digest.hexdigest(), count


def _mark(now: datetime) -> UsageMark | None:
    """Return the end of the sums, or None if no lease exists."""
    mark = UsageMark.objects.filter(name=MARK).first()
    if mark is not None:
        return mark
    firsts: list[datetime | None] = [
        Lease.objects.aggregate(oldest=Min("taken_at"))["oldest"],
        CpuLease.objects.aggregate(oldest=Min("taken_at"))["oldest"],
    ]
    oldest = min((at for at in firsts if at is not None), default=None)
    if oldest is None:
        return None
    begin = start_of(min(oldest, now).astimezone(UTC).date())
    return UsageMark.objects.get_or_create(name=MARK, defaults={"summed_until": begin})[0]


def _write_day(day: date, now: datetime, mark: UsageMark) -> None:
    """Replace the rows of a day unless its month is closed, and advance the mark."""
    sums = day_sums(day, now)
    until = max(mark.summed_until, min(now, start_of(day + DAY)))
    with transaction.atomic():
        _move(mark, until)
        if not _is_closed(day):
            _replace(day, sums)
    mark.summed_until = until


def _close(month: date, now: datetime, mark: UsageMark) -> None:
    """Close a month in one transaction."""
    last = _next_month(month) - DAY
    # The ends of processes shortly before midnight may have been written after the last sum.
    sums = day_sums(last, now)
    with transaction.atomic():
        _move(mark, mark.summed_until)
        if _is_closed(month):
            raise _OvertakenError
        _replace(last, sums)
        digest, rows = month_digest(month)
        UsageMonth.objects.create(month=month, closed_at=now, sha256=digest, rows=rows)
        add_days_before(_next_month(month))


def _move(mark: UsageMark, until: datetime) -> None:
    """Advance the mark if it is unchanged; a concurrent writer waits for this transaction."""
    as_read = UsageMark.objects.filter(pk=mark.pk, summed_until=mark.summed_until)
    if not as_read.update(summed_until=until):
        raise _OvertakenError


def _is_closed(day: date) -> bool:
    return UsageMonth.objects.filter(month=day.replace(day=1)).exists()


def _replace(day: date, sums: Mapping[tuple[int, bool], DaySum]) -> None:
    """Replace the rows of a day, but preserve the use of jobs that were pruned meanwhile."""
    rows = _job_rows(day, sums)
    new = {row.job for row in rows}
    there = UsageJob.objects.unscoped().filter(day=day)
    alive = Exists(Job.objects.unscoped().filter(pk=OuterRef("job")))
    rows += [row for row in there.exclude(alive) if row.job not in new]
    people: dict[tuple[int, int, int, bool], DaySum] = defaultdict(DaySum)
    for row in rows:
        row.pk = None
        whose = (row.tenant_id, row.virtual_cluster_id, row.owner_id, row.is_gpu)
        people[whose].add(DaySum(**{name: getattr(row, name) for name in SUMS}))
    there.delete()
    UsageDay.objects.unscoped().filter(day=day).delete()
    UsageJob.objects.unscoped().bulk_create(rows, batch_size=1000)
    UsageDay.objects.unscoped().bulk_create(
        UsageDay(
            day=day,
            tenant_id=tenant,
            virtual_cluster_id=vc,
            owner_id=owner,
            is_gpu=is_gpu,
            **total.columns(),
        )
        for (tenant, vc, owner, is_gpu), total in people.items()
    )


def _job_rows(day: date, sums: Mapping[tuple[int, bool], DaySum]) -> list[UsageJob]:
    whose = {
        job_id: (tenant, vc, owner, name)
        for job_id, tenant, vc, owner, name in _jobs({job_id for job_id, _ in sums})
    }
    return [
        UsageJob(
            day=day,
            job=job_id,
            name=whose[job_id][3],
            tenant_id=whose[job_id][0],
            virtual_cluster_id=whose[job_id][1],
            owner_id=whose[job_id][2],
            is_gpu=is_gpu,
            **total.columns(),
        )
        for (job_id, is_gpu), total in sums.items()
        if job_id in whose
    ]


def _jobs(job_ids: set[int]) -> Iterator[tuple[int, int, int, int, str]]:
    for chunk in chunks(sorted(job_ids)):
        yield from (
            Job.objects.unscoped()
            .filter(pk__in=chunk)
            .values_list("id", "tenant_id", "virtual_cluster_id", "owner_id", "name")
        )


def _months_with_rows() -> list[date]:
    ends = UsageDay.objects.unscoped().aggregate(first=Min("day"), last=Max("day"))
    if ends["first"] is None:
        return []
    months = [ends["first"].replace(day=1)]
    while _next_month(months[-1]) <= ends["last"]:
        months.append(_next_month(months[-1]))
    return months


def _next_month(month: date) -> date:
    return (month.replace(day=1) + timedelta(days=32)).replace(day=1)
