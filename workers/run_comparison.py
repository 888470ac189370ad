"""Several jobs side by side: results, the fields that differ, and curves on common axes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduling.core.messages import sentence
from scheduling.core.objectives import Goal, usual_goal
from scheduling.core.spec_differences import SpecRow, spec_rows
from scheduling.jobs.queries.job_detail import AttemptView, attempts_of_job
from scheduling.jobs.queries.jobs import JobRow, rows_of_jobs, visible_job
from scheduling.usage.queries.device_hours import DeviceHours, hours_of_jobs
from tenants.errors import InvalidError
from tenants.viewers import Viewer
from workers.goodput import newest_points
from workers.metrics import (
    MOST_NAMES,
    Axis,
    MetricCurve,
    MetricSummary,
    Wanted,
    metric_curves,
    metrics_of_job,
    total_steps_of,
)

MOST_JOBS: Final = 8
COARSE_POINTS: Final = 64
"""Points of the curves from which the best values are read; their bounds are exact."""
HOUR: Final = 3600.0


class CommonAxis(StrEnum):
    """An x axis that jobs share: hours are counted from the first start of each job."""

    STEP = "step"
    HOURS = "hours"
    EPOCH = "epoch"
    DEVICE_HOURS = "device-hours"

    @property
    def stored(self) -> Axis:
        """Return the axis of the points from which this one is computed."""
        return Axis(self.value) if self in (CommonAxis.STEP, CommonAxis.EPOCH) else Axis.TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """Values of a metric of a job, of its first rank, without superseded points.

    Attributes:
        last: newest value; None if not finite.
        best: best value; None if the better direction is unknown or no value is finite.
    """

    last: float | None
    best: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of several jobs.

    Attributes:
        wait_seconds: from the submit to the first start; None before it.
        preemptions: attempts that the scheduler or a drain ended.
        last_step: newest step of a metric or of the goodput; None without reports.
        total_steps: last step that the training declared; None if it declared none.
        goodput: newest goodput in samples per second; None without reports.
        metrics: results by name.
        clock: conversion of times to the hours of the job.
    """

    row: JobRow
    hours: DeviceHours
    wait_seconds: float | None
    preemptions: int
    last_step: int | None
    total_steps: int | None
    goodput: float | None
    metrics: Mapping[str, MetricResult]
    clock: "RunClock"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Jobs in the order of the request.

    Attributes:
        metrics: names of metrics, at most 16; those of the first job first.
        goals: better direction of each metric; None if unknown.
        fields: fields of the specifications, those that differ first.
    """

    runs: tuple[ComparedRun, ...]
    metrics: tuple[str, ...]
    goals: Mapping[str, Goal | None]
    fields: tuple[SpecRow, ...]


@dataclass(frozen=True, slots=True)
class RunClock:
    """Times of a job: seconds since the epoch, at which members held devices.

    Attributes:
        begun: first start of a member; infinite before it.
        spans: start, end and number of devices of each member.
    """

    begun: float
    spans: npt.NDArray[np.float64]

    @classmethod
    def of(cls, attempts: Iterable[AttemptView], now: datetime) -> "RunClock":
        """Read the clock of a job from its attempts."""
        rows = [
            (
                member.started_at.timestamp(),
                max(member.started_at, member.exited_at or attempt.ended_at or now).timestamp(),
                float(len(member.devices)),
            )
            for attempt in attempts
            for member in attempt.members
            if member.started_at is not None
        ]
        spans = np.array(rows, dtype=np.float64).reshape(-1, 3)
        return cls(float(spans[:, 0].min()) if len(spans) else math.inf, spans)

    def hours(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the hours from the first start to each time, not below 0."""
        if not len(self.spans):
            return np.zeros(len(times))
        return np.maximum(times - self.begun, 0.0) / HOUR

    def device_hours(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the device-hours of all members up to each time."""
        if not len(self.spans):
            return np.zeros(len(times))
        ends = np.sort(np.unique(self.spans[:, :2]))
        return np.interp(times, ends, self._used(ends))

    def _used(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        start, end, devices = self.spans.T
        held = np.clip(times[:, None], start, end) - start
        used: npt.NDArray[np.float64] = (held * devices).sum(axis=1) / HOUR
        return used

    def time_at(self, axis: CommonAxis, value: float) -> float:
        """Return the first time at which the axis has the value; for axes of hours."""
        if not len(self.spans):
            return value
        if axis is CommonAxis.HOURS:
            return self.begun + value * HOUR
        ends = np.sort(np.unique(self.spans[:, :2]))
        used = self._used(ends)
        # While no member holds devices, the hours stay the same: the piece before it counts.
        after = int(np.searchsorted(used, value))
        if after == len(used):
            return math.inf
        piece = slice(max(0, after - 1), after + 1)
        return float(np.interp(value, used[piece], ends[piece]))


def read_run_ids(texts: Iterable[str]) -> tuple[int, ...]:
    """Read the IDs of jobs from query parameters; repeated ones count once.

    Raises:
        InvalidError: an ID is not a number, or there are too many.
    """
    parts = dict.fromkeys(part.strip() for text in texts for part in text.split(","))
    ids = [part for part in parts if part]
    wrong = next((one for one in ids if not (one.isascii() and one.isdecimal())), None)
    if wrong is not None or any(len(one) > 18 for one in ids):
        raise InvalidError(
            sentence("not-job-id"),
            field="jobs",
            value=str(wrong or "")[:40],
            remedy=sentence("use-job-ids"),
        )
    found = tuple(dict.fromkeys(map(int, ids)))
    if len(found) > MOST_JOBS:
        raise InvalidError(
            sentence("too-many-compared"),
            field="jobs",
            value=len(found),
            remedy=sentence("use-at-most", most=MOST_JOBS),
        )
    return found


def compare_runs(viewer: Viewer, ids: Sequence[int], *, now: datetime) -> RunComparison:
    """Compare up to eight jobs; the number of queries depends on the number of jobs only.

    Raises:
        NotFoundError: a job does not exist, or the viewer may not see it.
    """
    jobs = [visible_job(viewer, job_id) for job_id in ids]
    rows = rows_of_jobs(viewer, list(ids))
    hours = hours_of_jobs(ids, now=now)
    known = {job_id: metrics_of_job(viewer, job_id) for job_id in ids}
    names = tuple(dict.fromkeys(one.name for found in known.values() for one in found))
    names = names[:MOST_NAMES]
    goals = {name: usual_goal(name) for name in names}
    runs = []
    for job in jobs:
        attempts = attempts_of_job(viewer, job.pk)
        goodput = newest_points(viewer, job.pk)
        start = job.first_started_at
        runs.append(
            ComparedRun(
                row=rows[job.pk],
                hours=hours.get(job.pk, DeviceHours()),
                wait_seconds=(start - job.submitted_at).total_seconds() if start else None,
                preemptions=sum(attempt.is_evicted for attempt in attempts),
                last_step=max(
                    (
                        *(one.last_step for one in known[job.pk]),
                        *(point.step for point in goodput),
                    ),
                    default=None,
                ),
                total_steps=total_steps_of(job.pk),
                goodput=goodput[-1].goodput if goodput else None,
                metrics=_results(viewer, job.pk, known[job.pk], goals),
                clock=RunClock.of(attempts, now),
            )
        )
    return RunComparison(
        runs=tuple(runs), metrics=names, goals=goals, fields=spec_rows([job.spec for job in jobs])
    )


def _results(
    viewer: Viewer,
    job_id: int,
    known: Sequence[MetricSummary],
    goals: Mapping[str, Goal | None],
) -> dict[str, MetricResult]:
    names = [one.name for one in known if goals.get(one.name) is not None]
    curves = metric_curves(viewer, job_id, Wanted(names=names, points=COARSE_POINTS))
    best = {
        curve.name: curve.best(goal) for curve in curves if (goal := goals[curve.name]) is not None
    }
    return {
        one.name: MetricResult(last=one.last, best=best.get(one.name))
        for one in known
        if one.name in goals
    }


def common_curves(
    viewer: Viewer, run: ComparedRun, wanted: Wanted, axis: CommonAxis
) -> tuple[tuple[MetricCurve, Sequence[float | None]], ...]:
    """Return the curves of one job, each with its values on the common axis.

    Args:
        viewer: who asks.
        run: the job.
        wanted: names, and bounds in the unit of ``axis``.
        axis: of the bounds and of the values.

    Raises:
        NotFoundError: the job was deleted since.
    """
    asked = replace(wanted, axis=axis.stored)
    if axis.stored is Axis.TIME:
        since, until = (
            None if bound is None else run.clock.time_at(axis, bound)
            for bound in (wanted.since, wanted.until)
        )
        asked = replace(asked, since=since, until=until)
    curves = metric_curves(viewer, run.row.id, asked)
    return tuple((curve, _places(curve, run.clock, axis)) for curve in curves)


def _places(curve: MetricCurve, clock: RunClock, axis: CommonAxis) -> list[float | None]:
    if axis.stored is not Axis.TIME:
        return curve.column(axis.stored)
    times = curve.buckets["time"].astype(np.float64)
    values = clock.hours(times) if axis is CommonAxis.HOURS else clock.device_hours(times)
    return [float(value) for value in values]
