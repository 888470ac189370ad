"""Charts of the metrics of a job: figure, marks, and the parts around it."""

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.http import HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from portal.api.job_metrics import metrics_csv, wanted_from
from portal.api.queries import Query
from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.job_context import marks_of
from portal.web.viewing import PageRequest, page
from scheduling.jobs.queries.events import JobLife, life_of_job
from workers.metric_ranks import band_of, broken_places
from workers.metrics import Axis, MetricCurve, MetricSummary, Wanted, metric_curves, metrics_of_job

MOST_SHOWN, MOST_LANES = 4, 3
"""Metrics that are shown at first, and their lanes."""
POINTS: Final = 1000
AXES: Final = (
    (Axis.STEP, gettext_lazy("Step")),
    (Axis.TIME, gettext_lazy("Time")),
    (Axis.EPOCH, gettext_lazy("Epoch")),
)
MOST_CHECKPOINTS: Final = 100
LANE_GAP: Final = 0.08
_PARAMETERS: Final = ("name", "x", "points", "since", "until", "ranks", "rank", "mean", "format")
MOST_RANKS: Final = 64
"""Ranks in the list of the page."""
MOST_BROKEN: Final = 200
"""Marks of values that are not finite."""
_SIDE: Final = re.compile(r"^(?:train|training|val|valid|validation|eval|test)[/_.: -]+")
_COLOURS: Final = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")


@require_safe
@page
def metrics(request: PageRequest, job_id: int) -> HttpResponse:
    """Build the figure of the metrics chart, or its points as CSV."""
    query = Query(request.http.GET, _PARAMETERS)
    query.choices("format", ("json", "csv"))
    wanted = wanted_from(query)
    if query.text("format") == "csv":
        return metrics_csv(job_id, metric_curves(request.viewer, job_id, wanted))
    names = [one.name for one in metrics_of_job(request.viewer, job_id)]
    figure = metrics_figure(
        metric_curves(request.viewer, job_id, wanted),
        life_of_job(request.viewer, job_id),
        axis=wanted.axis,
        names=names,
        is_mean=bool(query.text("mean")) and wanted.all_ranks,
    )
    return JsonResponse(figure, headers={"Cache-Control": "private, no-store"})


def metrics_context(
    request: PageRequest, job_id: int, found: Sequence[MetricSummary], life: JobLife
) -> dict[str, Any]:
    """Return the context of the card of metrics."""
    shown = shown_at_first([one.name for one in found])
    context: dict[str, Any] = {"metrics": found, "metrics_shown": shown}
    if found:
        context["metrics_axes"] = AXES
        ranks = sorted({rank for one in found for rank in one.node_ranks})
        context["metrics_ranks"] = ranks[:MOST_RANKS] if len(ranks) > 1 else []
        curves = metric_curves(request.viewer, job_id, Wanted(names=shown, points=POINTS))
        names = [one.name for one in found]
        context["metrics_figure"] = metrics_figure(curves, life, axis=Axis.STEP, names=names)
        context["metrics_say"] = metrics_in_words(found)
    return context


def shown_at_first(names: Sequence[str]) -> list[str]:
    """Return the metrics of the first lanes."""
    lanes = list(dict.fromkeys(map(lane_of, names)))[:MOST_LANES]
    return [name for name in names if lane_of(name) in lanes][:MOST_SHOWN]


def metrics_in_words(found: Sequence[MetricSummary]) -> str:
    """Describe the newest values in a sentence."""
    parts = [
        _("%(name)s %(value)s at step %(step)s")
        % {
            "name": one.name,
            "value": _("not finite") if one.last is None else f"{one.last:.4g}",
            "step": words.count(one.last_step),
        }
        for one in found[:MOST_SHOWN]
    ]
    return _(", ").join(parts)


