"""The shape that a virtual cluster's jobs of the last weeks would have needed."""

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
    """One level: cells promised now, and cells that past runs would have needed.

    Attributes:
        level: its display name; ``type`` is its cell type.
        count: promised now.
        recommended: covers nine tenths of the time in which such cells were used.
        peak: in use at once at most.
        gangs: how many gangs had instances of this size.
        device_hours: of those instances.
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
    """A recommended shape from past use.

    Attributes:
        rows: levels that are promised now or would have been needed.
        attempts: number of runs.
        is_partial: there were more runs than are read; it covers those of the newest jobs.
        days: length of the window.
        coverage: the part of the use that the shape covers, level by level.
    """

    rows: tuple[RecommendedRow, ...] = ()
    attempts: int = 0
    is_partial: bool = False
    days: int = WINDOW.days
    coverage: float = COVERAGE

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Cells by chain and cell type."""
        return {(row.chain, row.type): row.recommended for row in self.rows if row.recommended}

    @property
    def is_as_promised(self) -> bool:
        """Whether the promise is this shape already."""
        return all(row.count == row.recommended for row in self.rows)


def recommended_shape(
    vc_id: int,
    promised: Iterable[QuotaRow],
    *,
    now: datetime,
    topology: TopologyNow | None = None,
) -> RecommendedShape:
    """The guarantee that the runs of the last 30 days would have needed, in two queries.

    Args:
        vc_id: a virtual cluster that the viewer may see.
        promised: its shape, every level of every chain.
        now: where the window ends.
        topology: if it has been read already; else one more query reads it.
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
    """Start, end and demand of the newest runs of a window, up to one more than is counted."""
    return list(
        Job.objects.unscoped()
        .filter(
            Q(attempts__ended_at=None) | Q(attempts__ended_at__gte=since),
            virtual_cluster_id=vc_id,
            attempts__running_at__lt=now - SHORTEST,
        )
        # By job: an index gives those of a virtual cluster in this order, so that nothing is
        # sorted and the database stops at the last run that is wanted.
        .order_by("-id", "-attempts__id")
        # As text, which Django would convert each time: ended runs never change.
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
    """The gangs of one run, as far as it overlaps two instants."""
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
        # Runs that fail at once are no measure of the shape that the virtual cluster needs.
        return ()
    return tuple(
        PastGang(leaf_types=types, devices=devices, instances=count, start=start, end=end)
        for types, devices, count in _sizes(demand)
    )


@lru_cache(maxsize=4096)
def _sizes(demand: str) -> tuple[tuple[tuple[str, ...], int, int], ...]:
    """Types, devices and number of the instances; cached, since most demands repeat."""
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
