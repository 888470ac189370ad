"""Device-hours of a period by tenant, virtual cluster, person, job or day, from daily sums."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from threading import Lock
from typing import Any, Final

from django.db.models import Count, F, Max, Q, QuerySet, Sum

from scheduling.clusters.models import VirtualCluster
from scheduling.core.messages import sentence
from scheduling.usage.models import UsageDay, UsageJob, UsageMark, UsageMonth
from tenants.errors import InvalidError
from tenants.models import User
from tenants.roles import Permission, Role
from tenants.viewers import Viewer

MOST_ROWS: Final = 200
MOST_DAYS: Final = 366
FIRST_DAY: Final = date(2000, 1, 1)
LAST_DAY: Final = date(2199, 12, 31)
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "tenant": ("tenant_id",),
    "virtual_cluster": ("virtual_cluster__name", "tenant_id"),
    "person": ("owner__username", "tenant_id"),
    "job": ("job", "name", "owner__username", "virtual_cluster__name", "tenant_id"),
    "day": ("day",),
}
GROUPS: Final = tuple(_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Device-hours; ``lost_*`` are parts of them whose work was lost.

    ``guest`` are hours as a guest of a device that another job holds; nobody is charged for them.
    ``delay`` are hours by which guests have delayed the jobs on their devices. ``cpu`` are
    CPU-hours of jobs without devices.
    """

    guaranteed: float = 0.0
    borrowed: float = 0.0
    lost_preempted: float = 0.0
    lost_failed: float = 0.0
    guest: float = 0.0
    delay: float = 0.0
    cpu: float = 0.0

    @property
    def held(self) -> float:
        return self.guaranteed + self.borrowed

    @property
    def lost(self) -> float:
        """Return the device-hours whose work was lost."""
        return self.lost_preempted + self.lost_failed

    def __add__(self, other: "Hours") -> "Hours":
        return Hours(**{name: getattr(self, name) + getattr(other, name) for name in SUMS})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLine:
    """Use by one tenant, virtual cluster, person, job or day; GPUs and CPU slots are separate.

    Attributes:
        name: name of the tenant, virtual cluster, person or job, or the day.
        tenant: name of the tenant; empty for days.
        job: job ID; None unless the line is of a job.
        user: owner of the job; empty for other lines.
        virtual_cluster: virtual cluster of the job; empty for other lines.
    """

    name: str
    tenant: str = ""
    job: int | None = None
    user: str = ""
    virtual_cluster: str = ""
    gpu: Hours = Hours()
    slot: Hours = Hours()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The use in a period.

    Attributes:
        lines: the largest use first; days in ascending order.
        is_partial: whether lines are missing, because there are too many or because job rows are
            pruned before the sums.
        summed_until: end of the included use; None if no sums exist.
        closed: closing time of the month if the period is one closed month.
        sha256: hash of the closed month's rows.
        sees_all: whether the viewer sees more than their own use.
    """

    since: date
    until: date
    by: str
    lines: tuple[UsageLine, ...]
    gpu: Hours
    slot: Hours
    is_partial: bool
    summed_until: datetime | None
    closed: datetime | None
    sha256: str
    sees_all: bool


def usage(viewer: Viewer, *, since: date, until: date, by: str = "tenant") -> Usage:
    """Return the use from ``since`` to ``until``, both included, in four queries.

    Cluster admins see all use, leads the use of their tenants, and other users their own.

    Raises:
        InvalidError: the period or the grouping is not valid.
    """
    if by not in _KEYS:
        raise InvalidError(
            sentence("not-usage-group"),
            field="by",
            value=by,
            remedy=sentence("choices", names=", ".join(GROUPS)),
        )
    for field, day in (("since", since), ("until", until)):
        if not FIRST_DAY <= day <= LAST_DAY:
            raise InvalidError(
                sentence("time-outside-years"),
                field=field,
                value=day.isoformat(),
                remedy=sentence("write-date"),
            )
    if not 0 <= (until - since).days < MOST_DAYS:
        raise InvalidError(
            sentence("period-days", most=MOST_DAYS),
            field="since",
            value=since.isoformat(),
            remedy=sentence("give-shorter-span"),
        )
    totals = _totals(viewer, since, until)
    lines = _lines(viewer, _rows(viewer, since, until, by, totals), by)
    closed = _closed(since, until)
    return Usage(
        since=since,
        until=until,
        by=by,
        lines=tuple(lines[:MOST_ROWS]),
        gpu=totals.get(True, Hours()),
        slot=totals.get(False, Hours()),
        is_partial=len(lines) > MOST_ROWS or _lacks(lines, totals),
        summed_until=UsageMark.objects.values_list("summed_until", flat=True).first(),
        closed=closed.closed_at if closed else None,
        sha256=closed.sha256 if closed else "",
        sees_all=seen_whole(viewer) != frozenset(),
    )


def seen_whole(viewer: Viewer) -> frozenset[int] | None:
    """Return the tenants whose complete use the viewer sees, or None for all tenants."""
    if viewer.is_cluster_admin:
        return viewer.tenant_ids(Permission.VIEW_JOBS)
    return frozenset(
        tenant
        for tenant in viewer.roles
        if viewer.role_in(tenant) is Role.LEAD and viewer.can(Permission.VIEW_JOBS, tenant)
    )


def visible_use(viewer: Viewer) -> Q:
    """Return the condition for rows of use that the viewer may see."""
    whole = seen_whole(viewer)
    if whole is None:
        return Q()
    return Q(tenant_id__in=whole) | Q(owner_id=viewer.user_id)


def _period(viewer: Viewer, since: date, until: date, by: str) -> "QuerySet[Any]":
    model = UsageJob if by == "job" else UsageDay
    rows: QuerySet[Any] = model.objects.visible_to(viewer)
    return rows.filter(visible_use(viewer), day__gte=since, day__lte=until).order_by()


def _rows(
    viewer: Viewer, since: date, until: date, by: str, totals: Mapping[bool, Hours]
) -> list[dict[str, Any]]:
    period = _period(viewer, since, until, by)
    if by == "job":
        visible = viewer.tenant_ids(Permission.VIEW_JOBS)
        seen = (since, until, viewer.user_id, visible, seen_whole(viewer), *totals.items())
        return rows_of_jobs(period, seen, most=2 * MOST_ROWS + 1)
    rows = period.values(*_KEYS[by], "is_gpu")
    return list(rows.annotate(**{f"sum_{name}": Sum(name) for name in SUMS}))


def _lines(viewer: Viewer, rows: list[dict[str, Any]], by: str) -> list[UsageLine]:
    found: dict[tuple[Any, ...], UsageLine] = {}
    for row in rows:
        key = tuple(row[name] for name in _KEYS[by])
        line = found.get(key) or _line(viewer, row, by)
        hours = _hours(row)
        found[key] = replace(line, gpu=hours) if row["is_gpu"] else replace(line, slot=hours)
    lines = list(found.values())
    if by == "day":
        return sorted(lines, key=lambda line: line.name)
    return sorted(lines, key=lambda line: (-(line.gpu.held or line.slot.held), line.name))


def _line(viewer: Viewer, row: dict[str, Any], by: str) -> UsageLine:
    tenant = viewer.name_of(row["tenant_id"]) if "tenant_id" in row else ""
    if by == "job":
        return UsageLine(
            name=row["name"],
            job=row["job"],
            user=row["owner__username"],
            virtual_cluster=row["virtual_cluster__name"],
            tenant=tenant,
        )
    names = {
        "tenant": tenant,
        "virtual_cluster": row.get("virtual_cluster__name", ""),
        "person": row.get("owner__username", ""),
        "day": str(row.get("day", "")),
    }
    return UsageLine(name=names[by], tenant=tenant)


def _totals(viewer: Viewer, since: date, until: date) -> dict[bool, Hours]:
    rows = _period(viewer, since, until, "day").values("is_gpu")
    summed = rows.annotate(**{f"sum_{name}": Sum(name) for name in SUMS})
    return {row["is_gpu"]: _hours(row) for row in summed}


def _lacks(lines: list[UsageLine], totals: Mapping[bool, Hours]) -> bool:
    """Return whether the lines have noticeably less use than the period."""
    there = sum(line.gpu.held + line.slot.held for line in lines)
    return there < 0.999 * sum(hours.held for hours in totals.values())


def _hours(row: Mapping[str, Any]) -> Hours:
    return Hours(**{name: (row[f"sum_{name}"] or 0.0) / 3600 for name in SUMS})


def _closed(since: date, until: date) -> UsageMonth | None:
    """Return the closed month that equals the period, or None."""
    found = UsageMonth.objects.filter(month=since).first()
    is_whole = since.day == 1 and until.month == since.month and until.year == since.year
    ends_it = (until + timedelta(days=1)).month != until.month
    return found if is_whole and ends_it else None


KEPT: Final = 16
SUMS: Final = ("guaranteed", "borrowed", "lost_preempted", "lost_failed", "guest", "delay", "cpu")
_HELD: Final = F("guaranteed") + F("borrowed")
_Row = dict[str, Any]


def rows_of_jobs(period: "QuerySet[Any]", seen: Hashable, *, most: int) -> list[_Row]:
    """Return sums of the largest jobs with current names; GPUs and CPU slots are separate.

    A period may have very many jobs, and their rows change once an hour, so the result is cached.

    Args:
        period: the daily rows of jobs that the viewer may see.
        seen: cache key: the filter of the rows, and their total.
        most: maximum number of rows.
    """
    same = period.aggregate(rows=Count("id"), last=Max("id"), jobs=Sum("job"))
    found = _KEPT.of((seen, most, *same.values()), period, most)
    users = _names(User.objects.filter(pk__in={row["owner_id"] for row in found}), "username")
    clusters = VirtualCluster.objects.unscoped()
    vcs = _names(clusters.filter(pk__in={row["virtual_cluster_id"] for row in found}), "name")
    return [
        {
            **row,
            "owner__username": users[row["owner_id"]],
            "virtual_cluster__name": vcs[row["virtual_cluster_id"]],
        }
        for row in found
    ]


def _names(rows: "QuerySet[Any]", column: str) -> dict[int, str]:
    return dict(rows.order_by().values_list("id", column))


def _search(period: "QuerySet[Any]", most: int) -> list[_Row]:
    """Return the rows of the largest jobs, in two steps: only the first one sums all jobs."""
    held = period.values("job", "is_gpu").annotate(held=Sum(_HELD)).order_by("-held", "-job")
    wanted = set(held.values_list("job", "is_gpu")[:most])
    rows = period.filter(job__in={job for job, _ in wanted})
    columns = ("job", "name", "owner_id", "virtual_cluster_id", "tenant_id", "is_gpu")
    found = rows.values(*columns).annotate(**{f"sum_{name}": Sum(name) for name in SUMS})
    return [row for row in found if (row["job"], row["is_gpu"]) in wanted]


class _Kept:
    """Cache of the newest results."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, list[_Row]] = OrderedDict()
        self._lock = Lock()

    def of(self, key: Hashable, period: "QuerySet[Any]", most: int) -> list[_Row]:
        with self._lock:
            known = self._found.get(key)
        if known is None:
            known = _search(period, most)
            with self._lock:
                self._found[key] = known
                while len(self._found) > KEPT:
                    self._found.popitem(last=False)
        return known


_KEPT: Final = _Kept()
