"""Metrics that a job reported: curves of bounded size, as JSON or CSV."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, TypedDict

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From
from portal.api.history import FORMATS, MEDIA_TYPE, CsvRenderer, csv_file
from portal.api.queries import Query
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.core.spec_differences import SpecRow
from tenants.clock import database_now
from tenants.errors import InvalidError
from workers.metrics import (
    MOST_NAMES,
    MOST_POINTS,
    USUAL_POINTS,
    Axis,
    MetricCurve,
    MetricSummary,
    TrackedRunRow,
    Wanted,
    metric_curves,
    metrics_of_job,
    total_steps_of,
    tracked_runs_of,
)
from workers.run_comparison import MOST_JOBS, ComparedRun, compare_runs, read_run_ids

_RANKS: Final = ("first", "all")
MOST_RANK: Final = 100_000
_TAKES: Final = (
    OpenApiParameter(
        "name",
        str,
        description=f"Metrics, at most {MOST_NAMES}; repeat or use commas. Default: no curves.",
    ),
    OpenApiParameter(
        "x", str, enum=list(Axis), description="Axis of `since` and `until` (default step)."
    ),
    OpenApiParameter(
        "points", int, description=f"Points per curve, 10 to {MOST_POINTS} ({USUAL_POINTS})."
    ),
    OpenApiParameter("since", float, description="First value of `x`; time in Unix seconds."),
    OpenApiParameter("until", float, description="Last value of `x`; time in Unix seconds."),
    OpenApiParameter(
        "ranks", str, enum=_RANKS, description="`all`: a curve for each process (default first)."
    ),
    OpenApiParameter("rank", int, description="Only this rank, counted over all roles from 0."),
    OpenApiParameter(
        "format", str, enum=FORMATS, description="Format, instead of `Accept` (default json)."
    ),
)
COLUMNS: Final = ("step", "time", "epoch", "attempt", "value", "low", "high", "count")
CSV_HEAD: Final = ("name", "role", "rank", "process", *COLUMNS, "not_finite", "superseded")


class MetricOut(TypedDict):
    """A metric. `points` counts the reports of all `ranks`; `last` is null if not finite."""

    name: str
    points: int
    ranks: int
    last: float | None
    last_step: int


def _column(name: str) -> Any:
    return From(by=lambda curve: curve.column(name))


class CurveOut(TypedDict):
    """A curve as columns of equal length, by attempt and then in order of the reports.

    A point is the mean (`value`), minimum and maximum of `count` reports, with the step, the
    time (Unix seconds) and the epoch of the last one. `not_finite` counts reports of NaN and
    infinity. A superseded point was repeated by a later report from the same or an earlier step.
    """

    name: str
    role: str
    rank: int
    process: int
    step: Annotated[list[int], _column("step")]
    time: Annotated[list[float], _column("time")]
    epoch: Annotated[list[float | None], _column("epoch")]
    attempt: Annotated[list[int], _column("attempt")]
    value: Annotated[list[float | None], _column("value")]
    low: Annotated[list[float | None], _column("low")]
    high: Annotated[list[float | None], _column("high")]
    count: Annotated[list[int], _column("count")]
    not_finite: Annotated[list[int], _column("bad")]
    superseded: Annotated[list[bool], From(by=lambda curve: curve.is_superseded.tolist())]


class TrackedRunOut(TypedDict):
    """A run of MLflow in the job; `key` is MLflow's run ID, `attempt` the newest one with it."""

    key: str
    name: str
    status: str
    role: str
    rank: int
    process: int
    attempt: int
    parameters: dict[str, str]
    tags: dict[str, str]


class MetricsOut(TypedDict):
    """The metrics of a job, and the requested curves in the order of their names.

    `total_steps` is the last step that the training declared; null if it declared none.
    `tracked_runs` are the runs that the job reported to its MLflow endpoint.
    """

    total_steps: int | None
    tracked_runs: list[TrackedRunOut]
    metrics: list[MetricOut]
    curves: list[CurveOut]


metric_out = Body(MetricOut, MetricSummary)
curve_out = Body(CurveOut, MetricCurve)
tracked_run_out = Body(TrackedRunOut, TrackedRunRow)


class ComparedMetricOut(TypedDict):
    """Values of a metric of the first rank; null if not finite, or if no value is better."""

    last: float | None
    best: float | None


class ComparedRunOut(TypedDict):
    """A compared job. `wait`: seconds in the queue until its first start; null before it."""

    id: Annotated[int, From("row.id")]
    name: Annotated[str, From("row.name")]
    state: Annotated[str, From("row.shown_state")]
    gpu_hours: Annotated[float, From("hours.gpu")]
    slot_hours: Annotated[float, From("hours.slot")]
    wait: Annotated[float | None, From("wait_seconds")]
    preemptions: int
    last_step: int | None
    total_steps: int | None
    goodput: float | None
    metrics: Annotated[
        dict[str, ComparedMetricOut],
        From(by=lambda run: {name: asdict(one) for name, one in run.metrics.items()}),
    ]


