"""The losses of one run, thinned evenly for storage, with gaps that grow with the run."""

from collections.abc import Sequence
from functools import lru_cache
from json import loads
from math import isfinite
from typing import Final

KEPT: Final = 16
"""Maximum points of one run; then every other one is dropped."""

TOLD: Final = 48
"""Maximum points returned over all runs of a job, the newest."""


def with_loss(
    points: Sequence[Sequence[float]], step: int, loss: float
) -> list[Sequence[float]] | None:
    """Append a point; return None if it is too close to the previous one.

    Args:
        points: stored points (step, loss), oldest first.
        step: number of the newest step.
        loss: loss of this step.
    """
    if not isfinite(loss):
        return None
    if points:
        first, last = points[0][0], points[-1][0]
        gap = (last - first) / (len(points) - 1) if len(points) > 1 else 0.0
        if step <= last or step - last < gap:
            return None
    more = [*points, (step, loss)]
    return more[::2] if len(more) > KEPT else more


@lru_cache(maxsize=8_192)
def read_losses(text: str) -> tuple[tuple[float, float], ...]:
    """Parse the stored JSON into points; equal texts give equal points."""
    return tuple((float(step), float(loss)) for step, loss in loads(text))
