"""The page that compares jobs: curves on a common axis, results, and specifications."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpResponse, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.addresses import job_url
from portal.api.history import csv_file
from portal.api.job_metrics import CSV_HEAD, bound_from, csv_rows
from portal.api.queries import Query
from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.job_metrics import POINTS, lines_of_curve
from portal.web.viewing import PageRequest, page
from scheduling.core.objectives import Goal, places_of_best
from workers.metrics import MOST_POINTS, MetricCurve, Wanted
from workers.run_comparison import (
    MOST_JOBS,
    CommonAxis,
    ComparedRun,
    RunComparison,
    common_curves,
    compare_runs,
    read_run_ids,
)

DASHES: Final = ("solid", "solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "dash")
AXES: Final = (
    (CommonAxis.STEP, gettext_lazy("Step")),
    (CommonAxis.HOURS, gettext_lazy("Time")),
    (CommonAxis.DEVICE_HOURS, gettext_lazy("Device-hours")),
    (CommonAxis.EPOCH, gettext_lazy("Epoch")),
)
_PARAMETERS: Final = ("jobs", "name", "x", "points", "since", "until", "format", "add", "fields")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCell:
    """A value of a job; ``is_best`` marks the best one of the row."""

    text: str
    is_best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """A result of all jobs."""

    label: str
    cells: tuple[ResultCell, ...]


@require_safe
@page
def compare(request: PageRequest) -> HttpResponse:
    """Show jobs side by side; ``add`` adds one to those in the address."""
    query = Query(request.http.GET, _PARAMETERS)
    ids = read_run_ids([*query.given.getlist("jobs"), *query.given.getlist("add")])
    found = compare_runs(request.viewer, ids, now=request.now)
    names = list(found.metrics)
    first = query.text("name") or (names[0] if names else "")
    is_all = query.text("fields") == "all"
    context: dict[str, Any] = {
        "runs": [_head(found, place) for place in range(len(found.runs))],
        "ids": ",".join(map(str, ids)),
        "comparison": found,
        "results": result_rows(found),
        "fields": [(row, _cells(row.values)) for row in found.fields if is_all or row.differs],
        "is_all": is_all,
        "differing": sum(row.differs for row in found.fields),
        "equal": sum(not row.differs for row in found.fields),
        "metric": first,
        "jobs_url": reverse("jobs"),
        "can_add": len(ids) < MOST_JOBS,
        "link": f"{request.portal_url}{reverse('jobs-compare')}?jobs={','.join(map(str, ids))}",
    }
    if first:
        query_string = urlencode({"jobs": context["ids"], "name": first, "format": "csv"})
        context["csv_url"] = f"{reverse('jobs-compare-curves')}?{query_string}"
        context["axes"] = AXES
        context["figure"] = _figure(
            request, found, Wanted(names=[first], points=POINTS), CommonAxis.STEP
        )
    return request.render("jobs/compare.html", context)


@require_safe
@page
def curves(request: PageRequest) -> HttpResponse:
    """Build the figure of one metric of all jobs, or its points as CSV."""
    query = Query(request.http.GET, _PARAMETERS)
    query.choices("x", list(CommonAxis))
    query.choices("format", ("json", "csv"))
    axis = CommonAxis(query.text("x", CommonAxis.STEP))
    wanted = Wanted(
        names=[query.text("name")],
        since=bound_from(query, "since"),
        until=bound_from(query, "until"),
        points=query.number("points", default=POINTS, least=10, most=MOST_POINTS),
    )
    ids = read_run_ids(query.given.getlist("jobs"))
    found = compare_runs(request.viewer, ids, now=request.now)
    if query.text("format") == "csv":
        return csv_file(
            ("job", axis.value, *CSV_HEAD),
            _csv_rows(request, found, wanted, axis),
            "compared-metrics.csv",
        )
    return JsonResponse(
        _figure(request, found, wanted, axis), headers={"Cache-Control": "private, no-store"}
    )


def result_rows(found: RunComparison) -> tuple[ResultRow, ...]:
    """Return the results of the jobs; the best of each row is marked where one is better."""
    return tuple(_results(found))


def _results(found: RunComparison) -> Iterator[ResultRow]:
    runs = found.runs
    for name in found.metrics:
        goal = found.goals[name]
        results = [run.metrics.get(name) for run in runs]
        yield _row(
            _("%(name)s, last") % {"name": name},
            [None if one is None else one.last for one in results],
            goal,
        )
        if goal is not None:
            yield _row(
                _("%(name)s, best") % {"name": name},
                [None if one is None else one.best for one in results],
                goal,
            )
    yield ResultRow(label=_("Step"), cells=tuple(ResultCell(text=_steps(run)) for run in runs))
    yield _row(_("Goodput, samples/s"), [run.goodput for run in runs], Goal.MAX, words.amount)
    yield ResultRow(
        label=_("Device-hours"), cells=tuple(ResultCell(text=_hours(run)) for run in runs)
    )
    yield _row(
        _("Time in the queue"), [run.wait_seconds for run in runs], Goal.MIN, words.duration
    )
    yield _row(_("Preemptions"), [float(run.preemptions) for run in runs], Goal.MIN, words.count)


def _row(
    label: str, values: Sequence[float | None], goal: Goal | None, shown: Any = None
) -> ResultRow:
    best = places_of_best(values, goal)
    form = shown or (lambda value: f"{value:.4g}")
    return ResultRow(
        label=label,
        cells=tuple(
            ResultCell(text=words.DASH if value is None else form(value), is_best=place in best)
            for place, value in enumerate(values)
        ),
    )


def _steps(run: ComparedRun) -> str:
    if run.last_step is None:
        return words.DASH
    if run.total_steps is None:
        return words.count(run.last_step)
    return _("%(step)s of %(total)s") % {
        "step": words.count(run.last_step),
        "total": words.count(run.total_steps),
    }


def _hours(run: ComparedRun) -> str:
    hours = words.gpu_hours(run.hours.gpu + run.hours.slot)
    return hours if run.row.is_over else _("%(hours)s so far") % {"hours": hours}


def _head(found: RunComparison, place: int) -> Mapping[str, Any]:
    row = found.runs[place].row
    others = [str(run.row.id) for run in found.runs if run.row.id != row.id]
    return {
        "row": row,
        "url": job_url(row.id),
        "colour": f"c{place + 1}",
        "dash": DASHES[place],
        "without": ",".join(others),
    }


def _cells(values: Sequence[str | None]) -> list[tuple[str, bool]]:
    """Return each value, and whether it differs from that of the first job."""
    return [(words.DASH if value is None else value, value != values[0]) for value in values]


def _figure(
    request: PageRequest, found: RunComparison, wanted: Wanted, axis: CommonAxis
) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    for place, run in enumerate(found.runs):
        for curve, xs in common_curves(request.viewer, run, wanted, axis):
            traces += _traces(run, place, curve, [_rounded(x) for x in xs])
    titles = {
        CommonAxis.STEP: _("step"),
        CommonAxis.HOURS: _("hours since the first start"),
        CommonAxis.EPOCH: _("epoch"),
        CommonAxis.DEVICE_HOURS: _("device-hours"),
    }
    name = wanted.names[0] if wanted.names else ""
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": titles[axis]}, "anchor": "y"},
            "yaxis": {"title": {"text": name}, "rangemode": "normal"},
            "lanes": 1,
        },
        "x": axis.value,
        "names": [str(run.row.id) for run in found.runs],
        "metrics": list(found.metrics),
    }


def _traces(
    run: ComparedRun, place: int, curve: MetricCurve, xs: Sequence[float | None]
) -> Iterator[dict[str, Any]]:
    label = f"{run.row.id} {run.row.name}"
    for superseded, points in lines_of_curve(curve, xs):
        yield {
            "type": "scatter",
            "mode": "lines",
            "colour": f"c{place + 1}",
            "line": {"dash": DASHES[place]},
            "xaxis": "x",
            "yaxis": "y",
            "metric": str(run.row.id),
            "name": _("%(name)s (superseded)") % {"name": label} if superseded else label,
            "superseded": superseded,
            "x": [x for x, _value in points],
            "y": [y for _place, y in points],
        }


def _rounded(x: float | None) -> float | None:
    return x if x is None or isinstance(x, int) else float(f"{x:.6g}")


def _csv_rows(
    request: PageRequest, found: RunComparison, wanted: Wanted, axis: CommonAxis
) -> Iterator[list[str]]:
    for run in found.runs:
        for curve, xs in common_curves(request.viewer, run, wanted, axis):
            for x, row in zip(xs, csv_rows([curve]), strict=True):
                yield [str(run.row.id), "" if x is None else f"{x:.6g}", *row]
