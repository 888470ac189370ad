"""Mending quantiles by how often earlier ones were wrong, and measuring them.

Each quantile is moved, on a logarithmic scale, by the same quantile of its past errors (conformal
quantile regression, Romano, Patterson and Candes, NeurIPS 2019). Jobs that still wait have errors
at least as large as so far: they count as such, or the slow ones would always be missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEVELS: Final = (0.1, 0.5, 0.9)
OFFSET: Final = 60.0
"""Seconds added before a logarithm is taken, so that a minute more or less is no great error."""

TRUST: Final = 60.0
"""So many past errors weigh as much as the belief that there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An estimate of old, as it came from the futures, and what became of it; in seconds.

    Attributes:
        quantiles: at 10, 50 and 90 %, before they were mended.
        wait: from the estimate to the start, or to now for one that still waits.
        started: whether the wait is over.
    """

    quantiles: tuple[float, float, float]
    wait: float
    started: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What is added to the logarithm of each quantile."""

    shifts: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def mend(self, quantiles: tuple[float, float, float]) -> tuple[float, float, float]:
        """The quantiles as they should have been, in order and not negative."""
        moved = [
            max(0.0, (seconds + OFFSET) * float(np.exp(shift)) - OFFSET)
            for seconds, shift in zip(quantiles, self.shifts, strict=True)
        ]
        p10, p50, p90 = sorted(moved)
        return p10, p50, p90


def learn(past: Sequence[Told]) -> Correction:
    """The correction that past estimates call for; none at all calls for none."""
    if not past:
        return Correction()
    started = np.array([told.started for told in past])
    shifts = []
    for place, level in enumerate(LEVELS):
        errors = np.array(
            [np.log((told.wait + OFFSET) / (told.quantiles[place] + OFFSET)) for told in past]
        )
        shifts.append(_quantile(errors, started, level))
    p10, p50, p90 = shifts
    return Correction(shifts=(p10, p50, p90))


def _quantile(errors: NDArray[np.float64], ended: NDArray[np.bool_], level: float) -> float:
    """The quantile of errors of which some are only known to be at least so large."""
    order = np.lexsort((~ended, errors))
    errors, ended = errors[order], ended[order]
    at_risk = np.arange(len(errors), 0, -1).astype(np.float64)
    left = np.cumprod(np.where(ended, 1.0 - 1.0 / at_risk, 1.0))
    reached = np.nonzero(1.0 - left >= level)[0]
    found = float(errors[reached[0]]) if len(reached) else float(errors[-1])
    weight = len(errors) / (len(errors) + TRUST)
    return weight * found


def pinball(quantiles: Sequence[float], truth: float) -> float:
    """Mean pinball loss at 10, 50 and 90 %, in the unit of the arguments."""
    losses = [
        max(level * (truth - seconds), (level - 1.0) * (truth - seconds))
        for level, seconds in zip(LEVELS, quantiles, strict=True)
    ]
    return sum(losses) / len(losses)
