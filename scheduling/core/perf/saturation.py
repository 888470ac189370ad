"""How fast a job is expected to be at every size that it may have, and where more is no use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from scheduling.core.perf.live import LiveModel
from scheduling.core.planning import PolicyJob, Shape
from scheduling.core.values import Known

ENOUGH: Final = 0.95
"""A job saturates at the first size with so much of the most that it can reach."""

MOST_SIZES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The expected goodput of a job by size, on one device type.

    Attributes:
        type: the device type.
        sizes: devices and steps per second (of the initial batch, where batches change).
        requested: devices that it asks for.
        saturates: the first size beyond which hardly anything is gained.
        seen: sizes at which it has been measured.
    """

    type: str
    sizes: tuple[tuple[int, float], ...]
    requested: int
    saturates: int
    seen: tuple[int, ...]


def predicted(job: PolicyJob, known: Known) -> Prediction | None:
    """The curve of a job on the type on which it ran last; None before it told of steps.

    Args:
        job: with what its owner has declared.
        known: what it has shown.
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
    most = max(rate for _, rate in rates)
    return Prediction(
        type=last.type,
        sizes=tuple(rates),
        requested=job.gang,
        saturates=next(n for n, rate in rates if rate >= ENOUGH * most),
        seen=tuple(measured),
    )


def _few(sizes: Sequence[int], gang: int) -> list[int]:
    """At most `MOST_SIZES` of them, from the first to the last, with the one that is asked for."""
    if len(sizes) <= MOST_SIZES:
        return list(sizes)
    stride = ceil(len(sizes) / (MOST_SIZES - 2))
    return sorted({*sizes[::stride], sizes[-1], *({gang} & set(sizes))})


def _between(n: int, rate: Callable[[int], float], measured: Sequence[int]) -> float:
    """The fitted pace at a size, which lies between those of its neighbours that were measured."""
    below = [size for size in measured if size < n]
    above = [size for size in measured if size > n]
    if n in measured or not below or not above:
        return rate(n)
    low, high = sorted((rate(below[-1]), rate(above[0])))
    return min(max(rate(n), low), high)
