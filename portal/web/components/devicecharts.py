"""Small charts of devices: load and memory as steps on the time axis that all ranks share."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import fmean
from typing import Final

from django.utils.translation import gettext

from portal.web.components import words
from workers.device_curves import DeviceCurve, JobCurves

WIDTH: Final = 220
HEIGHT: Final = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChart:
    """One small chart.

    Attributes:
        areas: filled paths, one for each span without a gap, in WIDTH x HEIGHT.
        lines: point lists of the lines on top of them.
        now: the last value as text; ``more``: the values over the whole life.
    """

    areas: tuple[str, ...]
    lines: tuple[str, ...]
    now: str
    more: str

    @property
    def summary(self) -> str:
        """Describe the chart as text."""
        return f"{self.now}, {self.more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One device of a rank; a trace is None without measurements."""

    role: str
    rank: int
    device: DeviceCurve
    load: DeviceChart | None
    memory: DeviceChart | None


def device_rows(curves: JobCurves) -> tuple[DeviceRow, ...]:
    """Build a row for every device of every rank."""
    return tuple(
        DeviceRow(
            role=rank.role,
            rank=rank.rank,
            device=device,
            load=_load(device, curves),
            memory=_memory(device, curves),
        )
        for rank in curves.ranks
        for device in rank.devices
    )


def _load(device: DeviceCurve, curves: JobCurves) -> DeviceChart | None:
    told = [(p.at, p.utilisation) for p in device.points if p.utilisation is not None]
    if not told:
        return None
    values = [value for _, value in told]
    mean = words.percent(fmean(values))
    return _trace(told, curves, top=1.0, now=words.percent(values[-1]), more=_mean(mean))


def _memory(device: DeviceCurve, curves: JobCurves) -> DeviceChart | None:
    told = [(p.at, float(p.memory_bytes)) for p in device.points if p.memory_bytes is not None]
    if not told:
        return None
    values = [value for _, value in told]
    most = max(values)
    top = max(most, device.memory_bytes or 0.0) or 1.0
    return _trace(
        told, curves, top=top, now=words.file_size(values[-1]), more=_most(words.file_size(most))
    )


def _mean(value: str) -> str:
    return gettext("on average %(value)s") % {"value": value}


def _most(value: str) -> str:
    return gettext("at most %(most)s") % {"most": value}


def _trace(
    told: Sequence[tuple[datetime, float]], curves: JobCurves, *, top: float, now: str, more: str
) -> DeviceChart:
    stretches = [_corners(part, curves, top) for part in _without_gaps(told, curves)]
    lines = [" ".join(f"{x:.1f},{y:.1f}" for x, y in corners) for corners in stretches]
    areas = [
        f"M{corners[0][0]:.1f},{HEIGHT} L{line} L{corners[-1][0]:.1f},{HEIGHT} Z"
        for corners, line in zip(stretches, lines, strict=True)
    ]
    return DeviceChart(areas=tuple(areas), lines=tuple(lines), now=now, more=more)


def _without_gaps(
    told: Sequence[tuple[datetime, float]], curves: JobCurves
) -> list[list[tuple[datetime, float]]]:
    """Split points into segments; single missing points are tolerated."""
    steps = [(b[0] - a[0]).total_seconds() for a, b in pairwise(told)]
    usual = max(curves.span_seconds, min(steps, default=0))
    found = [[told[0]]]
    for step, point in zip(steps, told[1:], strict=True):
        if step > 2.5 * usual:
            found.append([])
        found[-1].append(point)
    return found


def _corners(
    part: Sequence[tuple[datetime, float]], curves: JobCurves, top: float
) -> list[tuple[float, float]]:
    """Return a point in the middle of each span, and the ends of the first and the last span."""
    if curves.since is None or curves.until is None:
        return []
    begin, whole = curves.since, (curves.until - curves.since).total_seconds() or 1.0

    def x(at: datetime, seconds: float) -> float:
        share = ((at - begin).total_seconds() + seconds) / whole
        return WIDTH * min(max(share, 0.0), 1.0)

    def y(value: float) -> float:
        return 1 + (HEIGHT - 2) * (1 - min(value / top, 1.0))

    span = curves.span_seconds
    middles = [(x(at, span / 2), y(value)) for at, value in part]
    first, last = part[0], part[-1]
    return [(x(first[0], 0), y(first[1])), *middles, (x(last[0], span), y(last[1]))]