class ComparedFieldOut(TypedDict):
    """A field of the specifications; null where a specification lacks it.

    `path`: names joined by points. An option of a command has its name, such as `--lr`.
    """

    path: str
    values: list[str | None]
    differs: bool


class ComparedRunsOut(TypedDict):
    """Jobs side by side, in the order of the request.

    `goals`: the better direction of each metric, `min` or `max`; null if its name states none.
    """

    jobs: list[ComparedRunOut]
    goals: dict[str, str | None]
    fields: list[ComparedFieldOut]


compared_run_out = Body(ComparedRunOut, ComparedRun)
compared_field_out = Body(ComparedFieldOut, SpecRow)

METRICS: Final[Mapping[str, Op]] = {
    "compare": Op(
        takes=(
            OpenApiParameter(
                "jobs",
                str,
                required=True,
                description=f"Job IDs, at most {MOST_JOBS}; repeat or use commas.",
            ),
        ),
        answer=ComparedRunsOut,
    ),
    "metrics": Op(takes=_TAKES, answer=MetricsOut, also={(200, MEDIA_TYPE): str}),
}


class JobMetrics(ApiViewSet):
    """The actions of jobs for metrics."""

    @action(detail=False, methods=["get"])
    def compare(self, request: Request) -> Response:
        """Compare results and specifications of up to eight jobs.

        Curves are at `metrics` of each job.
        """
        ids = read_run_ids(self.query.given.getlist("jobs"))
        found = compare_runs(self.viewer, ids, now=database_now())
        answer = ComparedRunsOut(
            jobs=[compared_run_out(run) for run in found.runs],
            goals={name: goal and goal.value for name, goal in found.goals.items()},
            fields=[compared_field_out(row) for row in found.fields],
        )
        return Response(answer)

    @action(detail=True, methods=["get"], renderer_classes=(JSONRenderer, CsvRenderer))
    def metrics(self, request: Request, pk: int) -> Response | HttpResponse:
        """Get the metrics of a job, and curves of those in `name`.

        A curve has at most about `points` points, whatever the length of the run; a range gets
        finer ones. With `Accept: text/csv` or `format=csv` the response has one row per point.
        """
        self.query.choices("format", FORMATS)
        wanted = wanted_from(self.query)
        curves = metric_curves(self.viewer, pk, wanted)
        if isinstance(request.accepted_renderer, CsvRenderer):
            return metrics_csv(pk, curves)
        return Response(
            {
                "total_steps": total_steps_of(pk),
                "tracked_runs": [tracked_run_out(one) for one in tracked_runs_of(pk)],
                "metrics": [metric_out(one) for one in metrics_of_job(self.viewer, pk)],
                "curves": [curve_out(one) for one in curves],
            }
        )


def wanted_from(query: Query) -> Wanted:
    """Read a selection of curves from query parameters.

    Raises:
        InvalidError: a parameter is not valid.
    """
    names = [part for text in query.given.getlist("name") for part in text.split(",") if part]
    if len(names) > MOST_NAMES:
        raise InvalidError(
            "There are too many names.",
            field="name",
            value=len(names),
            remedy=f"Use at most {MOST_NAMES}.",
        )
    axis = query.text("x", Axis.STEP)
    ranks = query.text("ranks", "first")
    query.choices("x", list(Axis))
    query.choices("ranks", _RANKS)
    return Wanted(
        names=names,
        axis=Axis(axis),
        since=bound_from(query, "since"),
        until=bound_from(query, "until"),
        points=query.number("points", default=USUAL_POINTS, least=10, most=MOST_POINTS),
        all_ranks=ranks == "all",
        rank=query.number("rank", default=0, least=0, most=MOST_RANK)
        if query.text("rank")
        else None,
    )


def bound_from(query: Query, name: str) -> float | None:
    """Read a finite number from a query parameter; None if it is missing.

    Raises:
        InvalidError: it is not a finite number.
    """
    given = query.text(name)
    if not given:
        return None
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidError(
            "This is not a valid number.", field=name, value=given, remedy="Use a number."
        )
    return number


def metrics_csv(job_id: int, curves: Sequence[MetricCurve]) -> HttpResponse:
    """Return curves as a CSV file with a row for each point."""
    return csv_file(CSV_HEAD, csv_rows(curves), f"job-{job_id}-metrics.csv")


def csv_rows(curves: Sequence[MetricCurve]) -> Iterator[list[str]]:
    """Yield the cells of each point, in the order of ``CSV_HEAD``."""
    for curve in curves:
        columns = [curve.column(name) for name in (*COLUMNS, "bad")]
        for values in zip(*columns, curve.is_superseded.tolist(), strict=True):
            cells = ["" if value is None else str(value) for value in values]
            yield [curve.name, curve.role, str(curve.rank), str(curve.process), *cells]
