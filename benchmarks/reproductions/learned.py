"""The performance model for policies, learned from jobs' observations so far.

Observations arrive between decisions; only the jobs and types with new ones are fitted again.
Tables of step times are cached until then, so that a decision only weighs them with the latest
gradient statistics, and rows until those change as well. The stale rows of all jobs are evaluated
at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from benchmarks.reproductions.fitting import Observation, fit_throughput
from benchmarks.reproductions.goodput_tables import best_goodputs, candidate_step_times, stacked
from scheduling.core.performance.goodput import (
    BatchChoice,
    BatchLimits,
    Candidates,
    Floats,
    Noise,
    Throughput,
    best_batch,
)
from scheduling.core.policy_interface import PolicyJob, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """Facts of a job that are available before it runs.

    Attributes:
        history: key under which jobs share observations.
        limits: batch limits by device type; a job cannot run on other types.
        requested: the requested batch size.
        speeds: samples per second of one replica by type, from a short profile.
        rates: declared steps per second of the job as requested, by type.
        restart_seconds: cost of a start.
        most_devices: maximum number of devices to try.
        replicas: devices of one replica by type, if more than one.
    """

    history: str
    limits: Mapping[str, BatchLimits]
    requested: int
    speeds: Mapping[str, float]
    restart_seconds: float
    most_devices: int
    rates: Mapping[str, float] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)


class ObservationHistory:
    """Observations of one job, or of all jobs that share a history."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[tuple[int, int, int], Observation]] = {}
        self.fits: dict[str, Throughput] = {}
        self.versions: dict[str, int] = {}
        self.largest: dict[str, int] = {}
        self.first_noise: Noise | None = None

    def add(self, device_type: str, observation: Observation) -> bool:
        """Store an observation; return whether it is new."""
        seen = self.seen.setdefault(device_type, {})
        key = observation[:3]
        if key in seen:
            return False
        seen[key] = observation
        self.largest[device_type] = max(self.largest.get(device_type, 0), observation.devices)
        self.fits.pop(device_type, None)
        self.versions[device_type] = self.versions.get(device_type, 0) + 1
        return True

    def fit(self, device_type: str) -> Throughput | None:
        """Return the fitted constants for a type, or None without observations on it."""
        found = self.fits.get(device_type)
        if found is None and device_type in self.seen:
            found = fit_throughput(tuple(self.seen[device_type].values()))
            self.fits[device_type] = found
        return found


class LearnedModel:
    """The performance of jobs as far as it was observed."""

    def __init__(self) -> None:
        self._learners: dict[int, Learner] = {}
        self._histories: dict[str, ObservationHistory] = {}
        self._noise: dict[int, Noise] = {}
        self._limits: dict[int, Mapping[str, BatchLimits]] = {}
        self._requested: dict[int, Mapping[str, BatchLimits]] = {}
        self._rows: dict[tuple[str, _Sizes, bool], dict[int, _Row]] = {}

    def add(self, job_id: int, learner: Learner) -> None:
        """Add a job."""
        self._learners[job_id] = learner
        self._limits[job_id] = learner.limits
        self._requested[job_id] = {
            name: replace(limits, largest=learner.requested)
            for name, limits in learner.limits.items()
        }
        self._histories.setdefault(learner.history, ObservationHistory())

    def forget(self, job_id: int) -> None:
        """Drop a job; its observations remain if others share them."""
        for known in (self._learners, self._limits, self._requested):
            known.pop(job_id)
        self._noise.pop(job_id, None)
        for rows in self._rows.values():
            rows.pop(job_id, None)

    def seed(self, history: str, device_type: str, observations: Iterable[Observation]) -> None:
        """Add external observations to a history."""
        known = self._histories.setdefault(history, ObservationHistory())
        for observation in observations:
            known.add(device_type, observation)

    def seed_noise(self, history: str, noise: Noise) -> None:
        """Set the gradient statistics for jobs of a history that have none of their own."""
        self._histories[history].first_noise = noise

    def observe(
        self, job_id: int, device_type: str, observation: Observation, noise: Noise
    ) -> bool:
        """Learn from a job's steps; return whether its fit will change."""
        history = self._history(job_id)
        self._noise[job_id] = noise
        if history.first_noise is None:
            history.first_noise = noise
        return history.add(device_type, observation)

    def refit(self) -> None:
        """Update all fits, so that the next decision needs none."""
        for job_id, learner in self._learners.items():
            history = self._history(job_id)
            for device_type in learner.limits:
                history.fit(device_type)

    def fitted(self, job_id: int, device_type: str) -> Throughput | None:
        """Return the fit for a job on a type, or None if it was not observed there."""
        return self._history(job_id).fit(device_type)

    def noise(self, job_id: int) -> Noise | None:
        """Return the job's latest gradient statistics, or the first of its history."""
        return self._noise.get(job_id) or self._history(job_id).first_noise

    def best_batch(self, job_id: int, limits: BatchLimits, shape: Shape) -> BatchChoice | None:
        """Return the batch that the job would choose on a shape; None without observations."""
        model, noise = self.fitted(job_id, shape.type), self.noise(job_id)
        if model is None or noise is None:
            return None
        return best_batch(model, noise, limits, shape.nodes, shape.devices)

    def goodputs(
        self,
        jobs: Sequence[PolicyJob],
        shapes: Sequence[Shape],
        *,
        within_request: bool = False,
    ) -> Floats:
        """Predict useful steps per second; see ``policy_interface.Model``."""
        table = np.full((len(jobs), len(shapes)), np.nan)
        limited = self._requested if within_request else self._limits
        stale: list[_Row] = []
        known = [self._known(job.id, limited) for job in jobs]
        by_type = _by_type(tuple(shapes))
        for device_type, _where, sizes in by_type:
            rows = self._rows.setdefault((device_type, sizes, within_request), {})
            stale += _stale(rows, known, device_type, sizes)
        _evaluate(stale)
        for device_type, where, sizes in by_type:
            rows = self._rows[device_type, sizes, within_request]
            for place, job in enumerate(jobs):
                row = rows.get(job.id)
                if row is not None:
                    table[place, where] = row.values
        return table

    def replica(self, job: PolicyJob, device_type: str) -> int:
        """Return the devices of one replica."""
        return self._learners[job.id].replicas.get(device_type, 1)

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Return steps per second as requested, if declared or measured; else 0."""
        learner = self._learners[job.id]
        return learner.rates.get(shape.type, 0.0) if shape.devices == job.gang else 0.0

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """Return samples per second of one replica on a type; 0 if it cannot run there."""
        return self._learners[job.id].speeds.get(device_type, 0.0)

    def profiled(self, job: PolicyJob) -> Mapping[str, int]:
        """Return the maximum observed devices, by type."""
        return self._history(job.id).largest

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """Limit by the smallest batch per device and the limit of the total."""
        learner = self._learners[job.id]
        limits = learner.limits.get(device_type)
        if limits is None:
            return 0
        return min(learner.most_devices, limits.largest // limits.local_min)

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        return self._learners[job.id].restart_seconds

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Return half a device for each job, since sharing was not observed."""
        return 0.5, 0.5

    def _history(self, job_id: int) -> ObservationHistory:
        return self._histories[self._learners[job_id].history]

    def _known(self, job_id: int, limited: Mapping[int, Mapping[str, BatchLimits]]) -> "_Known":
        history = self._history(job_id)
        return job_id, limited[job_id], history, self._noise.get(job_id) or history.first_noise