def metrics_figure(
    curves: Sequence[MetricCurve],
    life: JobLife,
    *,
    axis: Axis,
    names: Sequence[str],
    is_mean: bool = False,
) -> dict[str, Any]:
    """Build a figure with a lane for each family of metrics, over one axis.

    Args:
        curves: of one or more metrics.
        life: changes and checkpoints of the job.
        axis: of the curves.
        names: all metrics of the job, in the order of their colours.
        is_mean: draw mean and range over the ranks instead of a line for each.
    """
    lanes = list(dict.fromkeys(lane_of(curve.name) for curve in curves))
    if is_mean:
        traces = list(_mean_traces(curves, axis, lanes, names))
    else:
        traces = [
            trace
            for curve in curves
            for trace in _traces(curve, axis, lanes.index(lane_of(curve.name)), names)
        ]
    return {
        "data": traces,
        "layout": _layout(lanes, axis),
        "marks": list(_marks(curves, life, axis)),
        "broken": _broken_marks(curves, axis, lanes),
        "x": axis.value,
        "names": list(names),
        "zone_seconds": _zone_seconds(curves),
        "points": sum(int(curve.buckets["count"].sum()) for curve in curves),
    }


def _zone_seconds(curves: Sequence[MetricCurve]) -> float:
    """Return the offset of the page's zone from UTC at the end of the curves."""
    times = [curve.column("time")[-1] for curve in curves if len(curve.buckets)]
    offset = words.local(datetime.fromtimestamp(max(times, default=0.0), UTC)).utcoffset()
    return offset.total_seconds() if offset else 0.0


def lane_of(name: str) -> str:
    """Return the name without its data set: ``val/loss`` and ``loss`` share a lane."""
    return _SIDE.sub("", name) or name


def _traces(
    curve: MetricCurve, axis: Axis, lane: int, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    common = _line(curve.name, lane, names)
    who = "" if not (curve.rank or curve.process) else f" {curve.role} {curve.rank}"
    who += f".{curve.process}" if curve.process else ""
    for superseded, points in lines_of_curve(curve, _x_values(curve, axis)):
        name = _("%(name)s (superseded)") % {"name": curve.name} if superseded else curve.name
        yield {
            **common,
            "name": f"{name}{who}",
            "superseded": superseded,
            "x": [x for x, _y in points],
            "y": [y for _x, y in points],
        }


def _line(name: str, lane: int, names: Sequence[str]) -> dict[str, Any]:
    """Return the properties of all lines of a metric."""
    place = names.index(name) if name in names else 0
    return {
        "type": "scatter",
        "mode": "lines",
        "colour": _COLOURS[place % len(_COLOURS)],
        "xaxis": "x",
        "yaxis": f"y{lane + 1 if lane else ''}",
        "metric": name,
    }


def _mean_traces(
    curves: Sequence[MetricCurve], axis: Axis, lanes: Sequence[str], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the edges of the range of each metric, and then its mean."""
    for name in dict.fromkeys(curve.name for curve in curves):
        band = band_of([curve for curve in curves if curve.name == name], axis)
        if band is None:
            continue
        common = _line(name, lanes.index(lane_of(name)), names) | {"superseded": False}
        xs = [_on_axis(x, axis) for x in band.x]
        label = _("%(name)s, mean of %(ranks)s ranks") % {"name": name, "ranks": band.ranks}
        for part, values in (("low", band.low), ("high", band.high), ("mean", band.mean)):
            ys = [float(f"{value:.6g}") for value in values]
            yield {**common, "band": part, "name": label, "x": xs, "y": ys}


def _on_axis(x: float, axis: Axis) -> Any:
    if axis is Axis.TIME:
        return words.on_chart(datetime.fromtimestamp(x, UTC))
    return int(x) if axis is Axis.STEP else float(f"{x:.6g}")


def _broken_marks(
    curves: Sequence[MetricCurve], axis: Axis, lanes: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the places of values that are not finite, with the number of their lane."""
    found = []
    for curve in curves:
        places = _x_values(curve, axis)
        for place, count in broken_places(curve, axis):
            text = ngettext(
                "%(name)s: %(count)s value is not finite",
                "%(name)s: %(count)s values are not finite",
                count,
            ) % {"name": curve.name, "count": count}
            lane = lanes.index(lane_of(curve.name))
            found.append({"x": places[place], "text": text, "lane": lane})
    return found[:MOST_BROKEN]


def lines_of_curve(
    curve: MetricCurve, xs: Sequence[Any]
) -> Iterator[tuple[bool, list[tuple[Any, float | None]]]]:
    """Yield the superseded points, if any, and then those in force, with gaps at new attempts.

    Args:
        curve: of one series.
        xs: place of each of its points on the axis.
    """
    lost = curve.is_superseded.tolist()
    points = list(zip(xs, _y_values(curve), curve.column("attempt"), lost, strict=True))
    for superseded in (True, False):
        found = _broken(
            [(x, y, attempt) for x, y, attempt, is_lost in points if is_lost is superseded]
        )
        if found or not superseded:
            yield superseded, found


def _broken(points: Sequence[tuple[Any, float | None, int]]) -> list[tuple[Any, float | None]]:
    """Return the points with a gap between two attempts."""
    found: list[tuple[Any, float | None]] = []
    before: int | None = None
    for x, y, attempt in points:
        if before is not None and attempt != before:
            found.append((x, None))
        found.append((x, y))
        before = attempt
    return found


def _x_values(curve: MetricCurve, axis: Axis) -> list[Any]:
    column = curve.column(axis.value)
    if axis is not Axis.TIME:
        return [
            None if x is None else float(f"{x:.6g}") if axis is Axis.EPOCH else x for x in column
        ]
    return [words.on_chart(datetime.fromtimestamp(at, UTC)) for at in column]


def _y_values(curve: MetricCurve) -> list[float | None]:
    return [None if y is None else float(f"{y:.6g}") for y in curve.column("value")]


def _layout(lanes: Sequence[str], axis: Axis) -> dict[str, Any]:
    """Stack the lanes; the first one is twice as high as the others."""
    heights = [2.0, *[1.0] * (len(lanes) - 1)] if len(lanes) > 1 else [1.0]
    unit = (1.0 - LANE_GAP * (len(heights) - 1)) / sum(heights)
    titles = {Axis.STEP: _("step"), Axis.TIME: "", Axis.EPOCH: _("epoch")}
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": titles[axis]},
            "anchor": f"y{len(lanes)}" if len(lanes) > 1 else "y",
        },
        "lanes": len(lanes),
    }
    top = 1.0
    for place, (lane, height) in enumerate(zip(lanes, heights, strict=False)):
        bottom = max(0.0, top - height * unit)
        layout[f"yaxis{place + 1 if place else ''}"] = {
            "domain": [round(bottom, 4), round(top, 4)],
            "title": {"text": lane},
            "rangemode": "normal",
        }
        top = bottom - LANE_GAP
    return layout


