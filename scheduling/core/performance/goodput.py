"""Goodput: steps of the initial batch per second, with the best batch and accumulation.

Throughput times statistical efficiency (Pollux, OSDI '21, section 3). A pass over ``m`` samples on
one device takes ``alpha_c + beta_c m``; exchanging gradients takes ``alpha + beta (n - 2)`` on
``n`` devices, with one pair of constants inside a node and one between nodes; ``gamma`` sets the
overlap of both (1: none, 10: almost entire). The job's limits determine the candidate batch sizes
at each size, so their tables are computed once and cached.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tessera.efficiency import gain

Floats: TypeAlias = NDArray[np.float64]

SMALLEST: Final = 1e-8


class Throughput(NamedTuple):
    """The seven constants of a job on one device type; times in seconds."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float


def pass_times(model: Throughput, local_batch: Any) -> Any:
    """Return seconds of a forward and backward pass over ``local_batch`` samples per device."""
    return model.alpha_c + model.beta_c * local_batch


def exchange_time(model: Throughput, nodes: int, devices: int) -> float:
    """Return the seconds of a gradient exchange between the devices."""
    beyond = max(devices - 2, SMALLEST)
    if nodes > 1:
        return model.alpha_n + model.beta_n * beyond
    if devices > 1:
        return model.alpha_r + model.beta_r * beyond
    return SMALLEST + SMALLEST * beyond


def step_times(model: Throughput, passes: Any, exchange: Any, accumulation: Any) -> Any:
    """Return the seconds of a complete step.

    Args:
        model: the job's constants.
        passes: seconds of one pass.
        exchange: seconds of the exchange at its end.
        accumulation: passes before the last one.
    """
    overlapped = (passes**model.gamma + exchange**model.gamma) ** (1.0 / model.gamma)
    return accumulation * passes + overlapped


_SAMPLES: Final = 50
_ROUNDING: Final = 1e-8


class Noise(NamedTuple):
    """A job's gradient statistics: squared norm and variance, at the initial batch size."""

    sqr: float
    var: float


class BatchChoice(NamedTuple):
    """A batch per device, the passes before the last one, and the goodput of both."""

    local_batch: int
    accumulation: int
    goodput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Possible batches of a job on one device type.

    Attributes:
        initial: the total batch for which its learning rate was chosen; never less.
        largest: maximum total batch.
        local_min: minimum batch per device and pass.
        local_max: maximum batch per device and pass.
        fixed: the total batch never changes: it is ``largest``.
    """

    initial: int
    largest: int
    local_min: int
    local_max: int
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """Batches worth trying on one or several shapes, as arrays ``(shapes, samples)``.

    Attributes:
        inverse_scale: initial over total batch.
        blocked: samples that the limits forbid.
    """

    local_batch: Floats
    accumulation: Floats
    inverse_scale: Floats
    blocked: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"


@lru_cache(maxsize=65_536)
def candidates(limits: BatchLimits, devices: int) -> Candidates:
    """Return 50 total batches, spaced evenly by ratio, split over a number of devices."""
    low = float(limits.largest)
    if not limits.fixed:
        low = float(max(limits.initial, limits.local_min * devices))
    local = np.geomspace(low, float(limits.largest), _SAMPLES) / devices
    accumulation = np.ceil(local / limits.local_max - _ROUNDING) - 1
    if devices == 1:
        # A single gradient has no information on the noise that a larger batch would average out.
        larger = local > limits.initial + _ROUNDING
        accumulation = np.where(larger, np.maximum(accumulation, 1), accumulation)
    batch = np.ceil(local / (accumulation + 1) - _ROUNDING)
    return Candidates(
        local_batch=batch,
        accumulation=accumulation,
        inverse_scale=limits.initial / (devices * batch * (accumulation + 1)),
        blocked=(batch < limits.local_min) | (batch > limits.local_max),
    )


def best_batch(
    model: Throughput, noise: Noise, limits: BatchLimits, nodes: int, devices: int
) -> BatchChoice:
    """Return the batch per device and the accumulation that train fastest on one shape."""
    table = candidates(limits, devices)
    exchange = exchange_time(model, nodes, devices)
    passes = model.alpha_c + model.beta_c * table.local_batch
    overlapped = (passes**model.gamma + exchange**model.gamma) ** (1.0 / model.gamma)
    times = table.accumulation * passes + overlapped
    worth = gain(noise.sqr, noise.var, table.inverse_scale)
    values = np.where(table.blocked, 0.0, worth / times)
    index = int(values.argmax())
    return BatchChoice(
        int(table.local_batch[index]), int(table.accumulation[index]), float(values[index])
    )
