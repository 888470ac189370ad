"""Histogram of jobs' waits for their first start."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

BOUNDS: Final = (1.0, 2.5, 5.0, *(5.0 * 2**power for power in range(1, 12)))
"""Upper bounds of the classes in seconds, as in Kueue: 1 s to 10,240 s."""

CLASSES: Final = len(BOUNDS) + 1
"""Number of classes; the last one has no bound."""


def wait_class(seconds: float) -> int:
    """Return the class of a wait, 0 to ``CLASSES - 1``: the first bound of at least the wait."""
    return bisect_left(BOUNDS, seconds)


def cumulated(counts: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return a histogram for Prometheus: bounds with the cumulative number of waits.

    Args:
        counts: number of waits in each of the ``CLASSES`` classes.
    """
    bounds = [f"{bound:g}" for bound in BOUNDS]
    return tuple(zip((*bounds, "+Inf"), accumulate(counts), strict=True))