def _marks(
    curves: Sequence[MetricCurve], life: JobLife, axis: Axis
) -> Iterator[Mapping[str, Any]]:
    """Yield marks of changes and checkpoints at their place on the axis."""
    if not curves or not len(curves[0].buckets):
        return
    place = _Place(curves[0], axis)
    for mark in marks_of(life):
        x = place.at(mark.at)
        if x is not None:
            yield {"x": x, "text": str(mark.what), "detail": str(mark.cause), "line": True}
    for at in life.checkpoints[-MOST_CHECKPOINTS:]:
        x = place.at(at)
        if x is not None:
            yield {"x": x, "text": _("checkpoint saved"), "line": False}


class _Place:
    """Places of times on the axis, by the newest point of a curve at or before them."""

    def __init__(self, curve: MetricCurve, axis: Axis) -> None:
        self._times = curve.column("time")
        self._values = _x_values(curve, axis)
        order = sorted(range(len(self._times)), key=self._times.__getitem__)
        self._times = [self._times[one] for one in order]
        self._values = [self._values[one] for one in order]
        self._is_time = axis is Axis.TIME

    def at(self, moment: datetime) -> Any:
        """Return the place of a time; None if it lies outside of the curve."""
        seconds = moment.timestamp()
        place = bisect.bisect_right(self._times, seconds) - 1
        if place < 0 or (place == len(self._times) - 1 and seconds > self._times[-1] + _SLACK):
            return None
        return words.on_chart(moment) if self._is_time else self._values[place]


_SLACK: Final = 120.0
"""Seconds after the last point of a curve in which a mark is still shown at its end."""
