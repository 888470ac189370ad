"""Fitting the throughput model to the observed steps of a job.

Without observations the priors are optimistic, so that a job is tried on more devices:
perfect scaling until several devices, several nodes or more than two devices have been used
(Pollux, OSDI '21, section 4.1). The objective is the sum of two root mean squares, which has
cusps where one of them is 0; damped Gauss-Newton steps on a quadratic that touches it from above
reach the optimum in about ten steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from scheduling.core.performance.goodput import SMALLEST, Floats, Throughput

_LOWEST: Final = (SMALLEST,) * 6 + (1.0,)
_HIGHEST: Final = (np.inf,) * 6 + (10.0,)
_START: Final = (1e-1, 1e-2, 1e-1, 1e-2, 1e-1, 1e-2, 1.0 + 1e-3)
_TOLERANCE: Final = 1e-5
_MOST_STEPS: Final = 60
_MOST_TRIALS: Final = 12
_FLAT: Final = 1e-6
_GAMMA_WEIGHT: Final = 1e-3
_GROWTH_WEIGHT: Final = 1e-2
_GAMMA_ROOT: Final = (2 * _GAMMA_WEIGHT) ** 0.5
_GROWTH_ROOT: Final = (2 * _GROWTH_WEIGHT) ** 0.5
_ALPHA_C, _BETA_C, _ALPHA_N, _BETA_N, _ALPHA_R, _BETA_R, _GAMMA = range(7)


class Observation(NamedTuple):
    """One measured kind of step: placement, batch per device, and time.

    Attributes:
        step: seconds of a step without accumulation.
        sync: the part of it in which the devices only exchanged gradients.
    """

    nodes: int
    devices: int
    local_batch: int
    step: float
    sync: float


@lru_cache(maxsize=8_192)
def fit_throughput(observations: tuple[Observation, ...]) -> Throughput:
    """Return the constants under which the model fits the observations best.

    Minimises the root mean square errors of the logarithms of pass and step times, with a small
    weight on overlap and on growth of the exchange.

    Raises:
        ValueError: there are no observations.
    """
    if not observations:
        raise ValueError("no observations")
    problem = _Problem.of(observations)
    values = _minimum(problem).tolist()
    if not problem.several_nodes.any():
        # Between nodes it can only be slower than inside one.
        values[_ALPHA_N] = max(values[_ALPHA_N], values[_ALPHA_R] * 1.1)
        values[_BETA_N] = max(values[_BETA_N], values[_BETA_R] * 1.1)
    return Throughput(*values)


@dataclass(frozen=True, slots=True)
class _Problem:
    """The observations as arrays, and the bounds of the constants."""

    batch: Floats
    passes: Floats
    log_pass: Floats
    log_step: Floats
    several_nodes: Floats
    one_node: Floats
    beyond_two: Floats
    alone: Floats
    start: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "_Problem":
        nodes, devices, batch, step, sync = np.array(observations, dtype=np.float64).T
        passes = step - sync
        several = (nodes > 1).astype(np.float64)
        inside = ((nodes <= 1) & (devices > 1)).astype(np.float64)
        start, low, high = np.array(_START), np.array(_LOWEST), np.array(_HIGHEST)
        if len(np.unique(batch)) == 1:
            _hold(_ALPHA_C, float(passes.mean()) / 2, start, low, high)
        held: list[int] = []
        held += [] if several.any() else [_ALPHA_N, _BETA_N]
        held += [] if inside.any() else [_ALPHA_R, _BETA_R]
        held += [] if (devices > 2).any() else [_BETA_N, _BETA_R]
        for index in held:
            _hold(index, SMALLEST, start, low, high)
        problem = cls(
            batch=batch,
            passes=passes,
            log_pass=np.log(passes),
            log_step=np.log(step),
            several_nodes=several,
            one_node=inside,
            beyond_two=np.maximum(devices - 2, SMALLEST),
            alone=(1.0 - several - inside) * (SMALLEST + SMALLEST * SMALLEST),
            start=start,
            low=low,
            high=high,
        )
        problem.guess(step)
        return problem

    def guess(self, step: Floats) -> None:
        """Move the start to where the times themselves point."""
        free = self.low < self.high
        if free[_ALPHA_C]:
            ratios = np.stack([1.0 / self.passes, self.batch / self.passes], axis=1)
            normal, right = ratios.T @ ratios, ratios.sum(axis=0)
            solved = np.linalg.solve(normal + 1e-12 * np.diag(normal.diagonal()), right)
            self.start[: _BETA_C + 1] = np.maximum(solved, _FLAT)
        else:
            slopes = (self.passes - self.start[_ALPHA_C]) / self.batch
            self.start[_BETA_C] = max(_FLAT, float(slopes.mean()))
        exchange = np.maximum(step - self.passes, 1e-4 * step)
        for alpha, beta, where in (
            (_ALPHA_N, _BETA_N, self.several_nodes > 0),
            (_ALPHA_R, _BETA_R, self.one_node > 0),
        ):
            if free[alpha]:
                self.start[alpha] = 0.8 * float(np.median(exchange[where]))
                if free[beta]:
                    self.start[beta] = 0.05 * self.start[alpha]

    def at(self, values: Floats) -> "_Point":
        """Compute all terms that the objective's value and slope need."""
        alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = values.tolist()
        passes = alpha_c + beta_c * self.batch
        exchange = (
            self.several_nodes * (alpha_n + beta_n * self.beyond_two)
            + self.one_node * (alpha_r + beta_r * self.beyond_two)
            + self.alone
        )
        log_passes, log_exchange = np.log(passes), np.log(exchange)
        log_total = np.logaddexp(gamma * log_passes, gamma * log_exchange)
        pass_error, step_error = log_passes - self.log_pass, log_total / gamma - self.log_step
        count = len(passes)
        pass_loss = float((pass_error * pass_error).sum() / count) ** 0.5
        step_loss = float((step_error * step_error).sum() / count) ** 0.5
        growth_n, growth_r = beta_n / alpha_n, beta_r / alpha_r
        loss = pass_loss + step_loss + _GAMMA_WEIGHT * (gamma - 1.0) ** 2
        loss += _GROWTH_WEIGHT * (growth_n * growth_n + growth_r * growth_r)
        pass_share = np.exp(gamma * log_passes - log_total)
        by_gamma = pass_share * log_passes + (1.0 - pass_share) * log_exchange
        return _Point(
            values=values,
            loss=loss,
            pass_weight=(count * max(pass_loss, _FLAT)) ** -0.5,
            step_weight=(count * max(step_loss, _FLAT)) ** -0.5,
            pass_error=pass_error,
            step_error=step_error,
            inverse_passes=1.0 / passes,
            by_passes=pass_share / passes,
            by_exchange=(1.0 - pass_share) / exchange,
            by_gamma=by_gamma / gamma - log_total / (gamma * gamma),
        )

    def slope(self, point: "_Point") -> tuple[Floats, Floats]:
        """Return the gradient, and the curvature of a quadratic upper bound of the objective."""
        count = len(self.batch)
        jacobian = np.zeros((2 * count + 3, 7))
        errors = np.zeros(2 * count + 3)
        first = point.pass_weight * point.inverse_passes
        jacobian[:count, _ALPHA_C] = first
        jacobian[:count, _BETA_C] = first * self.batch
        errors[:count] = point.pass_weight * point.pass_error
        weight, steps = point.step_weight, jacobian[count : 2 * count]
        steps[:, _ALPHA_C] = weight * point.by_passes
        steps[:, _BETA_C] = steps[:, _ALPHA_C] * self.batch
        exchange = weight * point.by_exchange
        steps[:, _ALPHA_N] = exchange * self.several_nodes
        steps[:, _BETA_N] = steps[:, _ALPHA_N] * self.beyond_two
        steps[:, _ALPHA_R] = exchange * self.one_node
        steps[:, _BETA_R] = steps[:, _ALPHA_R] * self.beyond_two
        steps[:, _GAMMA] = weight * point.by_gamma
        errors[count : 2 * count] = weight * point.step_error
        for row, alpha, beta in ((-3, _ALPHA_N, _BETA_N), (-2, _ALPHA_R, _BETA_R)):
            growth = point.values[beta] / point.values[alpha]
            jacobian[row, alpha] = -_GROWTH_ROOT * growth / point.values[alpha]
            jacobian[row, beta] = _GROWTH_ROOT / point.values[alpha]
            errors[row] = _GROWTH_ROOT * growth
        jacobian[-1, _GAMMA] = _GAMMA_ROOT
        errors[-1] = _GAMMA_ROOT * (point.values[_GAMMA] - 1.0)
        return jacobian.T @ errors, jacobian.T @ jacobian


