"""Step times of live jobs, fitted to the reported steps.

A step of ``a`` passes over ``m`` samples on each of ``n`` devices takes ``a (alpha_c + beta_c m)``
and the exchange of gradients at its end, ``alpha + beta (n - 2)``: Pollux's model (OSDI '21,
section 3.2) without overlap, since `tessera.train` exchanges after the last pass. So it is linear,
and least squares of relative errors with non-negative constants have one solution. Unobserved
terms count as 0, so that a job is tried on more devices.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from scheduling.core.performance.goodput import BatchLimits, Noise
from scheduling.core.performance.throughput import SMALLEST, Throughput
from scheduling.core.policy_interface import Terms
from scheduling.core.values import Timed

_WEAK: Final = 1e-3
"""Weight of the prior for unobserved terms."""

_BETWEEN_NODES: Final = 1.1
"""Between nodes an exchange is at least so much slower than inside one."""


@lru_cache(maxsize=4_096)
def fit_steps(seen: tuple[Timed, ...]) -> Throughput | None:
    """The constants of a job on one device type; None without observations.

    Args:
        seen: steps on devices of that type.
    """
    told = [one for one in seen if one.steps > 0 and one.seconds > 0.0]
    if not told:
        return None
    from scipy.optimize import nnls  # noqa: PLC0415  slow to import, and seldom needed

    rows, seconds = _equations(told)
    solution, _ = nnls(np.array(rows), np.array(seconds))
    alpha_c, beta_c, alpha_r, beta_r, alpha_n, beta_n = (
        max(SMALLEST, float(value)) for value in solution
    )
    if not any(one.nodes > 1 for one in told):
        alpha_n = max(alpha_n, _BETWEEN_NODES * alpha_r)
        beta_n = max(beta_n, _BETWEEN_NODES * beta_r)
    return Throughput(alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, 1.0)


def _equations(told: Sequence[Timed]) -> tuple[list[list[float]], list[float]]:
    """One equation for each kind of step, in parts of its time, and weak ones for the rest."""
    rows: list[list[float]] = []
    for one in told:
        passes, samples = float(one.accumulation), one.batch / one.devices
        inside, between = float(one.nodes <= 1 < one.devices), float(one.nodes > 1)
        beyond = float(max(one.devices - 2, 0))
        weight = one.steps / one.seconds
        rows.append(
            [
                weight * passes,
                weight * samples,
                weight * inside,
                weight * inside * beyond,
                weight * between,
                weight * between * beyond,
            ]
        )
    seconds = [1.0] * len(rows)
    # With one size of pass only, half of its time is taken to be the same for all sizes.
    local = sum(one.batch / (one.devices * one.accumulation) for one in told) / len(told)
    step = sum(one.seconds / one.steps for one in told) / len(told)
    rows.append([_WEAK / step, -_WEAK * local / step, 0.0, 0.0, 0.0, 0.0])
    rows += [[0.0] * column + [_WEAK / step] + [0.0] * (5 - column) for column in range(2, 6)]
    return rows, seconds + [0.0] * 5


def limits_of(terms: Terms) -> BatchLimits | None:
    """Between which batches a job's may be chosen; None where its batch does not change."""
    if terms.batch is None or terms.max_batch is None:
        return None
    return BatchLimits(
        initial=terms.batch,
        largest=terms.max_batch,
        local_min=1,
        local_max=terms.max_local_batch or terms.max_batch,
    )


def noise_of(told: tuple[float, float] | None) -> Noise | None:
    """The reported gradient statistics of a job; None: not usable."""
    if told is None or sum(told) <= 0.0:
        return None
    return Noise(sqr=told[0], var=told[1])
