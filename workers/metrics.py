"""Metrics of jobs for charts and REST: names, and curves of a bounded number of points."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from django.db.models import Q

from scheduling.core.objectives import Goal
from scheduling.jobs.queries.events import require_visible_job
from tenants.viewers import Viewer
from workers.models import MetricBlock, MetricSeries, TrackedRun, TrainingGoal
from workers.services.rollups import BLOCK, BUCKET, FAN, Buckets, means, superseded, thin, unpack

MOST_POINTS: Final = 10_000
MOST_TOTAL: Final = 200_000
"""Points of all curves of an answer."""
USUAL_POINTS: Final = 1000
MOST_NAMES: Final = 16
MOST_CURVES: Final = 128
READ_FACTOR: Final = 4
"""Buckets read for each point of a curve, at most."""
MOST_LONG: Final = 32
"""Long series of which a query names the blocks; of more, it reads the bounds of all blocks."""


class Axis(StrEnum):
    """The x axis of a curve: steps, seconds since the epoch (UTC), or epochs."""

    STEP = "step"
    TIME = "time"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """A metric of a job.

    Attributes:
        points: number of all its points, of all ranks.
        ranks: number of its series.
        node_ranks: ranks of the job that have it, counted over all roles.
        last, last_step: newest value of the first rank, None if not finite, and its step.
    """

    name: str
    points: int
    ranks: int
    node_ranks: tuple[int, ...]
    last: float | None
    last_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCurve:
    """Values of one series; each point is a mean over ``count`` + ``not_finite`` reports.

    Attributes:
        buckets: by attempt, then by arrival.
        is_superseded: of each: a newer attempt has reported the same or an earlier step since.
    """

    name: str
    role: str
    rank: int
    process: int
    buckets: Buckets
    is_superseded: npt.NDArray[np.bool_]

    def column(self, name: str) -> list[Any]:
        """Return a column of the buckets; None replaces values that are not finite."""
        values = means(self.buckets) if name == "value" else self.buckets[name]
        if values.dtype.kind != "f":
            return list(values.tolist())
        return [value if math.isfinite(value) else None for value in values.tolist()]

    def in_force(self, goal: Goal) -> tuple[list[int], list[float]]:
        """Return the steps of the finite points in force, and the best value of each."""
        column = self.buckets["low" if goal is Goal.MIN else "high"]
        kept = (self.buckets["count"] > 0) & ~self.is_superseded & np.isfinite(column)
        return self.buckets["step"][kept].tolist(), column[kept].tolist()

    def best(self, goal: Goal) -> float | None:
        """Return the best value in force; None if there is none."""
        _steps, values = self.in_force(goal)
        return goal.best(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A selection of curves.

    Attributes:
        names: metrics; empty for none.
        axis: unit of ``since`` and ``until``.
        since, until: bounds, inclusive.
        points: approximate maximum of each curve.
        all_ranks: all series; otherwise of the first process of the first rank only.
        rank: series of this rank of the job only, counted over all roles; None for any.
    """

    names: Sequence[str]
    axis: Axis = Axis.STEP
    since: float | None = None
    until: float | None = None
    points: int = USUAL_POINTS
    all_ranks: bool = False
    rank: int | None = None


class _Span(NamedTuple):
    """A block without its content."""

    pk: int
    level: int
    number: int
    size: int
    least: int
    greatest: int

    def is_within(self, since: float, until: float) -> bool:
        return self.greatest >= since and self.least <= until