@dataclass(frozen=True, slots=True)
class _Point:
    """The objective at one set of constants, with the derivatives of both logarithms."""

    values: Floats
    loss: float
    pass_weight: float
    step_weight: float
    pass_error: Floats
    step_error: Floats
    inverse_passes: Floats
    by_passes: Floats
    by_exchange: Floats
    by_gamma: Floats


def _hold(index: int, value: float, start: Floats, low: Floats, high: Floats) -> None:
    """Fix a constant that the observations do not determine."""
    start[index] = low[index] = high[index] = value


def _minimum(problem: _Problem) -> Floats:
    """Minimise the loss of the constants until small steps no longer reduce it."""
    point = problem.at(problem.start)
    free, damping = problem.low < problem.high, 1e-3
    for _ in range(_MOST_STEPS):
        gradient, curvature = problem.slope(point)
        at_low = (point.values <= problem.low) & (gradient > 0)
        at_high = (point.values >= problem.high) & (gradient < 0)
        moving = np.flatnonzero(free & ~at_low & ~at_high)
        if not len(moving):
            break
        bent = curvature[moving[:, None], moving]
        found = None
        for _trial in range(_MOST_TRIALS):
            damped = bent.copy()
            damped.flat[:: len(moving) + 1] *= 1.0 + damping
            damped.flat[:: len(moving) + 1] += 1e-12
            values = point.values.copy()
            values[moving] -= np.linalg.solve(damped, gradient[moving])
            tried = problem.at(np.clip(values, problem.low, problem.high))
            if tried.loss < point.loss:
                found = tried
                break
            damping = max(damping * 6.0, 1e-4)
        if found is None:
            break
        gained, point = point.loss - found.loss, found
        damping = max(damping / 5.0, 1e-9)
        if gained <= _TOLERANCE:
            break
    return point.values
