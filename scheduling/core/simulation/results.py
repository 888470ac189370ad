"""The outcome of a simulated trace, and the fairness of its completion times."""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from scheduling.core.reasons import Reason
from scheduling.core.workloads.clusters import SimCluster

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Outcome of a job.

    Attributes:
        submitted: seconds from the trace's start, like all other times.
        started: time at which it first held devices; None if never.
        finished: time of completion; None if not within the simulation.
        failures: number of node failures during its runs.
        lost: device-seconds of repeated work.
        refused: reason of its rejection, as text.
    """

    name: str
    submitted: float
    started: float | None
    finished: float | None
    restarts: int
    gpu_seconds: float
    failures: int = 0
    lost: float = 0.0
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished simulation.

    Attributes:
        rounds: decisions.
        decision_ms: duration of each counted decision, in milliseconds.
        busy: device-seconds in use, over the seconds in which any job was active.
        ftf: finish-time fairness by job, for complete jobs.
        ended: end of the simulation, in seconds from the trace's start.
        fallbacks: faults of the policy, as text.
    """

    policy: str
    rules: str
    workload: str
    jobs: tuple[JobRecord, ...]
    rounds: int
    decision_ms: tuple[float, ...]
    busy: float
    ftf: tuple[float, ...]
    wall_seconds: float
    ended: float
    fallbacks: tuple[str, ...] = ()

    @property
    def jcts(self) -> list[float]:
        """Job completion times in seconds, of complete jobs."""
        return [job.finished - job.submitted for job in self.jobs if job.finished is not None]

    @property
    def refused(self) -> int:
        """Jobs that were never admitted."""
        return sum(job.refused is not None for job in self.jobs)

    def to_json(self) -> dict[str, Any]:
        """Build the public document; a figure without complete jobs is null."""
        hours = np.array(self.jcts) / _HOUR
        count = max(1, len(self.jobs))
        return {
            "policy": self.policy,
            "rules": self.rules,
            "workload": self.workload,
            "jobs": len(self.jobs),
            "completed": len(hours),
            "avg_jct_h": _rounded(hours.mean()) if len(hours) else None,
            **{f"p{q}_jct_h": _percentile(hours, q) for q in (50, 90, 99)},
            "makespan_h": self._makespan_hours(),
            "gpu_hours_per_job": _rounded(sum(j.gpu_seconds for j in self.jobs) / count / _HOUR),
            "avg_restarts": _rounded(sum(job.restarts for job in self.jobs) / count),
            "worst_ftf": _rounded(max(self.ftf)) if self.ftf else None,
            "avg_gpus_busy": _rounded(self.busy),
            "rounds": self.rounds,
            "policy_ms": {
                "median": _percentile(np.array(self.decision_ms), 50),
                "p95": _percentile(np.array(self.decision_ms), 95),
                "max": _percentile(np.array(self.decision_ms), 100),
                "counted": len(self.decision_ms),
            },
            "wall_s": _rounded(self.wall_seconds),
            "censored": len(self.jobs) - len(hours) - self.refused,
            "refused": self.refused,
            "failures": sum(job.failures for job in self.jobs),
            "lost_gpu_hours": _rounded(sum(job.lost for job in self.jobs) / _HOUR),
            "per_job": [
                {
                    "name": job.name,
                    "submit_s": job.submitted,
                    "start_s": job.started,
                    "finish_s": job.finished,
                    "restarts": job.restarts,
                    "gpu_seconds": _rounded(job.gpu_seconds),
                }
                for job in self.jobs
            ],
        }

    def _makespan_hours(self) -> float | None:
        ends = [job.finished for job in self.jobs if job.finished is not None]
        if not ends:
            return None
        return _rounded((max(ends) - min(job.submitted for job in self.jobs)) / _HOUR)