_Sizes: TypeAlias = tuple[tuple[int, int], ...]

#: Rows that are evaluated together: enough to share the calls, few enough to stay in the cache.
_AT_ONCE: Final = 48


@dataclass(slots=True)
class _Row:
    """A job's goodputs on some shapes, with their inputs.

    Attributes:
        values: values by shape.
        version: version of the fit.
        sizes: nodes and devices of the shapes.
        table: the candidate batches.
        model: the fit, until the steps were timed under it.
        noise: the statistics of the weights.
        times: seconds of a step with each of them.
    """

    values: Floats = field(default_factory=lambda: np.zeros(0))
    version: int = 0
    sizes: _Sizes = ()
    table: Candidates | None = None
    model: Throughput | None = None
    noise: Noise | None = None
    times: Floats = field(default_factory=lambda: np.zeros(0))


#: A job's id, limits by type, history and latest gradient statistics.
_Known: TypeAlias = tuple[int, Mapping[str, BatchLimits], ObservationHistory, Noise | None]


def _stale(
    rows: dict[int, _Row], jobs: Sequence[_Known], device_type: str, sizes: _Sizes
) -> list[_Row]:
    """Return the rows of jobs whose fit or statistics have changed."""
    stale: list[_Row] = []
    devices = tuple(count for _nodes, count in sizes)
    for job_id, by_type, history, noise in jobs:
        limits, row = by_type.get(device_type), rows.get(job_id)
        if limits is None:
            if row is None:
                rows[job_id] = _Row(np.zeros(len(sizes)))
            continue
        version = history.versions.get(device_type)
        if noise is None or version is None:
            continue
        if row is None or row.version != version:
            table = stacked(limits, devices)
            row = rows[job_id] = _Row(version=version, sizes=sizes, table=table)
            row.model = history.fit(device_type)
        elif row.noise == noise:
            continue
        row.noise = noise
        stale.append(row)
    return stale


def _evaluate(rows: Sequence[_Row]) -> None:
    """Step times under fits that are new, then goodputs under statistics that are new."""
    for start in range(0, len(rows), _AT_ONCE):
        _evaluate_some(rows[start : start + _AT_ONCE])


def _evaluate_some(rows: Sequence[_Row]) -> None:
    untimed = [row for row in rows if row.model is not None]
    if untimed:
        models = [row.model for row in untimed if row.model is not None]
        times = candidate_step_times(models, _tables(untimed), [row.sizes for row in untimed])
        for row, mine in zip(untimed, times, strict=True):
            row.times, row.model = mine.copy(), None
    noises = [row.noise for row in rows if row.noise is not None]
    values = best_goodputs([row.times for row in rows], _tables(rows), noises)
    for row, mine in zip(rows, values, strict=True):
        row.values = mine


def _tables(rows: Sequence[_Row]) -> list[Candidates]:
    return [row.table for row in rows if row.table is not None]


@lru_cache(maxsize=1_024)
def _by_type(shapes: tuple[Shape, ...]) -> tuple[tuple[str, slice | list[int], _Sizes], ...]:
    """Group columns by type, as (type, column indices, nodes and devices of each)."""
    columns: dict[str, list[int]] = {}
    for index, shape in enumerate(shapes):
        columns.setdefault(shape.type, []).append(index)
    return tuple(
        (
            device_type,
            slice(indices[0], indices[-1] + 1) if _adjacent(indices) else indices,
            tuple((shapes[i].nodes, shapes[i].devices) for i in indices),
        )
        for device_type, indices in columns.items()
    )


def _adjacent(indices: Sequence[int]) -> bool:
    return indices[-1] - indices[0] + 1 == len(indices)
