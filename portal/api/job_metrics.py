"""Metrics that a job reported: curves of bounded size, as JSON or CSV."""

import math
from collections.abc import Iterator, Mapping, Sequence
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
from tenants.errors import InvalidError
from workers.metrics import (
    MOST_NAMES,
    MOST_POINTS,
    USUAL_POINTS,
    Axis,
    MetricCurve,
    MetricSummary,
    Wanted,
    metric_curves,
    metrics_of_job,
    total_steps_of,
)

_RANKS: Final = ("first", "all")
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
    OpenApiParameter(
        "format", str, enum=FORMATS, description="Format, instead of `Accept` (default json)."
    ),
)
COLUMNS: Final = ("step", "time", "epoch", "attempt", "value", "low", "high", "count")
_HEAD: Final = ("name", "role", "rank", "process", *COLUMNS, "not_finite", "superseded")


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


class MetricsOut(TypedDict):
    """The metrics of a job, and the requested curves in the order of their names.

    `total_steps` is the last step that the training declared; null if it declared none.
    """

    total_steps: int | None
    metrics: list[MetricOut]
    curves: list[CurveOut]


metric_out = Body(MetricOut, MetricSummary)
curve_out = Body(CurveOut, MetricCurve)

METRICS: Final[Mapping[str, Op]] = {
    "metrics": Op(takes=_TAKES, answer=MetricsOut, also={(200, MEDIA_TYPE): str}),
}


class JobMetrics(ApiViewSet):
    """The action of jobs for metrics."""

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
        since=_bound(query, "since"),
        until=_bound(query, "until"),
        points=query.number("points", default=USUAL_POINTS, least=10, most=MOST_POINTS),
        all_ranks=ranks == "all",
    )


def _bound(query: Query, name: str) -> float | None:
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
    return csv_file(_HEAD, _rows(curves), f"job-{job_id}-metrics.csv")


def _rows(curves: Sequence[MetricCurve]) -> Iterator[list[str]]:
    for curve in curves:
        columns = [curve.column(name) for name in (*COLUMNS, "bad")]
        for values in zip(*columns, curve.is_superseded.tolist(), strict=True):
            cells = ["" if value is None else str(value) for value in values]
            yield [curve.name, curve.role, str(curve.rank), str(curve.process), *cells]
