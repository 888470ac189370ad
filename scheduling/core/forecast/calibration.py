"""Mending quantiles by how often earlier ones were wrong, and measuring them.

Each quantile is moved, on a logarithmic scale, by the same quantile of its past errors (conformal
quantile regression, Romano, Patterson and Candes, NeurIPS 2019). Jobs that still wait have errors
at least as large as so far: they count as such, or the slow ones would always be missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

LEVELS: Final = (0.1, 0.5, 0.9)
OFFSET: Final = 60.0
"""Seconds added before a logarithm is taken, so that a minute more or less is no great error."""

LEAST: Final = 30
"""With fewer past errors in each half nothing is mended."""

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
            max(0.0, (seconds + OFFSET) * exp(shift) - OFFSET)
            for seconds, shift in zip(quantiles, self.shifts, strict=True)
        ]
        p10, p50, p90 = sorted(moved)
        return p10, p50, p90


def learn(past: Sequence[Told]) -> Correction:
    """The correction that past estimates call for, the oldest first.

    It is kept only if what the older part teaches would have made the newer part better.
    """
    half = len(past) // 2
    newer = [told for told in past[half:] if told.started]
    if half < LEAST or not newer:
        return Correction()
    taught = _shifts(past[:half])
    before = sum(pinball(told.quantiles, told.wait) for told in newer)
    after = sum(pinball(taught.mend(told.quantiles), told.wait) for told in newer)
    return _shifts(past) if after < before else Correction()


def _shifts(past: Sequence[Told]) -> Correction:
    p10, p50, p90 = (
        _quantile(
            [
                (log((told.wait + OFFSET) / (told.quantiles[place] + OFFSET)), not told.started)
                for told in past
            ],
            level,
        )
        for place, level in enumerate(LEVELS)
    )
    return Correction(shifts=(p10, p50, p90))


def _quantile(errors: list[tuple[float, bool]], level: float) -> float:
    """The quantile of errors of which some are only known to be at least so large."""
    left, found = 1.0, max(error for error, _ in errors)
    for place, (error, is_open) in enumerate(sorted(errors)):
        left *= 1.0 if is_open else 1.0 - 1.0 / (len(errors) - place)
        if 1.0 - left >= level:
            found = error
            break
    return found * len(errors) / (len(errors) + TRUST)


def pinball(quantiles: Sequence[float], truth: float) -> float:
    """Mean pinball loss at 10, 50 and 90 %, in the unit of the arguments."""
    losses = [
        max(level * (truth - seconds), (level - 1.0) * (truth - seconds))
        for level, seconds in zip(LEVELS, quantiles, strict=True)
    ]
    return sum(losses) / len(losses)
