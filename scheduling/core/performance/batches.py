"""Choice of a running job's batch: the highest fitted goodput, with patience."""

from dataclasses import dataclass
from typing import Final

from scheduling.core.performance.goodput import BatchLimits, Noise, best_batch
from scheduling.core.performance.steps import fit_steps
from scheduling.core.performance.throughput import (
    Throughput,
    exchange_time,
    pass_times,
    step_times,
)
from scheduling.core.values import Timed
from tessera.efficiency import gain

GAIN_TO_CHANGE: Final = 1.05
"""A new batch promises so much more goodput than the present one."""

GROWTH: Final = 2.0
"""Maximum factor from the largest measured batch to a new one: models err beyond."""

STEPS_TO_KNOW: Final = 10
"""Steps of an attempt before its batch is judged."""

SECONDS_BETWEEN: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedJob:
    """A running job whose batch may change.

    Attributes:
        type, nodes, devices: of its allocation.
        batch, accumulation: its present values.
        steps: of the attempt.
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
        gain: its fitted goodput over that of the present batch.
    """

    batch: int
    accumulation: int
    gain: float


def choose_batch(job: BatchedJob) -> Chosen | None:
    """Return the batch that a job should change to; None: no change."""
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
    """Steps of the initial batch per second at the batch that a job has now."""
    passes = job.accumulation
    each = pass_times(model, job.batch / (job.devices * passes))
    seconds = step_times(model, each, exchange_time(model, job.nodes, job.devices), passes - 1)
    scale = min(1.0, job.limits.initial / job.batch)
    return float(gain(job.noise.sqr, job.noise.var, scale) / seconds)
