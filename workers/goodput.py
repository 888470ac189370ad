"""Goodput of jobs: rows for REST, and a bounded number of points for charts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F
from django.db.models.functions import Mod

from scheduling.common.paging import DEFAULT_ROWS, Page, cut, page_limit, read_cursor
from scheduling.jobs.queries.events import require_visible_job
from scheduling.runs.models import Attempt
from tenants.viewers import Viewer
from workers.models import GoodputSample

MOST_POINTS: Final = 600
TREND_POINTS: Final = 24
TREND_WINDOW: Final = timedelta(minutes=10)
_COLUMNS: Final = (
    "job_id",
    "attempt__number",
    "at",
    "step",
    "throughput",
    "goodput",
    "step_seconds",
    "loss",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputRow:
    """Goodput of an attempt in one interval of ``seconds``.

    Attributes:
        throughput: samples per second.
        efficiency: value of one sample, up to 1.
        goodput: product of the two.
    """

    id: int
    attempt: int
    at: datetime
    seconds: float
    step: int
    steps: int
    samples: float
    step_seconds: float | None
    loss: float | None
    throughput: float
    efficiency: float
    goodput: float
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Measurements of a job around ``at``.

    Attributes:
        attempt: number of the attempt.
        throughput, goodput: samples per second.
        step: number of the last step.
        step_seconds, loss: None if not reported.
    """

    at: datetime
    attempt: int
    step: int
    throughput: float
    goodput: float
    step_seconds: float | None
    loss: float | None


def goodput_of_job(
    viewer: Viewer, job_id: int, *, cursor: str | None = None, limit: int = DEFAULT_ROWS
) -> Page[GoodputRow]:
    """Return a job's reported goodput by interval, oldest first.

    Raises:
        NotFoundError: the job does not exist, or the viewer may not see it.
    """
    limit = page_limit(limit)
    key = read_cursor(cursor)
    require_visible_job(viewer, job_id)
    samples = GoodputSample.objects.filter(job_id=job_id).order_by("id")
    if key:
        samples = samples.filter(id__gt=key[0])
    numbers = dict(Attempt.objects.filter(job_id=job_id).values_list("id", "number"))
    rows = [_goodput_row(sample, numbers) for sample in samples[: limit + 1]]
    return cut(rows, limit, lambda row: row.id)


def goodput_curve(viewer: Viewer, job_id: int) -> tuple[CurvePoint, ...]:
    """Return at most about ``MOST_POINTS`` points of the job's life, oldest first, in 4 queries.

    The newest points are always included.

    Raises:
        NotFoundError: the job does not exist, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    samples = GoodputSample.objects.filter(job_id=job_id)
    stride = -(-samples.count() // MOST_POINTS) or 1
    thinned = samples.annotate(turn=Mod(F("id"), stride)).filter(turn=0)
    newest = samples.order_by("-at")[:TREND_POINTS]
    points = {
        row[2]: _point(row)
        for chosen in (thinned.order_by("at"), newest)
        for row in chosen.values_list(*_COLUMNS)
    }
    return tuple(points[at] for at in sorted(points))


def newest_points(viewer: Viewer, job_id: int) -> tuple[CurvePoint, ...]:
    """Return a job's last points, oldest first.

    Raises:
        NotFoundError: the job does not exist, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    newest = GoodputSample.objects.filter(job_id=job_id).order_by("-at")[:TREND_POINTS]
    return tuple(_point(row) for row in reversed(newest.values_list(*_COLUMNS)))


def trends_of(job_ids: Iterable[int], *, now: datetime) -> Mapping[int, tuple[CurvePoint, ...]]:
    """Return the points of the last minutes by job, oldest first, in one query.

    The caller has checked that the viewer may see the jobs.
    """
    recent = GoodputSample.objects.filter(job_id__in=list(job_ids), at__gte=now - TREND_WINDOW)
    found: dict[int, list[CurvePoint]] = defaultdict(list)
    for row in recent.order_by("job_id", "at").values_list(*_COLUMNS):
        found[row[0]].append(_point(row))
    return {job_id: _spread(points) for job_id, points in found.items()}


def _goodput_row(sample: GoodputSample, numbers: dict[int, int]) -> GoodputRow:
    return GoodputRow(
        id=sample.pk,
        attempt=numbers.get(sample.attempt_id, 0),
        at=sample.at,
        seconds=sample.seconds,
        step=sample.step,
        steps=sample.steps,
        samples=sample.samples,
        step_seconds=sample.step_seconds,
        loss=sample.loss,
        throughput=sample.throughput,
        efficiency=sample.efficiency,
        goodput=sample.goodput,
        devices=sample.devices,
    )


def _spread(points: list[CurvePoint]) -> tuple[CurvePoint, ...]:
    stride = -(-len(points) // TREND_POINTS)
    return tuple(reversed(points[::-1][::stride]))


def _point(row: tuple[Any, ...]) -> CurvePoint:
    _, attempt, at, step, throughput, goodput, step_seconds, loss = row
    return CurvePoint(
        at=at,
        attempt=attempt,
        step=step,
        throughput=throughput,
        goodput=goodput,
        step_seconds=step_seconds,
        loss=loss,
    )
