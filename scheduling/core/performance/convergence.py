"""Remaining training steps: Optimus' curve of the loss (EuroSys '18, section 3.1).

Losses are assumed to fall as ``1 / (b0 k + b1) + b2`` with ``k`` the step or epoch. For a fixed
``b2`` the inverse of the loss above it is linear in ``k``, so a grid over ``b2`` and non-negative
least squares fit it in well under a millisecond.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt
import scipy  # imported at the first fit of a curve, not at the start of the portal

Floats = npt.NDArray[np.float64]

FLAT: Final = 0.005
"""Minimum fall over an interval, relative to the largest loss; a smaller fall counts as flat."""

STRETCHES: Final = 20.0
_GRID = 20
_OUTLIER = 4.0
_ENOUGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """A fitted curve, in units of the largest observed loss.

    Attributes:
        slope: ``b0``, at least 0.
        offset: ``b1``, above 0.
        floor: ``b2``, the limit of the loss.
        error: root mean square of the residuals.
    """

    slope: float
    offset: float
    floor: float
    error: float

    def at(self, step: float) -> float:
        """Return the loss at a step."""
        return 1.0 / (self.slope * step + self.offset) + self.floor

    def converged_at(self, decrease: float, every: float = 1.0) -> float:
        """Return the step after which the loss falls less than ``decrease`` per ``every`` steps.

        The curve is convex, so it remains flat after that step. The result is inf if the curve
        is never flat, which is impossible for a positive ``decrease``.
        """
        if self.at(0.0) - self.at(every) < decrease:
            return 0.0
        low, high = 0.0, every
        while self.at(high) - self.at(high + every) >= decrease:
            low, high = high, high * 2
            if high > 1e18:
                return inf
        while high - low > 1e-6 * high + 1e-9:
            middle = (low + high) / 2
            if self.at(middle) - self.at(middle + every) < decrease:
                high = middle
            else:
                low = middle
        return high


def fit_losses(points: Sequence[tuple[float, float]]) -> LossCurve | None:
    """Fit the curve to a series of (step, loss); return None for fewer than three usable points.

    Losses are divided by the largest; outliers are dropped.
    """
    series = np.array(
        [(step, loss) for step, loss in points if np.isfinite(loss) and loss > 0], dtype=np.float64
    ).reshape(-1, 2)
    series = series[np.argsort(series[:, 0], kind="stable")]
    series = series[_near_neighbours(series[:, 1])]
    if len(series) < _ENOUGH:
        return None
    steps, losses = series[:, 0], series[:, 1] / series[:, 1].max()
    best: LossCurve | None = None
    for floor in np.linspace(0.0, losses.min(), _GRID, endpoint=False):
        curve = _fit_above(steps, losses, float(floor))
        if curve is not None and (best is None or curve.error < best.error):
            best = curve
    return best


def steps_left(
    points: Sequence[tuple[float, float]], *, decrease: float, every: float = 1.0
) -> float | None:
    """Predict the steps from the last point until the loss is flat; None if not predictable."""
    curve = fit_losses(points)
    if curve is None:
        return None
    return max(0.0, curve.converged_at(decrease, every) - max(step for step, _ in points))


def steps_until_flat(points: tuple[tuple[float, float], ...]) -> float | None:
    """Predict the steps until the loss is nearly flat; None if not predictable.

    Epochs are unknown, so the interval is a twentieth of the steps so far. The newest point
    defines the current progress, and the other points the curve. So the curve is fitted again only
    for a new stored point, not for every report.
    """
    curve = _curve(points[:-1] if len(points) > _ENOUGH else points)
    if curve is None:
        return None
    last = max(step for step, _ in points)
    every = max(1.0, last / STRETCHES)
    return max(0.0, curve.converged_at(FLAT, every) - last)


@lru_cache(maxsize=4_096)
def _curve(points: tuple[tuple[float, float], ...]) -> LossCurve | None:
    return fit_losses(points)


def _fit_above(steps: Floats, losses: Floats, floor: float) -> LossCurve | None:
    above = losses - floor
    # The inverse magnifies errors where the loss is small; the weights compensate for this.
    weights = above**2
    columns = np.column_stack((steps, np.ones(len(steps)))) * weights[:, None]
    (slope, offset), _ = scipy.optimize.nnls(columns, weights / above)
    if offset <= 0:
        return None
    residuals = 1.0 / (slope * steps + offset) - above
    error = float(np.sqrt(np.mean(residuals**2)))
    return LossCurve(slope=float(slope), offset=float(offset), floor=floor, error=error)


def _near_neighbours(losses: Floats) -> npt.NDArray[np.bool_]:
    """Return the mask of losses close to the median of the five around them."""
    if len(losses) < 5:
        return np.ones(len(losses), dtype=np.bool_)
    padded = np.pad(losses, 2, mode="edge")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    off = np.abs(losses - medians)
    near: npt.NDArray[np.bool_] = off <= _OUTLIER * max(float(np.median(off)), 1e-3 * losses.max())
    # A steep beginning is not an outlier.
    near[:2] = True
    return near
