"""The losses of one run, few enough to keep: evenly over it, the further apart the longer."""

from collections.abc import Sequence
from functools import lru_cache
from json import loads
from math import isfinite
from typing import Final

KEPT: Final = 16
"""Points of one run; when there are so many, every other one goes."""

TOLD: Final = 48
"""Points of all runs of a job that are told, the newest ones."""


def with_loss(
    points: Sequence[Sequence[float]], step: int, loss: float
) -> list[Sequence[float]] | None:
    """The points with one more; None: it is too near to the one before to be kept.

    Args:
        points: (step, loss) as they were kept so far, the oldest first.
        step: number of the newest step.
        loss: of this step.
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
    """The points in the JSON that was stored; the same text gives the same points."""
    return tuple((float(step), float(loss)) for step, loss in loads(text))
