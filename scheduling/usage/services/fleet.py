"""Samples of the fleet, summed up by interval, and their retention.

Each sample is added to one row of each span length. The newest row of the shortest span has the
time up to which starts and preemptions are included, so an outage of this task loses none of them.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import F

from scheduling.clusters.queries.cluster import ClusterView, cluster_snapshot
from scheduling.core.fleet_history import (
    STATES,
    FleetTotals,
    FreeTotals,
    NodeTotals,
    VcTotals,
    added,
    wait_bins,
)
from scheduling.estimates.queries import FragmentationView, fragmentation_view
from scheduling.jobs.models import Job
from scheduling.runs.models import Preemption
from scheduling.usage.models import FleetInterval
from tenants.viewers import Viewer

AGES: Final[Mapping[int, timedelta | None]] = {
    900: timedelta(days=2),
    7200: timedelta(days=15),
    28_800: timedelta(days=35),
    86_400: None,
}
"""Retention of each span length in seconds; the longest one is set by the installation."""

SHORTEST: Final = min(AGES)
LEAST_GAP: Final = timedelta(seconds=20)
"""A task that follows another one by less adds no sample."""

MOST_BACK: Final = timedelta(days=1)
"""Maximum time for which starts and preemptions are caught up."""

FORECAST_AGE: Final = timedelta(minutes=30)
Busy = Mapping[int, Sequence[float | None]]
"""Utilisation (0 to 1) of the devices of each node that reports."""


def record_sample(*, now: datetime, busy: Busy) -> bool:
    """Add the present state of the fleet to the open intervals.

    Args:
        now: current time.
        busy: newest utilisation by node ID.

    Returns:
        False if another process has just added a sample.
    """
    newest = _newest()
    if newest is not None and now - newest < LEAST_GAP:
        return False
    since = max(newest or now - timedelta(seconds=60), now - MOST_BACK)
    # Outside of the transaction, because it reads the whole cluster.
    sample = take_sample(since=since, now=now, busy=busy)
    with transaction.atomic():
        if _newest(locked=True) != newest:
            return False
        for span in AGES:
            _add(span, sample, now)
    return True


def _newest(*, locked: bool = False) -> datetime | None:
    rows = FleetInterval.objects.filter(span_seconds=SHORTEST).order_by("-at")
    if locked:
        rows = rows.select_for_update()
    return rows.values_list("until", flat=True).first()


def _add(span: int, sample: FleetTotals, now: datetime) -> None:
    stamp = int(now.timestamp())
    at = datetime.fromtimestamp(stamp - stamp % span, UTC)
    row, _ = FleetInterval.objects.get_or_create(span_seconds=span, at=at, defaults={"until": now})
    totals = FleetTotals.from_columns({name: getattr(row, name) for name in COLUMNS}).plus(sample)
    # Compare and set: on PostgreSQL, the first sample of all has no row that locks it.
    FleetInterval.objects.filter(pk=row.pk, samples=row.samples).update(
        samples=row.samples + 1, until=now, **totals.to_columns()
    )


COLUMNS: Final = tuple(FleetTotals().to_columns())


def take_sample(*, since: datetime, now: datetime, busy: Busy) -> FleetTotals:
    """Return the state at ``now``, with starts and preemptions since ``since``."""
    system = Viewer.system("fleet")
    cluster = cluster_snapshot(system, now=now)
    return FleetTotals(
        nodes={
            node.name: NodeTotals(
                *_busy(busy.get(node.id, ())),
                sum(device.occupant is not None for device in node.devices),
                len(node.devices),
                STATES.index(node.state),
            )
            for node in cluster.nodes
        },
        virtual_clusters={
            vc.id: VcTotals(vc.guarantee, vc.used, vc.borrowed, vc.lent, vc.queued_jobs, vc.queued)
            for vc in cluster.virtual_clusters
        },
        waits=_waits(since, now),
        preemptions=_preemptions(since, now),
        free=_free(cluster, fragmentation_view(system), now),
    )


def _busy(shares: Sequence[float | None]) -> tuple[float, int]:
    known = [share for share in shares if share is not None]
    return round(sum(known), 4), len(known)


def _waits(since: datetime, now: datetime) -> dict[int, dict[int, int]]:
    waits: dict[int, list[float]] = {}
    for vc, submitted, started in (
        Job.objects.unscoped()
        .filter(first_started_at__gt=since, first_started_at__lte=now)
        .order_by()
        .values_list("virtual_cluster_id", "submitted_at", "first_started_at")
    ):
        if started is not None:
            waits.setdefault(vc, []).append((started - submitted).total_seconds())
    return {vc: wait_bins(found) for vc, found in waits.items()}


def _preemptions(since: datetime, now: datetime) -> dict[tuple[int, int, str], int]:
    found: dict[tuple[int, int, str], int] = {}
    for victim, winner, cause in (
        Preemption.objects.filter(asked_at__gt=since, asked_at__lte=now)
        .order_by()
        .values_list("job__virtual_cluster", "for_job__virtual_cluster", F("cause"))
    ):
        found = added(found, {(victim, winner or 0, cause): 1})
    return found


def _free(cluster: ClusterView, forecast: FragmentationView, now: datetime) -> FreeTotals:
    """Return idle devices and the stranded ones of the newest forecast, if it is recent."""
    if forecast.made_at is None or now - forecast.made_at > FORECAST_AGE:
        return FreeTotals()
    stranded: dict[int, float] = {}
    for chain in forecast.chains:
        for size, bands in chain.by_size:
            stranded[size] = stranded.get(size, 0.0) + bands[0][1]
    return FreeTotals(1, float(sum(chain.idle for chain in cluster.free)), stranded)


def prune_fleet(*, age: timedelta | None, now: datetime) -> int:
    """Delete intervals past their retention; returns their number.

    Args:
        age: retention of the longest span; None for ever.
        now: current time.
    """
    gone = 0
    for span, fixed in AGES.items():
        limit = fixed or age
        if limit is not None:
            rows: Any = FleetInterval.objects.filter(span_seconds=span, at__lt=now - limit)
            gone += rows.delete()[0]
    return gone