class Contention:
    """Average number of active jobs during a span of time."""

    def __init__(self, jobs: Sequence[JobRecord]) -> None:
        steps: dict[float, int] = {}
        for job in jobs:
            steps[job.submitted] = steps.get(job.submitted, 0) + 1
            if job.finished is not None:
                steps[job.finished] = steps.get(job.finished, 0) - 1
        self._times = sorted(steps)
        self._active: list[int] = []
        self._area: list[float] = []
        active, area, before = 0, 0.0, 0.0
        for time in self._times:
            area += active * (time - before)
            active += steps[time]
            self._active.append(active)
            self._area.append(area)
            before = time

    def between(self, start: float, end: float) -> float:
        """Return the time-average of active jobs from ``start`` to ``end``."""
        if end <= start:
            return 1.0
        return (self._until(end) - self._until(start)) / (end - start)

    def _until(self, time: float) -> float:
        index = bisect_right(self._times, time) - 1
        if index < 0:
            return 0.0
        return self._area[index] + self._active[index] * (time - self._times[index])


class AloneTimes(Protocol):
    """Run times of a trace's jobs alone on a cluster."""

    @property
    def cluster(self) -> SimCluster: ...

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Return the run time of a job alone on n devices at its best batch, or None."""
        ...

    def restart_seconds(self, index: int) -> float:
        """Return the cost of each start of a job."""
        ...


def finish_time_fairness(times: AloneTimes, jobs: Sequence[JobRecord]) -> tuple[float, ...]:
    """Return JCT over the run time alone on an equal part of every type, by complete job."""
    contention = Contention(jobs)
    values: list[float] = []
    for index, job in enumerate(jobs):
        if job.finished is None:
            continue
        others = max(1.0, contention.between(job.submitted, job.finished))
        alone = _fair_seconds(times, index, others)
        if alone is not None:
            alone += times.restart_seconds(index)
            values.append((job.finished - job.submitted) / alone)
    return tuple(values)


def _fair_seconds(times: AloneTimes, index: int, contention: float) -> float | None:
    """Return the device-weighted mean over types of the run time on 1/contention of each."""
    total, weight = 0.0, 0
    for name, group in times.cluster.groups.items():
        seconds = _seconds_on(times, index, name, group.total / contention)
        if seconds is not None:
            total += seconds * group.total
            weight += group.total
    return total / weight if weight else None


def _seconds_on(times: AloneTimes, index: int, device_type: str, devices: float) -> float | None:
    """Run time on a fractional number of devices: speeds are interpolated between sizes."""
    low = math.floor(devices)
    below = times.alone_seconds(index, device_type, low) if low else None
    above = times.alone_seconds(index, device_type, low + 1) if devices > low else None
    if low and below is None:
        return None
    if above is None:
        return below
    part = devices - low
    slow = 1.0 / below if below else 0.0
    return 1.0 / (slow + part * (1.0 / above - slow))


def _percentile(values: "np.ndarray[Any, np.dtype[np.float64]]", q: float) -> float | None:
    return _rounded(np.percentile(values, q)) if len(values) else None


def _rounded(value: Any) -> float:
    return round(float(value), 6)


@dataclass(slots=True, kw_only=True)
class SimulationRecord:
    """Results of a simulation by job ID; times are on the clock of the snapshot, in seconds.

    Attributes:
        starts: first start.
        ends: end of the work.
        preemptions: notices to leave for other jobs or for another size.
        restarts: starts after the first one.
        failures: interruptions by failed or removed nodes.
        lost: seconds of work at the requested size that failures discarded.
        device_seconds: seconds with devices, multiplied by their number.
        guest_seconds: seconds as a guest, which uses no devices of its own.
        rejections: reasons of jobs that their policies rejected.
        faults: faults of policies, in the order of rounds.
        rounds: number of decisions.
    """

    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    preemptions: Counter[int] = field(default_factory=Counter)
    restarts: Counter[int] = field(default_factory=Counter)
    failures: Counter[int] = field(default_factory=Counter)
    lost: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    device_seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    guest_seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    rejections: dict[int, Reason] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    rounds: int = 0
