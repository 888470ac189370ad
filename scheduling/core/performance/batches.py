"""Choice of a running job's batch by the highest goodput of its fitted step times.

A step of ``a`` passes over ``m`` samples on each of ``n`` devices takes ``a (alpha_c + beta_c m)``
and the exchange of gradients at its end, ``alpha + beta (n - 2)``: Pollux's model (OSDI '21,
section 3.2) without overlap, since `tessera.train` exchanges after the last pass. Therefore it is
linear, and non-negative least squares of relative errors have a unique solution. Unobserved
terms count as 0, so that a job is tried on more devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from scheduling.core.performance.goodput import (
    SMALLEST,
    BatchLimits,
    Noise,
    Throughput,
    best_batch,
    exchange_time,
    pass_times,
    step_times,
)
from scheduling.core.policy_interface import Terms
from scheduling.core.values import Timed
from tessera.efficiency import gain

_WEAK: Final = 1e-3
"""Weight of the prior for unobserved terms."""

_BETWEEN_NODES: Final = 1.1
"""Minimum ratio of the duration of an exchange between nodes to one inside a node."""


@lru_cache(maxsize=4_096)
def fit_steps(seen: tuple[Timed, ...]) -> Throughput | None:
    """Fit the constants of a job on one device type; return None without observations.

    Args:
        seen: observed steps on devices of that type.
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
    """Build an equation for each kind of step, and weak prior equations for other terms."""
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
    # With a single pass size, half of its time is assumed to be constant over all sizes.
    local = sum(one.batch / (one.devices * one.accumulation) for one in told) / len(told)
    step = sum(one.seconds / one.steps for one in told) / len(told)
    rows.append([_WEAK / step, -_WEAK * local / step, 0.0, 0.0, 0.0, 0.0])
    rows += [[0.0] * column + [_WEAK / step] + [0.0] * (5 - column) for column in range(2, 6)]
    return rows, seconds + [0.0] * 5


def limits_of(terms: Terms) -> BatchLimits | None:
    """Return the range of batch sizes of a job, or None if its batch size is fixed."""
    if terms.batch is None or terms.max_batch is None:
        return None
    return BatchLimits(
        initial=terms.batch,
        largest=terms.max_batch,
        local_min=1,
        local_max=terms.max_local_batch or terms.max_batch,
    )


def noise_of(told: tuple[float, float] | None) -> Noise | None:
    """Read the reported gradient statistics of a job; return None if they are not usable."""
    if told is None or sum(told) <= 0.0:
        return None
    return Noise(sqr=told[0], var=told[1])


GAIN_TO_CHANGE: Final = 1.05
"""Minimum ratio of the goodput of a new batch to that of the current batch."""

GROWTH: Final = 2.0
"""Maximum ratio of a new batch to the largest measured one: models are unreliable beyond."""

STEPS_TO_KNOW: Final = 10
"""Steps of an attempt before its batch is judged."""

SECONDS_BETWEEN: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedJob:
    """A running job whose batch may change.

    Attributes:
        type, nodes, devices: those of its allocation.
        batch, accumulation: its current values.
        steps: steps of the attempt.
        unchanged: seconds since its batch was last chosen.
        limits: bounds of its batch.
        noise: its gradient statistics.
        seen: its measured step times so far, on devices of this type.
    """

    type: str
    nodes: int
    devices: int
    batch: int
    accumulation: int
    steps: int
    unchanged: float
    limits: BatchLimits
    noise: Noise
    seen: tuple[Timed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A batch for a job.

    Attributes:
        accumulation: passes of each device in a step.
        gain: its fitted goodput over that of the current batch.
    """

    batch: int
    accumulation: int
    gain: float


def choose_batch(job: BatchedJob) -> Chosen | None:
    """Return the batch that a job should change to, or None for no change."""
    if job.steps < STEPS_TO_KNOW or job.unchanged < SECONDS_BETWEEN:
        return None
    model = fit_steps(job.seen)
    if model is None:
        return None
    largest = max(int(GROWTH * max(one.batch for one in job.seen)), job.limits.initial)
    limits = BatchLimits(
        initial=job.limits.initial,
        largest=min(job.limits.largest, largest),
        local_min=job.limits.local_min,
        local_max=job.limits.local_max,
    )
    best = best_batch(model, job.noise, limits, job.nodes, job.devices)
    if best.goodput <= 0.0:
        return None
    passes = best.accumulation + 1
    batch = min(best.local_batch * passes * job.devices, limits.largest)
    now = goodput_of(model, job)
    if (batch, passes) == (job.batch, job.accumulation) or best.goodput < GAIN_TO_CHANGE * now:
        return None
    return Chosen(batch=batch, accumulation=passes, gain=best.goodput / now if now else 1.0)


def goodput_of(model: Throughput, job: BatchedJob) -> float:
    """Return the steps of the initial batch per second at the job's current batch."""
    passes = job.accumulation
    each = pass_times(model, job.batch / (job.devices * passes))
    seconds = step_times(model, each, exchange_time(model, job.nodes, job.devices), passes - 1)
    scale = min(1.0, job.limits.initial / job.batch)
    return float(gain(job.noise.sqr, job.noise.var, scale) / seconds)