def metrics_of_job(viewer: Viewer, job_id: int) -> tuple[MetricSummary, ...]:
    """Return the metrics of a job; losses first, then by name.

    Raises:
        NotFoundError: the job does not exist, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    found: dict[str, list[MetricSeries]] = defaultdict(list)
    for row in MetricSeries.objects.filter(job_id=job_id).order_by("node_rank", "process", "pk"):
        found[row.name].append(row)
    return tuple(
        MetricSummary(
            name=name,
            points=sum(row.count for row in found[name]),
            ranks=len(found[name]),
            node_ranks=tuple(sorted({row.node_rank for row in found[name]})),
            last=found[name][0].last,
            last_step=found[name][0].last_step,
        )
        for name in sorted(
            found, key=lambda name: ("loss" not in name.lower(), len(name) > 4, name)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRunRow:
    """An MLflow run of a job.

    Attributes:
        key: MLflow's run ID.
        parameters, tags: sorted by key; without the tags that the client sets itself.
    """

    key: str
    name: str
    status: str
    role: str
    rank: int
    process: int
    attempt: int
    parameters: Mapping[str, str]
    tags: Mapping[str, str]


def tracked_runs_of(job_id: int) -> tuple[TrackedRunRow, ...]:
    """Return the MLflow runs of a job, of the newest attempt first.

    The caller has checked that the viewer may see the job.
    """
    rows = TrackedRun.objects.filter(job_id=job_id).order_by("-attempt", "role", "rank", "process")
    return tuple(
        TrackedRunRow(
            key=row.key,
            name=row.name,
            status=row.status,
            role=row.role,
            rank=row.rank,
            process=row.process,
            attempt=row.attempt,
            parameters=dict(sorted(row.parameters.items())),
            tags={
                name: value
                for name, value in sorted(row.tags.items())
                if value and not name.startswith("mlflow.")
            },
        )
        for row in rows
    )


def total_steps_of(job_id: int) -> int | None:
    """Return the declared last step of a job's training.

    The caller has checked that the viewer may see the job.
    """
    goal = TrainingGoal.objects.filter(job_id=job_id).first()
    return None if goal is None else goal.total_steps


def metric_curves(viewer: Viewer, job_id: int, wanted: Wanted) -> tuple[MetricCurve, ...]:
    """Return curves in the order of the names; 3 queries, or 4 for a range of time or epochs.

    The cost depends on the number of points wanted and not on the number of points reported.

    Raises:
        NotFoundError: the job does not exist, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    names = list(dict.fromkeys(wanted.names))[:MOST_NAMES]
    rows = MetricSeries.objects.filter(job_id=job_id, name__in=names)
    if wanted.rank is not None:
        rows = rows.filter(node_rank=wanted.rank)
    series = sorted(rows, key=lambda row: (names.index(row.name), row.node_rank, row.process))
    if not wanted.all_ranks:
        series = list({row.name: row for row in reversed(series)}.values())[::-1]
    return _curves(series[:MOST_CURVES], wanted)


def curves_of_jobs(job_ids: Sequence[int], name: str, *, points: int) -> dict[int, MetricCurve]:
    """Return the curve of one metric of the first rank of each job that has it, in 3 queries.

    The caller has checked that the viewer may see the jobs.
    """
    rows = MetricSeries.objects.filter(job_id__in=job_ids, name=name)
    first: dict[int, MetricSeries] = {}
    for row in rows.order_by("job_id", "node_rank", "process", "pk"):
        first.setdefault(row.job_id, row)
    curves = _curves(list(first.values()), Wanted(names=[name], points=points))
    return dict(zip(first, curves, strict=True))


