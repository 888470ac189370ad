"""Early stops of the runs of sweeps, by the metric that ranks them."""

import logging
from datetime import datetime
from typing import Final

from scheduling.core.early_stopping import (
    EarlyStop,
    RunCurve,
    StopFinding,
    StopRule,
    runs_to_stop,
)
from scheduling.core.lifecycle import LIVE, JobState
from scheduling.core.messages import sentence
from scheduling.core.objectives import Objective
from scheduling.core.sweeps import options_from_json
from scheduling.jobs.models import Sweep
from scheduling.runs.models import Attempt
from scheduling.runs.services.stopping import stop_by_rule
from scheduling.sweeps.queries import jobs_of
from workers.metrics import curves_of_jobs

log = logging.getLogger(__name__)

EARLY_STOP: Final = "early-stop"
"""Name of the rule in the audit log and in the events of a job."""
POINTS: Final = 200
"""Points of each curve; a rung between two of them is compared at the later one."""


def end_losing_runs(*, now: datetime) -> list[int]:
    """Stop the running jobs of sweeps that their early stops end; return their IDs."""
    ended: list[int] = []
    for sweep in Sweep.objects.unscoped().filter(is_watched=True).order_by("id"):
        try:
            ended += _end_in(sweep, now)
        except Exception:
            log.exception("early stops of %s were not checked", sweep)
    return ended


def _end_in(sweep: Sweep, now: datetime) -> list[int]:
    options = options_from_json(sweep.options)
    objective, settings = options.objective, options.early_stop
    states = dict(jobs_of(sweep).values_list("id", "state"))
    if objective is None or settings is None or not any(s in LIVE for s in states.values()):
        Sweep.objects.unscoped().filter(pk=sweep.pk).update(is_watched=False)
        return []
    running = [job_id for job_id, state in states.items() if state == JobState.RUNNING]
    if not running:
        return []
    runs = {
        job_id: RunCurve(*curve.in_force(objective.goal), is_live=job_id in running)
        for job_id, curve in curves_of_jobs(list(states), objective.metric, points=POINTS).items()
    }
    found = runs_to_stop(runs, goal=objective.goal, settings=settings)
    attempts = dict(
        Attempt.objects.filter(job_id__in=found, ended_at=None).values_list("job_id", "pk")
    )
    return [
        job_id
        for job_id, finding in found.items()
        if job_id in attempts
        and stop_by_rule(
            job_id=job_id,
            attempt_id=attempts[job_id],
            rule=EARLY_STOP,
            text=_reason(objective, settings, finding),
            now=now,
        )
    ]


def _reason(objective: Objective, settings: EarlyStop, found: StopFinding) -> str:
    facts = {
        "metric": objective.metric,
        "step": format(found.step, ","),
        "value": f"{found.value:.4g}",
        "bound": f"{found.bound:.4g}",
    }
    if settings.rule is StopRule.MEDIAN:
        return sentence("ended-early-median", others=found.runs - 1, **facts)
    return sentence("ended-early-asha", runs=found.runs, **facts)
