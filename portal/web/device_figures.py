"""Charts of the utilisation and memory of a job's devices, with axes."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Any, Final

from django.http import HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.api.history import csv_file
from portal.api.queries import Query
from portal.web.components import words
from portal.web.viewing import PageRequest, page
from tenants.errors import NotFoundError
from workers.device_curves import DeviceCurve, DevicePoint, JobCurves, RankCurves, device_curves

MOST_LINES: Final = 8
"""Devices with a line of their own; more are drawn as mean, lowest and highest."""
CSV_HEAD: Final = ("at", "role", "rank", "node", "device", "utilisation", "memory_bytes")
_GIGABYTE: Final = 1e9

Value = Callable[[DevicePoint], float | None]
Line = tuple[str, dict[datetime, float]]


@require_safe
@page
def figure(asked: PageRequest, job_id: int, chart: str) -> HttpResponse:
    """Return one figure as JSON, or the values of all devices as CSV."""
    query = Query(asked.http.GET, ("format", "since", "until"))
    query.choices("format", ("json", "csv"))
    if chart not in ("utilisation", "memory"):
        raise NotFoundError(_("This chart does not exist."), field="chart", value=chart)
    curves = device_curves(asked.viewer, job_id, now=asked.now)
    if query.text("format") == "csv":
        rows = _rows(curves, query.moment("since"), query.moment("until"))
        return csv_file(CSV_HEAD, rows, f"job-{job_id}-devices.csv")
    built = utilisation_figure(curves) if chart == "utilisation" else memory_figure(curves)
    return JsonResponse(built, headers={"Cache-Control": "private, no-store"})


def _rows(
    curves: JobCurves, since: datetime | None, until: datetime | None
) -> Iterator[tuple[str, ...]]:
    for rank, device in _devices(curves):
        for point in device.points:
            if (since is None or point.at >= since) and (until is None or point.at <= until):
                yield (
                    point.at.astimezone(UTC).isoformat(),
                    rank.role,
                    str(rank.rank),
                    device.node,
                    str(device.index),
                    "" if point.utilisation is None else str(point.utilisation),
                    "" if point.memory_bytes is None else str(point.memory_bytes),
                )


def utilisation_figure(curves: JobCurves) -> dict[str, Any]:
    """Build lines of the utilisation in percent."""
    lines = _lines(curves, _utilisation)
    built = _figure(lines, curves, _("utilisation"), "%{y:.0f} %")
    built["layout"]["yaxis"] |= {"range": [0, 105], "ticksuffix": "\N{NO-BREAK SPACE}%"}
    values = [value for _name, points in lines for value in points.values()]
    if values:
        newest = [points[max(points)] for _name, points in lines]
        built["summary"] = _("Utilisation now %(now)s, on average %(mean)s.") % {
            "now": words.percent(fmean(newest) / 100),
            "mean": words.percent(fmean(values) / 100),
        }
    return built


def memory_figure(curves: JobCurves) -> dict[str, Any]:
    """Build lines of the memory in use, and the memory of the devices if it is the same."""
    lines = _lines(curves, _memory)
    built = _figure(lines, curves, "GB", "%{y:.1f} GB")
    sizes = {device.memory_bytes for _rank, device in _devices(curves)}
    size = sizes.pop() if len(sizes) == 1 else None
    if built["data"] and size:
        xs = built["data"][0]["x"]
        built["data"].append(
            _trace(_("memory of a device"), xs, [round(size / _GIGABYTE, 2)] * len(xs), "bad")
            | {"line": {"dash": "dash", "width": 1}}
        )
    values = [value for _name, points in lines for value in points.values()]
    if values:
        built["summary"] = _("At most %(most)s in use.") % {
            "most": words.file_size(max(values) * _GIGABYTE)
        }
    return built


def _utilisation(point: DevicePoint) -> float | None:
    return None if point.utilisation is None else round(100 * point.utilisation, 1)


def _memory(point: DevicePoint) -> float | None:
    return None if point.memory_bytes is None else round(point.memory_bytes / _GIGABYTE, 3)


def _devices(curves: JobCurves) -> Iterator[tuple[RankCurves, DeviceCurve]]:
    for rank in curves.ranks:
        for device in rank.devices:
            yield rank, device


def _lines(curves: JobCurves, value: Value) -> list[Line]:
    """Return name and values in the middle of each span, of devices with a value."""
    middle = timedelta(seconds=curves.span_seconds / 2)
    found = []
    for rank, device in _devices(curves):
        points = {
            point.at + middle: number
            for point in device.points
            if (number := value(point)) is not None
        }
        if points:
            found.append((f"{rank.role} {rank.rank}, {device.node}/{device.index}", points))
    return found


def _figure(lines: Sequence[Line], curves: JobCurves, title: str, hover: str) -> dict[str, Any]:
    times = _times(lines, curves.span_seconds)
    xs = [words.on_chart(time) for time in times]
    if len(lines) > MOST_LINES:
        traces = _spread(lines, times, xs)
    else:
        traces = [
            _trace(name, xs, [points.get(time) for time in times], f"c{place + 1}")
            for place, (name, points) in enumerate(lines)
        ]
    for trace in traces:
        trace["hovertemplate"] = hover
    offset = words.local(times[-1]).utcoffset() if times else None
    return {
        "data": traces,
        "layout": {
            "xaxis": {"type": "date"},
            "yaxis": {"title": {"text": title}, "rangemode": "tozero"},
            "hovermode": "x unified",
        },
        "zone_seconds": offset.total_seconds() if offset else 0.0,
        "empty": _("No device metrics yet"),
        "summary": _("No device metrics yet"),
    }


def _times(lines: Sequence[Line], span: int) -> list[datetime]:
    """Return all times in order, with one in each gap, which breaks the lines there."""
    known = sorted({time for _name, points in lines for time in points})
    found: list[datetime] = []
    for time in known:
        if found and (time - found[-1]).total_seconds() > 2.5 * span:
            found.append(found[-1] + timedelta(seconds=span))
        found.append(time)
    return found


def _spread(
    lines: Sequence[Line], times: Sequence[datetime], xs: Sequence[str]
) -> list[dict[str, Any]]:
    """Build mean, lowest and highest of many devices."""
    parts: tuple[tuple[str, str, Callable[[Sequence[float]], float]], ...] = (
        (_("highest"), "text-3", max),
        (_("mean"), "c1", fmean),
        (_("lowest"), "text-3", min),
    )
    shown = [[points[time] for _name, points in lines if time in points] for time in times]
    return [
        _trace(name, xs, [round(part(each), 3) if each else None for each in shown], colour)
        for name, colour, part in parts
    ]


def _trace(
    name: str, xs: Sequence[str], ys: Sequence[float | None], colour: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(xs),
        "y": list(ys),
        "colour": colour,
    }