def _curves(series: Sequence[MetricSeries], wanted: Wanted) -> tuple[MetricCurve, ...]:
    points = min(wanted.points, MOST_TOTAL // max(1, len(series)))
    wanted = dataclasses.replace(wanted, points=points)
    spans: dict[int, list[_Span]] = defaultdict(list)
    blocks = MetricBlock.objects.filter(_usable(series, wanted))
    columns = ("pk", "level", "number", "size", "least_step", "greatest_step")
    for owner, *values in blocks.values_list("series_id", *columns):
        spans[owner].append(_Span(*values))
    return tuple(
        _curve(row, buckets, wanted)
        for row, buckets in zip(series, _read(series, spans, wanted), strict=True)
    )


def _usable(series: Sequence[MetricSeries], wanted: Wanted) -> Q:
    """Return the condition of all blocks that a chain can contain.

    A whole series is read from the finest level within the bound of buckets. Finer levels add only
    the blocks that are not folded yet, whose numbers follow from the number of points.
    """
    is_part = wanted.since is not None or wanted.until is not None
    finest = {row.pk: _finest_level(row.count, READ_FACTOR * wanted.points) for row in series}
    long = [row for row in series if finest[row.pk]]
    if is_part or len(long) > MOST_LONG:
        return Q(series_id__in=list(finest))
    found = Q(series_id__in=[pk for pk, level in finest.items() if not level])
    for row in long:
        found |= Q(series_id=row.pk, level__gte=finest[row.pk])
        buckets = row.count
        for level in range(finest[row.pk]):
            full = buckets // BLOCK
            # Later ones as well: points may have been added since the row was read.
            found |= Q(series_id=row.pk, level=level, number__gte=full)
            buckets = full * BLOCK // FAN
    return found


def _finest_level(points: int, most: int) -> int:
    """Return the finest level at which this number of points has at most ``most`` buckets."""
    level = 0
    while points > most * FAN**level:
        level += 1
    return level


def _read(
    series: Sequence[MetricSeries], spans: Mapping[int, Sequence[_Span]], wanted: Wanted
) -> list[Buckets]:
    """Read the buckets of each series in the range, and placeholders for the rest."""
    since = -math.inf if wanted.since is None else wanted.since
    until = math.inf if wanted.until is None else wanted.until
    ranges = [(since, until)] * len(series)
    if wanted.axis is not Axis.STEP and (since, until) != (-math.inf, math.inf):
        whole = [(-math.inf, math.inf)] * len(series)
        coarse = _buckets(series, spans, whole, wanted.points)
        ranges = [_steps(found, wanted.axis, since, until) for found in coarse]
    return _buckets(series, spans, ranges, wanted.points)


def _steps(buckets: Buckets, axis: Axis, since: float, until: float) -> tuple[float, float]:
    """Return the range of steps with a bucket on each side of a range of time or epochs."""
    inside = np.flatnonzero((buckets[axis] >= since) & (buckets[axis] <= until))
    if not len(inside):
        return math.inf, -math.inf
    near = buckets["step"][max(0, inside[0] - 1) : inside[-1] + 2]
    return float(near.min()), float(near.max())


def _buckets(
    series: Sequence[MetricSeries],
    spans: Mapping[int, Sequence[_Span]],
    ranges: Sequence[tuple[float, float]],
    points: int,
) -> list[Buckets]:
    chains = [
        _chain(spans[row.pk], *limits, most=READ_FACTOR * points)
        for row, limits in zip(series, ranges, strict=True)
    ]
    wanted = [
        span.pk
        for chain, limits in zip(chains, ranges, strict=True)
        for span in chain
        if span.is_within(*limits)
    ]
    contents = dict(MetricBlock.objects.filter(pk__in=wanted).values_list("pk", "content"))
    return [
        np.concatenate(
            [
                np.zeros(0, BUCKET),
                *(
                    unpack(contents[span.pk], span.size)
                    if span.pk in contents
                    else _placeholder(span)
                    for span in chain
                ),
            ]
        )
        for chain in chains
    ]


def _placeholder(span: _Span) -> Buckets:
    """Return a bucket without points, for a block of which only the smallest step is used."""
    found = np.zeros(1, BUCKET)
    found["step"] = span.least
    return found


def _chain(spans: Sequence[_Span], since: float, until: float, *, most: int) -> list[_Span]:
    """Return blocks that cover all points in order, of the finest level within ``most`` buckets.

    A block of a level above 0 covers the blocks below it from which it was folded. Only the
    blocks in the range are refined.
    """
    levels: dict[int, dict[int, _Span]] = defaultdict(dict)
    for span in spans:
        levels[span.level][span.number] = span
    top = max(levels, default=0)
    chain = [levels[top][number] for number in sorted(levels[top])]
    for level in range(top, 0, -1):
        finer = _refined(chain, level, levels[level - 1], (since, until))
        if finer is None or sum(one.size for one in finer if one.is_within(since, until)) > most:
            newest = [levels[below].values() for below in range(level - 1, -1, -1)]
            return chain + [one for some in newest for one in some if one.size < BLOCK]
        chain = finer
    return chain


def _refined(
    chain: Sequence[_Span],
    level: int,
    below: Mapping[int, _Span],
    limits: tuple[float, float],
) -> list[_Span] | None:
    """Return the chain with the blocks below those in the range; None if one was deleted."""
    finer: list[_Span] = []
    for span in chain:
        if span.level != level or not span.is_within(*limits):
            finer.append(span)
            continue
        first = span.number * FAN
        children = range(first, first + span.size * FAN // BLOCK)
        if any(number not in below for number in children):
            return None
        finer += [below[number] for number in children]
    return finer + [one for one in below.values() if one.size < BLOCK]


def _curve(row: MetricSeries, buckets: Buckets, wanted: Wanted) -> MetricCurve:
    buckets = buckets[np.argsort(_attempts(buckets), kind="stable")]
    is_superseded = superseded(buckets)
    kept = (buckets["count"] + buckets["bad"] > 0) & _inside(buckets, wanted)
    if wanted.axis is Axis.EPOCH:
        kept &= np.isfinite(buckets["epoch"])
    buckets, is_superseded = buckets[kept], is_superseded[kept]
    kinds = buckets["attempt"].astype(np.int64) * 2 + is_superseded
    buckets, kinds = thin(buckets, wanted.points, kinds)
    return MetricCurve(
        name=row.name,
        role=row.role,
        rank=row.rank,
        process=row.process,
        buckets=buckets,
        is_superseded=kinds % 2 == 1,
    )


def _attempts(buckets: Buckets) -> npt.NDArray[np.uint32]:
    """Return attempts to sort by; a placeholder stays behind the bucket before it."""
    attempts: npt.NDArray[np.uint32] = buckets["attempt"]
    known = np.where(attempts > 0, np.arange(len(attempts)), 0)
    return attempts[np.maximum.accumulate(known)]


def _inside(buckets: Buckets, wanted: Wanted) -> npt.NDArray[np.bool_]:
    values = buckets[wanted.axis]
    found = np.ones(len(buckets), np.bool_)
    if wanted.since is not None:
        found &= values >= wanted.since
    if wanted.until is not None:
        found &= values <= wanted.until
    return found
