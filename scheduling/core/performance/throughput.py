"""Throughput: Pollux's model of the step time in data-parallel training (OSDI '21, section 3.2).

A pass over ``m`` samples on one device takes ``alpha_c + beta_c m``; exchanging gradients takes
``alpha + beta (n - 2)`` on ``n`` devices, with one pair of constants inside a node and one between
nodes; ``gamma`` sets the overlap of both (1: none, 10: almost entire).
"""

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    """Seconds of one forward and backward pass over ``local_batch`` samples on each device."""
    return model.alpha_c + model.beta_c * local_batch


def exchange_time(model: Throughput, nodes: int, devices: int) -> float:
    """Seconds in which the devices agree on a gradient."""
    beyond = max(devices - 2, SMALLEST)
    if nodes > 1:
        return model.alpha_n + model.beta_n * beyond
    if devices > 1:
        return model.alpha_r + model.beta_r * beyond
    return SMALLEST + SMALLEST * beyond


def step_times(model: Throughput, passes: Any, exchange: Any, accumulation: Any) -> Any:
    """Seconds of a whole step.

    Args:
        model: the job's constants.
        passes: seconds of one pass.
        exchange: seconds of the exchange at its end.
        accumulation: passes before the last one.
    """
    overlapped = (passes**model.gamma + exchange**model.gamma) ** (1.0 / model.gamma)
    return accumulation * passes + overlapped
