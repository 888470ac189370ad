"""Results of a sweep: the best value, the cost and the end of each run, best first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from scheduling.core.objectives import Goal
from scheduling.core.sweeps import SweepOptions, options_from_json
from scheduling.jobs.models import JobEvent
from scheduling.sweeps.queries import SweepDetail, SweepJob
from scheduling.usage.queries.device_hours import hours_of_jobs
from workers.early_stops import EARLY_STOP
from workers.metrics import MetricCurve, curves_of_jobs

POINTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run of a sweep.

    Attributes:
        best: best value of the objective, without superseded steps; None without a finite one.
        step: last step of the objective; None without reports.
        hours: device-hours up to now.
        ended_early: whether a rule of the sweep stopped it.
    """

    job: SweepJob
    best: float | None
    step: int | None
    hours: float
    ended_early: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResults:
    """All runs of a sweep; with an objective, those with a value come first, best first."""

    options: SweepOptions
    runs: tuple[RunResult, ...]

    @property
    def best(self) -> RunResult | None:
        """The best run; None before the first value."""
        return self.runs[0] if self.runs and self.runs[0].best is not None else None


def sweep_results(found: SweepDetail, *, now: datetime) -> SweepResults:
    """Return the results of a sweep that the viewer may see."""
    options = options_from_json(found.sweep.options)
    ids = [job.id for job in found.jobs]
    hours = hours_of_jobs(ids, now=now)
    objective = options.objective
    curves = {} if objective is None else curves_of_jobs(ids, objective.metric, points=POINTS)
    early = _ended_early(ids) if options.early_stop is not None else frozenset()
    goal = None if objective is None else objective.goal
    runs = [
        RunResult(
            job=job,
            best=_best(curves.get(job.id), goal),
            step=_last_step(curves.get(job.id)),
            hours=(hours[job.id].gpu + hours[job.id].slot) if job.id in hours else 0.0,
            ended_early=job.id in early,
        )
        for job in found.jobs
    ]
    if goal is not None:
        sign = 1.0 if goal is Goal.MIN else -1.0
        runs.sort(key=lambda run: (run.best is None, sign * (run.best or 0.0), run.job.id))
    return SweepResults(options=options, runs=tuple(runs))


def _ended_early(ids: Sequence[int]) -> frozenset[int]:
    rows = JobEvent.objects.filter(job_id__in=ids, kind="stop", detail__rule=EARLY_STOP)
    return frozenset(rows.values_list("job_id", flat=True))


def _best(curve: MetricCurve | None, goal: Goal | None) -> float | None:
    return None if curve is None or goal is None else curve.best(goal)


def _last_step(curve: MetricCurve | None) -> int | None:
    return int(curve.buckets["step"].max()) if curve is not None and len(curve.buckets) else None
