"""Figures of a virtual cluster in one simulation of recorded days."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from scheduling.core.simulation import SimulationRecord
from scheduling.what_if.services.recorded_days import RecordedJob

_HOUR: Final = 3600.0


def figures(
    jobs: Sequence[RecordedJob], record: SimulationRecord, *, vc: str, devices: int
) -> dict[str, Any]:
    """Return the figures of a virtual cluster's jobs.

    Args:
        jobs: its jobs.
        record: result of the simulation.
        vc: its name.
        devices: its guaranteed devices.
    """
    ends = {job.id: record.ends[job.id] for job in jobs if job.id in record.ends}
    done = [job for job in jobs if job.id in ends]
    hours = [(ends[job.id] - job.submitted) / _HOUR for job in done]
    begun = min((job.submitted for job in jobs), default=0.0)
    used = sum(record.device_seconds.get(job.id, 0.0) for job in jobs)
    active = _active_seconds((job.submitted, ends[job.id]) for job in done)
    unfair = _unfairness(done, ends, devices)
    faults = [fault for fault in record.faults if fault.startswith(f"{vc}: ")]
    return {
        "jobs": len(jobs),
        "completed": len(hours),
        "avg_jct_h": round(sum(hours) / len(hours), 6) if hours else None,
        **{f"p{level}_jct_h": percentile(hours, level, 6) for level in (50, 90, 99)},
        "makespan_h": round((max(ends.values()) - begun) / _HOUR, 6) if ends else None,
        "avg_restarts": round(sum(record.restarts[job.id] for job in jobs) / max(1, len(jobs)), 6),
        "worst_ftf": round(max(unfair), 6) if unfair else None,
        "avg_gpus_busy": round(used / active, 6) if active else 0.0,
        "fallbacks": faults[:10],
        "failed_decisions": len(faults),
    }


def percentile(values: Sequence[float], level: float, digits: int) -> float | None:
    """Return a percentile, or None without values."""
    return round(float(np.percentile(values, level)), digits) if values else None


def _active_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of time spans."""
    total = until = 0.0
    for begin, end in sorted(spans):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total


def _unfairness(jobs: Sequence[RecordedJob], ends: dict[int, float], devices: int) -> list[float]:
    """Return finish-time fairness: completion time over that on an equal part of the guarantee.

    (Themis, NSDI '20.) Speed is proportional to devices; a job is never faster than requested.
    """
    if not devices:
        return []
    steps = sorted([(job.submitted, 1) for job in jobs] + [(ends[job.id], -1) for job in jobs])
    times = [at for at, _ in steps]
    live = list(accumulate(step for _, step in steps))
    areas = [
        0.0,
        *accumulate(n * (b - a) for n, a, b in zip(live, times, times[1:], strict=False)),
    ]

    def area(until: float) -> float:
        place = bisect_right(times, until) - 1
        return areas[place] + live[place] * (until - times[place])

    found = []
    for job in jobs:
        span = ends[job.id] - job.submitted
        others = (area(ends[job.id]) - area(job.submitted)) / span if span > 0.0 else 1.0
        alone = job.work * max(1.0, job.devices * max(1.0, others) / devices)
        found.append(span / (alone + job.overhead.start))
    return found
