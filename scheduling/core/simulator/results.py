"""The outcome of a simulation, and the recording from which its charts are drawn."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scheduling.core.simulator.worlds import JobRecord, World

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished simulation.

    Attributes:
        rounds: calls of the policy.
        decision_ms: duration of each counted decision, in milliseconds.
        busy: device-seconds in use, over the seconds in which any job was active.
        ftf: finish-time fairness by job, for complete jobs.
        fallbacks: faults of the policy, in words.
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


def finish_time_fairness(world: World, jobs: Sequence[JobRecord]) -> tuple[float, ...]:
    """Return JCT over the run time alone on an equal part of every type, by complete job."""
    contention = Contention(jobs)
    values: list[float] = []
    for index, job in enumerate(jobs):
        if job.finished is None:
            continue
        others = max(1.0, contention.between(job.submitted, job.finished))
        alone = _fair_seconds(world, index, others)
        if alone is not None:
            alone += world.restart_seconds(index)
            values.append((job.finished - job.submitted) / alone)
    return tuple(values)


def _fair_seconds(world: World, index: int, contention: float) -> float | None:
    """Return the device-weighted mean over types of the run time on 1/contention of each."""
    total, weight = 0.0, 0
    for name, group in world.cluster.groups.items():
        seconds = _seconds_on(world, index, name, group.total / contention)
        if seconds is not None:
            total += seconds * group.total
            weight += group.total
    return total / weight if weight else None


def _seconds_on(world: World, index: int, device_type: str, devices: float) -> float | None:
    """Run time on a fractional number of devices: speeds are interpolated between sizes."""
    low = math.floor(devices)
    below = world.alone_seconds(index, device_type, low) if low else None
    above = world.alone_seconds(index, device_type, low + 1) if devices > low else None
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


_MOST_POINTS: Final = 1_200


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldSpan:
    """A span in which a job had the same devices.

    Attributes:
        kind: the device types, joined by ``+``.
    """

    job: str
    start: float
    end: float
    kind: str
    devices: int


class Recorder:
    """Records a world's state after each decision for the charts.

    The course is thinned by half whenever it exceeds its limit; only the first jobs have their own
    lines.
    """

    def __init__(self, *, most_jobs: int = 120, most_spans: int = 2_500) -> None:
        """Limit the number of jobs and their spans."""
        self.points: list[tuple[float, int, int]] = []
        self.spans: list[HoldSpan] = []
        self._open: dict[str, tuple[float, str, int]] = {}
        self._known: set[str] = set()
        self._most_jobs = most_jobs
        self._most_spans = most_spans
        self._every = 1
        self._seen = 0

    def __call__(self, state: Mapping[str, Any]) -> None:
        """Record one state from ``World.timeline``: (time, jobs waiting, devices busy)."""
        time = float(state["time_s"])
        holding = {
            name: held for name, item in state["jobs"].items() if (held := _held(item)) is not None
        }
        if self._seen % self._every == 0:
            self.points.append((time, state["active"] - len(holding), state["gpus_busy"]))
            if len(self.points) > _MOST_POINTS:
                self.points, self._every = self.points[::2], self._every * 2
        self._seen += 1
        self._follow(time, holding)

    def close(self, ends: Mapping[str, float | None], now: float) -> None:
        """End all open spans.

        Args:
            ends: completion time of each job; None if never.
            now: end of the simulation.
        """
        for name, (start, kind, devices) in sorted(self._open.items()):
            end = ends.get(name)
            self._add(name, start, now if end is None else end, kind, devices)
        self._open.clear()
        self.points.append((now, 0, 0))
        ended = []
        for span in self.spans:
            finish = ends.get(span.job)
            end = span.end if finish is None else min(span.end, finish)
            ended.append(
                HoldSpan(
                    job=span.job,
                    start=span.start,
                    end=end,
                    kind=span.kind,
                    devices=span.devices,
                )
            )
        self.spans = sorted(ended, key=lambda span: (span.start, span.end, span.job))

    def _follow(self, time: float, holding: Mapping[str, tuple[str, int]]) -> None:
        for name in [name for name in self._open if self._open[name][1:] != holding.get(name)]:
            start, kind, devices = self._open.pop(name)
            self._add(name, start, time, kind, devices)
        for name, held in holding.items():
            if name in self._open:
                continue
            if name not in self._known:
                if len(self._known) >= self._most_jobs:
                    continue
                self._known.add(name)
            self._open[name] = (time, *held)

    def _add(self, name: str, start: float, end: float, kind: str, devices: int) -> None:
        if len(self.spans) < self._most_spans:
            self.spans.append(HoldSpan(job=name, start=start, end=end, kind=kind, devices=devices))


def _held(item: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the types and number of devices of a job's entry, or None if it has none."""
    if "placement" in item:
        devices = sum(item["placement"])
        return (str(item["type"]), devices) if devices and item["type"] else None
    devices = sum(item.values())
    return ("+".join(sorted(str(kind) for kind in item)), devices) if devices else None
