"""Interpolation of measured times between the sizes at which they were measured."""

from collections.abc import Sequence
from math import exp, log

import numpy as np


def interpolated(x: float, sizes: Sequence[float], values: Sequence[float]) -> float:
    """Interpolate linearly; extend the last segment above, and hold the first value below.

    Small micro-batches cost more per sample, so a line through the origin would be too low. With
    one measured size, the value above it grows in proportion.

    Args:
        x: the size of interest.
        sizes: measured sizes, strictly increasing and positive.
        values: measured value at each size.
    """
    if x <= sizes[-1]:
        return float(np.interp(x, sizes, values))
    if len(sizes) == 1:
        return values[0] * x / sizes[0]
    slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
    return values[-1] + max(slope, 0.0) * (x - sizes[-1])


def interpolated_from_zero(x: float, sizes: Sequence[float], values: Sequence[float]) -> float:
    """Interpolate linearly, but on logarithmic scales below the first size; 0 at size 0.

    The line below the first size goes through the first two points. It never rises towards
    smaller sizes, as noise of the measurement could suggest.
    """
    if x <= 0:
        return 0.0
    if x >= sizes[0] or len(sizes) == 1 or values[0] <= 0 or values[1] <= 0:
        return interpolated(x, sizes, values)
    slope = (log(values[1]) - log(values[0])) / (log(sizes[1]) - log(sizes[0]))
    return values[0] * exp(max(slope, 0.0) * (log(x) - log(sizes[0])))
