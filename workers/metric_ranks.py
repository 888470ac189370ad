"""Mean and range of a metric over the ranks of a job, at common places of an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.metrics import Axis, MetricCurve
from workers.services.rollups import means

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBand:
    """A metric over all ranks.

    Attributes:
        ranks: number of curves.
        x: places on the axis, ascending.
        mean, low, high: over the ranks that have values on both sides of a place.
    """

    name: str
    ranks: int
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def band_of(curves: Sequence[MetricCurve], axis: Axis) -> RankBand | None:
    """Return mean and range over the curves of one metric; None without a finite value.

    Values between two points of a rank are interpolated. Superseded points do not count.

    Args:
        curves: at least one, all of one metric.
        axis: the places are those of the curve with most points.
    """
    lines = [line for curve in curves if (line := _line(curve, axis)) is not None]
    if not lines:
        return None
    places = max(lines, key=lambda line: len(line[0]))[0]
    values = np.array([np.interp(places, *line, left=np.nan, right=np.nan) for line in lines])
    counts = np.isfinite(values).sum(axis=0)
    return RankBand(
        name=curves[0].name,
        ranks=len(lines),
        x=tuple(places.tolist()),
        mean=tuple((np.nansum(values, axis=0) / counts).tolist()),
        low=tuple(np.nanmin(values, axis=0).tolist()),
        high=tuple(np.nanmax(values, axis=0).tolist()),
    )


def _line(curve: MetricCurve, axis: Axis) -> tuple[_Numbers, _Numbers] | None:
    values, places = means(curve.buckets), curve.buckets[axis.value].astype(np.float64)
    kept = np.isfinite(values) & np.isfinite(places) & ~curve.is_superseded
    if not kept.any():
        return None
    places, order = np.unique(places[kept], return_index=True)
    return places, values[kept][order]


def broken_places(curve: MetricCurve, axis: Axis) -> list[tuple[int, int]]:
    """Return position and number of the values that are not finite, of points in force."""
    bad = curve.buckets["bad"]
    found = np.flatnonzero((bad > 0) & ~curve.is_superseded)
    places = curve.column(axis.value)
    return [(int(one), int(bad[one])) for one in found if _is_number(places[one])]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
