"""Use, utilisation and efficiency of the cluster in the last 24 h, for charts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import CharField, Count, F, FloatField, Min, Q, Sum
from django.db.models.functions import Cast, Substr

from scheduling.clusters.models import Device
from scheduling.core.messages import sentence
from scheduling.enums import LeaseKind
from scheduling.runs.models import Lease
from tenants.roles import Permission
from tenants.viewers import Viewer
from workers.models import GoodputSample, NodeTelemetry
from workers.services.telemetry import floored

SPAN: Final = timedelta(minutes=10)
SPAN_SECONDS: Final = int(SPAN.total_seconds())
DAY: Final = timedelta(hours=24)
RECENT: Final = timedelta(minutes=10)
MOST_ROWS: Final = 40_000
MOST_LEASES: Final = 200_000
# "2026-11-21 09:1": a timestamp in the format of both databases, truncated to ten minutes.
_TEXT_OF_SPAN: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class DayPoint:
    """The ten minutes that begin at ``at``; None where unknown.

    Attributes:
        in_use: share of the current devices that jobs held, since the first node was added.
        utilisation: mean share of time in which reporting devices were busy.
        efficiency: useful share of the samples of visible jobs that report, weighted by devices
            and time.
    """

    at: datetime
    in_use: float | None
    utilisation: float | None
    efficiency: float | None


def cluster_day(viewer: Viewer, *, now: datetime) -> tuple[DayPoint, ...]:
    """Load the last 24 hours, oldest first, in five queries; empty if there is no data."""
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    first = floored(now - DAY, SPAN_SECONDS) + SPAN
    spans = [first + SPAN * step for step in range(int(DAY / SPAN))]
    utilisation = _utilisation(first)
    efficiency = _efficiency(viewer, first)
    in_use = _in_use(spans, now)
    if not utilisation and not efficiency and not any(in_use.values()):
        return ()
    return tuple(
        DayPoint(
            at=at,
            in_use=in_use.get(at),
            utilisation=utilisation.get(at),
            efficiency=efficiency.get(at),
        )
        for at in spans
        if at <= now
    )


def efficiency_now(viewer: Viewer, *, now: datetime) -> float | None:
    """Return the fraction of useful samples of visible jobs in the last 10 minutes."""
    return _weighted(_samples(viewer).filter(at__gte=now - RECENT).aggregate(**_SUMS))


def _in_use(spans: Sequence[datetime], now: datetime) -> Mapping[datetime, float]:
    there = Device.objects.aggregate(
        devices=Count("id", filter=Q(retired_at=None)), began=Min("node__created_at")
    )
    devices, began = there["devices"], there["began"] or now
    if not devices:
        return {}
    held = [0.0] * len(spans)
    first, seconds = spans[0], SPAN.total_seconds()
    leases = Lease.objects.filter(
        Q(released_at=None) | Q(released_at__gt=first), kind=LeaseKind.USING
    )
    for taken, released in leases.values_list("taken_at", "released_at")[:MOST_LEASES]:
        began = min(began, taken)  # the node may be gone
        start = max((taken - first).total_seconds(), 0.0)
        end = ((released or now) - first).total_seconds()
        place = int(start // seconds)
        while start < end and place < len(held):
            until = min((place + 1) * seconds, end)
            held[place] += until - start
            start, place = until, place + 1
    passed = [(min(now, at + SPAN) - max(began, at)).total_seconds() for at in spans]
    return {
        at: min(held[place] / (passed[place] * devices), 1.0)
        for place, at in enumerate(spans)
        if passed[place] > 0
    }


def _utilisation(first: datetime) -> Mapping[datetime, float]:
    """Return the mean utilisation by time, from roll-ups and the newest minutes."""
    rolled = _means(_telemetry(SPAN_SECONDS, first))
    since = max(rolled, default=first - SPAN) + SPAN
    return {**_means(_telemetry(60, since)), **rolled}


def _telemetry(span_seconds: int, since: datetime) -> Iterable[tuple[datetime, list[Any]]]:
    rows = NodeTelemetry.objects.filter(span_seconds=span_seconds, at__gte=since)
    return rows.order_by("-at").values_list("at", "utilisation")[:MOST_ROWS]


def _means(rows: Iterable[tuple[datetime, list[Any]]]) -> dict[datetime, float]:
    sums: dict[datetime, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for at, shares in rows:
        known = [share for share in shares if share is not None]
        total = sums[floored(at, SPAN_SECONDS)]
        total[0] += sum(known)
        total[1] += len(known)
    return {at: total / count for at, (total, count) in sums.items() if count}


def _efficiency(viewer: Viewer, first: datetime) -> Mapping[datetime, float]:
    rows: Any = (
        _samples(viewer)
        .filter(at__gte=first)
        .annotate(span=Substr(Cast("at", CharField()), 1, _TEXT_OF_SPAN))
        .order_by()
        .values("span")
        .annotate(**_SUMS)
    )
    found = {}
    for row in rows:
        share = _weighted(row)
        if share is not None:
            at = datetime.strptime(f"{row['span']}0", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
            found[at] = share
    return found


_WEIGHT: Final = F("seconds") * Cast("devices", FloatField())
_SUMS: Final[dict[str, Any]] = {
    "useful": Sum(F("efficiency") * _WEIGHT, output_field=FloatField()),
    "whole": Sum(_WEIGHT, output_field=FloatField()),
}


def _samples(viewer: Viewer) -> Any:
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    samples = GoodputSample.objects.all()
    return samples if visible is None else samples.filter(job__tenant_id__in=visible)


def _weighted(sums: Mapping[str, Any]) -> float | None:
    return sums["useful"] / sums["whole"] if sums["whole"] else None
