"""Recommended guarantees, from the jobs of the last weeks."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from scheduling.clusters.queries.virtual_clusters import QuotaRow
from scheduling.common.timestamps import seconds_of
from scheduling.core.cells.recommendation import COVERAGE, PastGang, recommend
from scheduling.core.jobspec import Demand
from scheduling.jobs.models import Job
from scheduling.topology.current import TopologyNow, current_topology

WINDOW: Final = timedelta(days=30)
MOST_ATTEMPTS: Final = 2000
SHORTEST: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedRow:
    """One level: guaranteed cells, and cells that past runs would have needed.

    Attributes:
        level: display name of the level; ``type`` is its cell type.
        count: number of guaranteed cells.
        recommended: number of cells that is sufficient for 90 % of the time with such use.
        peak: maximum number of cells in use at the same time.
        gangs: number of gangs with instances of this size.
        device_hours: device-hours of these instances.
    """

    chain: str
    device_type: str
    level: str
    type: str
    devices: int
    count: int
    recommended: int
    peak: int
    gangs: int
    device_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedShape:
    """A recommended guarantee from past use.

    Attributes:
        rows: levels that are guaranteed now or would have been needed.
        attempts: number of runs.
        is_partial: whether only the runs of the newest jobs were read, since there are too many.
        days: length of the period.
        coverage: fraction of the use that the guarantee covers, level by level.
    """

    rows: tuple[RecommendedRow, ...] = ()
    attempts: int = 0
    is_partial: bool = False
    days: int = WINDOW.days
    coverage: float = COVERAGE

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Return the recommended cells by chain and cell type."""
        return {(row.chain, row.type): row.recommended for row in self.rows if row.recommended}

    @property
    def is_as_promised(self) -> bool:
        """Return whether the current guarantee equals the recommendation."""
        return all(row.count == row.recommended for row in self.rows)


def recommended_shape(
    vc_id: int,
    promised: Iterable[QuotaRow],
    *,
    now: datetime,
    topology: TopologyNow | None = None,
) -> RecommendedShape:
    """Return the guarantee that the runs of the last 30 days would have needed, in two queries.

    Args:
        vc_id: a virtual cluster that the viewer may see.
        promised: its guarantee, with every level of every chain.
        now: end of the period.
        topology: the current topology if already read; otherwise one more query reads it.
    """
    topology = topology or current_topology()
    since = now - WINDOW
    rows = _newest_runs(vc_id, since=since, now=now)
    window = since.timestamp(), now.timestamp()
    past = [
        gang
        for began, ended, demand in rows[:MOST_ATTEMPTS]
        for gang in _gangs(began, ended, demand, *window)
    ]
    return RecommendedShape(
        rows=_rows(topology, promised, past),
        attempts=min(len(rows), MOST_ATTEMPTS),
        is_partial=len(rows) > MOST_ATTEMPTS,
    )


def _newest_runs(
    vc_id: int, *, since: datetime, now: datetime
) -> list[tuple[str, str | None, str]]:
    """Return start, end and demand of the newest runs, up to one more than the maximum."""
    return list(
        Job.objects.unscoped()
        .filter(
            Q(attempts__ended_at=None) | Q(attempts__ended_at__gte=since),
            virtual_cluster_id=vc_id,
            attempts__running_at__lt=now - SHORTEST,
        )
        # Ordered by job: an index gives the jobs of a virtual cluster in this order, so the
        # database sorts nothing and stops at the last requested run.
        .order_by("-id", "-attempts__id")
        # Stored JSON is read as text and parsed once: ended runs never change.
        .annotate(
            began_text=Cast("attempts__running_at", TextField()),
            ended_text=Cast("attempts__ended_at", TextField()),
            demand_text=Cast("demand", TextField()),
        )
        .values_list("began_text", "ended_text", "demand_text")[: MOST_ATTEMPTS + 1]
    )


def _gangs(
    began: str, ended: str | None, demand: str, since: float, now: float
) -> tuple[PastGang, ...]:
    """Return the gangs of one run, limited to the period."""
    if ended is not None:
        gangs = _ended_gangs(began, ended, demand)
        if not gangs or (gangs[0].start >= since and gangs[0].end <= now):
            return gangs
    start = max(seconds_of(began), since)
    return _gangs_between(start, now if ended is None else min(seconds_of(ended), now), demand)


@lru_cache(maxsize=16384)
def _ended_gangs(began: str, ended: str, demand: str) -> tuple[PastGang, ...]:
    return _gangs_between(seconds_of(began), seconds_of(ended), demand)


def _gangs_between(start: float, end: float, demand: str) -> tuple[PastGang, ...]:
    if end - start < SHORTEST.total_seconds():
        # Runs that fail at once do not show which guarantee the virtual cluster needs.
        return ()
    return tuple(
        PastGang(leaf_types=types, devices=devices, instances=count, start=start, end=end)
        for types, devices, count in _sizes(demand)
    )


@lru_cache(maxsize=4096)
def _sizes(demand: str) -> tuple[tuple[tuple[str, ...], int, int], ...]:
    """Return types, devices and number of the instances; cached, since most demands repeat."""
    return tuple(
        (member.device_types, member.devices, member.count)
        for member in Demand.from_json(json.loads(demand)).members
        # Runs on a pinned cell need no quota.
        if member.pinned_cell is None
    )


def _rows(
    topology: TopologyNow, promised: Iterable[QuotaRow], past: list[PastGang]
) -> tuple[RecommendedRow, ...]:
    wanted = {(row.chain, row.level): row for row in recommend(past, topology.cells.chains)}
    found = []
    for row in promised:
        level = wanted.get((row.chain, row.type))
        if level is None and not row.count:
            continue
        found.append(
            RecommendedRow(
                chain=row.chain,
                device_type=row.device_type,
                level=row.level,
                type=row.type,
                devices=row.devices,
                count=row.count,
                recommended=level.count if level else 0,
                peak=level.peak if level else 0,
                gangs=level.gangs if level else 0,
                device_hours=level.device_seconds / 3600 if level else 0.0,
            )
        )
    return tuple(found)
