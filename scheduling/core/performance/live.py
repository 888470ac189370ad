"""The performance model for policies, from live jobs' reported speeds.

Jobs of one application share observations. Without any, twice the devices count as twice as fast,
and types have the same ratios as for the jobs that ran on several of them (equal before there are
any); a first run on any size and type sets the scale.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from scheduling.core.performance.batches import fit_steps, limits_of, noise_of
from scheduling.core.performance.convergence import steps_until_flat
from scheduling.core.performance.goodput import Floats, best_batch
from scheduling.core.performance.speeds import relative_speeds
from scheduling.core.policy_interface import PolicyJob, Shape
from scheduling.core.values import JobFacts, RunObservation, Timed

DEFAULT_RESTART_SECONDS = 30.0
_NOTHING = JobFacts()


class LiveModel:
    """Performance model of live jobs, fitted to their reports.

    Attributes:
        speeds: speeds of types that could be compared, relative to their mean.
    """

    def __init__(self, jobs: Sequence[PolicyJob], known: Mapping[int, JobFacts]) -> None:
        self._known = known
        runs: dict[str, list[RunObservation]] = defaultdict(list)
        for job in jobs:
            runs[_history(job)].extend(known.get(job.id, _NOTHING).seen)
        self._seen = {name: tuple(sorted(seen)) for name, seen in runs.items()}
        self.speeds = relative_speeds(self._seen.values())
        self._timed: dict[str, dict[str, list[Timed]]] = defaultdict(lambda: defaultdict(list))
        for job in jobs:
            for one in known.get(job.id, _NOTHING).timed:
                self._timed[_history(job)][one.type].append(one)

    def goodputs(
        self,
        jobs: Sequence[PolicyJob],
        shapes: Sequence[Shape],
        *,
        within_request: bool = False,
    ) -> Floats:
        """Return steps per second, shape ``(jobs, shapes)``.

        If a job's batch may change, the unit is steps of its initial batch.
        """
        rows = [[self.rate(job, shape) for shape in shapes] for job in jobs]
        return np.array(rows, dtype=np.float64).reshape(len(jobs), len(shapes))

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Return steps per second: measured on this shape, or fitted, or proportional."""
        if job.types and shape.type not in job.types:
            return 0.0
        useful = self._goodput(job, shape)
        if useful is not None:
            return useful
        seen = self._seen.get(_history(job), ())
        if not seen:
            return shape.devices * self._speed(shape.type)
        tried = (run.type for run in seen)
        return _rate(seen, shape) * self._against(seen[0].type, tried, shape.type)

    def _goodput(self, job: PolicyJob, shape: Shape) -> float | None:
        """Return steps of the initial batch per second at the best batch; None if unknown."""
        limits, noise = limits_of(job.terms), noise_of(self._known.get(job.id, _NOTHING).noise)
        types = self._timed.get(_history(job), {})
        if limits is None or noise is None or not types:
            return None
        first = min(types)
        model = fit_steps(tuple(sorted(types.get(shape.type) or types[first])))
        if model is None:
            return None
        found = best_batch(model, noise, limits, shape.nodes, shape.devices)
        return found.goodput * self._against(first, types, shape.type)

    def _against(self, first: str, tried: Iterable[str], kind: str) -> float:
        """Return the speed of an untried type relative to the first one; 1.0 for a tried type."""
        if not self.speeds or kind in tried:
            return 1.0
        return self._speed(kind) / self._speed(first)

    def steps_left(self, job: PolicyJob, batch: int | None) -> float | None:
        """Return the remaining steps: declared, otherwise until the loss is flat, else None."""
        if job.facts.steps_left is not None:
            return job.facts.steps_left
        return steps_until_flat(job.facts.losses)

    def replica(self, job: PolicyJob, device_type: str) -> int:
        """Return 1: each replica uses one device."""
        return 1

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """Return the steps per second on one device of a type."""
        return self.rate(job, Shape(type=device_type, nodes=1, devices=1))

    def profiled(self, job: PolicyJob) -> Mapping[str, int]:
        """Return the maximum observed devices of the job, or of its application, by type."""
        most: dict[str, int] = {}
        for run in self._seen.get(_history(job), ()):
            most[run.type] = max(most.get(run.type, 0), run.devices)
        return most

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """Return the largest declared size."""
        return job.terms.scale.maximum if job.terms.scale else job.gang

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        """Return the mean duration of its starts; 30 s before the first one."""
        taken = self._known.get(job.id, _NOTHING).start_seconds
        return DEFAULT_RESTART_SECONDS if taken is None else taken

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Return half a device for each job, since live jobs share none."""
        return 0.5, 0.5

    def _speed(self, device_type: str) -> float:
        return self.speeds.get(device_type, 1.0)


def _history(job: PolicyJob) -> str:
    return job.terms.application or f"#{job.id}"


@lru_cache(maxsize=65_536)
def _rate(seen: tuple[RunObservation, ...], shape: Shape) -> float:
    """Return the steps per second on a shape, in steps of the smallest observed batch."""
    batch = _batch(seen)
    same = [run for run in seen if (run.type, run.nodes, run.devices) == tuple(shape)]
    if same:
        return sum(_work(run, batch) for run in same) / sum(run.seconds for run in same)
    there = tuple(run for run in seen if run.type == shape.type)
    # An untried type counts as the first one on which the job was observed.
    fixed, shared = _fitted(there or tuple(run for run in seen if run.type == seen[0].type), batch)
    return 1.0 / (fixed + shared / shape.devices)


@lru_cache(maxsize=8_192)
def _fitted(seen: tuple[RunObservation, ...], batch: float) -> tuple[float, float]:
    """Fit the seconds of a step that no device shortens, and the seconds that devices share.

    Least squares of relative errors over both, neither below zero (Amdahl's law). Equal sizes do
    not determine the first part, so a job is tried on more.
    """
    ones = xx = x1 = y1 = xy = 0.0
    for run in seen:
        weight = _work(run, batch) / run.seconds  # one over the seconds of a step
        part = weight / run.devices
        ones += weight * weight
        x1 += weight * part
        xx += part * part
        y1 += weight
        xy += part
    spread = ones * xx - x1 * x1
    if spread > 1e-9 * ones * xx:
        fixed, shared = (y1 * xx - xy * x1) / spread, (xy * ones - y1 * x1) / spread
        if fixed >= 0.0 and shared >= 0.0:
            return fixed, shared
        if shared < 0.0:
            return y1 / ones, 0.0
    return 0.0, xy / xx


def _batch(seen: tuple[RunObservation, ...]) -> float:
    """Return the samples of a step; 0 if a run did not report them, so that steps are counted."""
    return min(run.samples / run.steps for run in seen)


def _work(run: RunObservation, batch: float) -> float:
    """Return the steps of a run, in steps of the smallest batch."""
    return run.samples / batch if batch > 0.0 else run.steps
