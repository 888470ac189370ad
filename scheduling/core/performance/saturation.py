"""Expected speed of a job at every size that it may have, and the size at which it saturates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from scheduling.core.performance.live import LiveModel
from scheduling.core.policy_interface import PolicyJob, Shape
from scheduling.core.values import JobFacts

ENOUGH: Final = 0.95
"""Fraction of the maximum pace at which a job counts as saturated."""

MOST_SIZES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The expected goodput of a job by size, on one device type.

    Beyond the measured sizes, the pace is only bounded: between no gain and perfect scaling from
    the nearest measured size (``bounds``).

    Attributes:
        type: the device type.
        sizes: devices and steps per second (of the initial batch, where batches change).
        requested: requested devices.
        saturates: the first measured size beyond which the gain is negligible.
        seen: measured sizes.
        bounds: minimum and maximum pace at each of ``sizes``.
        efficiencies: measured sizes of ``sizes`` with their pace as a share of perfect scaling
            from the smallest of them.
    """

    type: str
    sizes: tuple[tuple[int, float], ...]
    requested: int
    saturates: int
    seen: tuple[int, ...]
    bounds: tuple[tuple[float, float], ...] = ()
    efficiencies: tuple[tuple[int, float], ...] = ()

    @property
    def has_gains(self) -> bool:
        """Whether at least two sizes were measured, so that gains can be computed."""
        return len(self.seen) > 1


def predicted(job: PolicyJob, known: JobFacts) -> Prediction | None:
    """Predict the curve of a job on the type of its last run; None before it reports steps.

    Args:
        job: the job with its owner's declarations.
        known: observed facts of the job.
    """
    if not known.seen:
        return None
    last = known.seen[-1]
    on_node = max(max(1, run.devices // max(1, run.nodes)) for run in known.seen)
    on_node = max(on_node, *(member.devices for member in job.demand.members))
    scale = job.terms.scale
    sizes = list(range(scale.minimum, scale.maximum + 1)) if scale else [job.gang]
    sizes = [n for n in sizes if job.allows(n)]
    sizes = _few(sizes or [job.gang], job.gang)
    model = LiveModel([job], {job.id: known})
    measured = sorted({run.devices for run in known.seen if run.type == last.type})

    def rate(n: int) -> float:
        return model.rate(job, Shape(type=last.type, nodes=ceil(n / on_node), devices=n))

    rates = [(n, _between(n, rate, measured)) for n in sizes]
    at_measured = [(n, rate(n)) for n in measured]
    most = max(pace for _, pace in at_measured)
    first, pace_of_first = at_measured[0]
    return Prediction(
        type=last.type,
        sizes=tuple(rates),
        requested=job.gang,
        saturates=next(n for n, pace in at_measured if pace >= ENOUGH * most),
        seen=tuple(measured),
        bounds=tuple(_bounds(n, at_measured) for n in sizes),
        efficiencies=tuple((n, pace * first / (n * pace_of_first)) for n, pace in at_measured)
        if pace_of_first > 0
        else (),
    )


def _bounds(n: int, measured: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the minimum and maximum pace at a size: no gain or perfect scaling of neighbours."""
    below = [one for one in measured if one[0] <= n]
    above = [one for one in measured if one[0] >= n]
    if below and above:
        low, high = sorted((below[-1][1], above[0][1]))
        return low, high
    size, pace = below[-1] if below else above[0]
    low, high = sorted((pace, pace * n / size))
    return low, high


def _few(sizes: Sequence[int], gang: int) -> list[int]:
    """Select at most `MOST_SIZES` sizes, including the first, the last and the requested one."""
    if len(sizes) <= MOST_SIZES:
        return list(sizes)
    stride = ceil(len(sizes) / (MOST_SIZES - 2))
    return sorted({*sizes[::stride], sizes[-1], *({gang} & set(sizes))})


def _between(n: int, rate: Callable[[int], float], measured: Sequence[int]) -> float:
    """Return the fitted pace at a size, limited to those of its measured neighbours."""
    below = [size for size in measured if size < n]
    above = [size for size in measured if size > n]
    if n in measured or not below or not above:
        return rate(n)
    low, high = sorted((rate(below[-1]), rate(above[0])))
    return min(max(rate(n), low), high)
