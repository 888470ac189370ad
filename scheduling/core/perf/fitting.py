"""Fitting the throughput model to the steps that a job has been seen to take.

Where nothing has been seen the priors are optimistic, so that a job is tried on more devices:
perfect scaling until several devices, several nodes or more than two devices have been used
(Pollux, OSDI '21, section 4.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import minimize

from scheduling.core.perf.throughput import SMALLEST, Floats, Throughput

_START: Final = (1e-1, 1e-2, 1e-1, 1e-2, 1e-1, 1e-2, 1.0 + 1e-3)
_LOWEST: Final = (SMALLEST,) * 6 + (1.0,)
_HIGHEST: Final = (np.inf,) * 6 + (10.0,)
_TOLERANCE: Final = 1e-5
_GAMMA_WEIGHT: Final = 1e-3
_GROWTH_WEIGHT: Final = 1e-2
_ALPHA_C, _ALPHA_N, _BETA_N, _ALPHA_R, _BETA_R, _GAMMA = 0, 2, 3, 4, 5, 6


class Observation(NamedTuple):
    """One measured kind of step: where, at which batch per device, and how long it took.

    Attributes:
        step: seconds of a step without accumulation.
        sync: the part of it in which the devices only exchanged gradients.
    """

    nodes: int
    devices: int
    local_batch: int
    step: float
    sync: float


def fit_throughput(observations: Sequence[Observation]) -> Throughput:
    """The constants under which the model comes closest to what was seen.

    Minimises the root mean square errors of the logarithms of pass and step times, with a small
    weight on overlap and on growth of the exchange.

    Raises:
        ValueError: there are no observations.
    """
    if not observations:
        raise ValueError("nothing has been observed")
    seen = _Seen.of(observations)
    start, low, high = _priors(seen)
    found = minimize(
        _objective,
        start,
        args=(seen,),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"ftol": _TOLERANCE, "gtol": _TOLERANCE},
    )
    values = [float(value) for value in found.x]
    if not seen.several_nodes.any():
        # Between nodes it can only be slower than inside one.
        values[_ALPHA_N] = max(values[_ALPHA_N], values[_ALPHA_R] * 1.1)
        values[_BETA_N] = max(values[_BETA_N], values[_BETA_R] * 1.1)
    return Throughput(*values)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The observations as arrays."""

    batch: Floats
    log_pass: Floats
    log_step: Floats
    mean_pass: float
    several_nodes: Floats
    one_node: Floats
    beyond_two: Floats
    alone: Floats
    one_batch: bool
    beyond: bool

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "_Seen":
        nodes, devices, batch, step, sync = np.array(observations, dtype=np.float64).T
        passes = step - sync
        several = (nodes > 1).astype(np.float64)
        inside = ((nodes <= 1) & (devices > 1)).astype(np.float64)
        return cls(
            batch=batch,
            log_pass=np.log(passes),
            log_step=np.log(step),
            mean_pass=float(passes.mean()),
            several_nodes=several,
            one_node=inside,
            beyond_two=np.maximum(devices - 2, SMALLEST),
            alone=(1.0 - several - inside) * (SMALLEST + SMALLEST * SMALLEST),
            one_batch=bool((batch == batch[0]).all()),
            beyond=bool((devices > 2).any()),
        )


def _priors(seen: _Seen) -> tuple[list[float], list[float], list[float]]:
    """Start, lower and upper bounds, with what cannot be known held fast."""
    start, low, high = list(_START), list(_LOWEST), list(_HIGHEST)

    def hold(index: int, value: float) -> None:
        start[index] = low[index] = high[index] = value

    if seen.one_batch:
        hold(_ALPHA_C, seen.mean_pass / 2)
    if not seen.several_nodes.any():
        hold(_ALPHA_N, SMALLEST)
        hold(_BETA_N, SMALLEST)
    if not seen.one_node.any():
        hold(_ALPHA_R, SMALLEST)
        hold(_BETA_R, SMALLEST)
    if not seen.beyond:
        hold(_BETA_N, SMALLEST)
        hold(_BETA_R, SMALLEST)
    return start, low, high


def _objective(values: Floats, seen: _Seen) -> tuple[float, Floats]:
    """The error and its gradient."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = values.tolist()
    count = len(seen.batch)
    passes = alpha_c + beta_c * seen.batch
    exchange = (
        seen.several_nodes * (alpha_n + beta_n * seen.beyond_two)
        + seen.one_node * (alpha_r + beta_r * seen.beyond_two)
        + seen.alone
    )
    log_passes, log_exchange = np.log(passes), np.log(exchange)
    pass_power, exchange_power = np.exp(gamma * log_passes), np.exp(gamma * log_exchange)
    total = pass_power + exchange_power
    log_total = np.log(total)
    pass_error, step_error = log_passes - seen.log_pass, log_total / gamma - seen.log_step
    pass_loss = float(np.sqrt(pass_error @ pass_error / count))
    step_loss = float(np.sqrt(step_error @ step_error / count))
    by_pass = pass_error / (count * pass_loss) if pass_loss else np.zeros(count)
    by_step = step_error / (count * step_loss) if step_loss else np.zeros(count)
    by_compute = by_pass / passes + by_step * (pass_power / passes) / total
    by_exchange = by_step * (exchange_power / exchange) / total
    growth_n, growth_r = beta_n / alpha_n, beta_r / alpha_r
    shares = (pass_power * log_passes + exchange_power * log_exchange) / total
    by_nodes, by_node = by_exchange * seen.several_nodes, by_exchange * seen.one_node
    gradient = np.array(
        [
            by_compute.sum(),
            by_compute @ seen.batch,
            by_nodes.sum() - 2 * _GROWTH_WEIGHT * growth_n * growth_n / alpha_n,
            by_nodes @ seen.beyond_two + 2 * _GROWTH_WEIGHT * growth_n / alpha_n,
            by_node.sum() - 2 * _GROWTH_WEIGHT * growth_r * growth_r / alpha_r,
            by_node @ seen.beyond_two + 2 * _GROWTH_WEIGHT * growth_r / alpha_r,
            by_step @ (shares / gamma - log_total / (gamma * gamma))
            + 2 * _GAMMA_WEIGHT * (gamma - 1.0),
        ]
    )
    loss = pass_loss + step_loss + _GAMMA_WEIGHT * (gamma - 1.0) ** 2
    return loss + _GROWTH_WEIGHT * (growth_n * growth_n + growth_r * growth_r), gradient
