"""Restart of running jobs under another parallel plan, if theirs is barred."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from scheduling.core.jobspec import PlanChoice, stored_parallel
from scheduling.core.lifecycle import JobState, PreemptionRule
from scheduling.core.messages import message, sentence
from scheduling.core.round.parallel_plans import ESTIMATED, shape_of
from scheduling.core.round.replanning import Replacement, RunningPlan, replacement_of
from scheduling.parallelism.models import AttemptPlan
from scheduling.rounds.snapshot.grid_tables import plan_runs, profiled_grids
from scheduling.runs.models import Preemption
from scheduling.runs.services.stopping import preempt_job

MOST_RUNNING: Final = 500
"""Maximum number of running plans that one call checks, those that started last."""
MOST_RESTARTS: Final = 4
"""Maximum number of preemptions of a job by its policy in ``WITHIN``; above it, its plan stays.

Each plan is barred once, but a round reads only the newest runs, so that it can forget a bar.
"""
WITHIN: Final = timedelta(days=1)


def replace_barred_plans(*, now: datetime) -> int:
    """Preempt the running jobs whose plan is barred and has a better successor on their devices.

    They get the usual notice, save a checkpoint, and the next round starts them under the new
    plan. Without running plans, there is one query; otherwise three, and one for each barred plan.

    Returns:
        The number of preempted jobs.
    """
    plans = _running_plans()
    models = {(plan.tenant_id, plan.fingerprint) for plan in plans}
    if not models:
        return 0
    runs = plan_runs("default", models)
    grids = profiled_grids("default", models)
    replaced = 0
    for plan in plans:
        model = plan.tenant_id, plan.fingerprint
        found = replacement_of(_running(plan), grids.get(model, ()), runs.get(model, ()))
        if found is not None and not _restarts_often(plan.attempt.job_id, now):
            replaced += preempt_job(
                job_id=plan.attempt.job_id,
                for_job=0,
                rule=_rule(found),
                cause=PreemptionRule.POLICY,
                now=now,
            )
    return replaced


def _restarts_often(job_id: int, now: datetime) -> bool:
    receipts = Preemption.objects.filter(
        job_id=job_id, cause=PreemptionRule.POLICY, for_job=None, asked_at__gt=now - WITHIN
    )
    return receipts.count() >= MOST_RESTARTS


def _running_plans() -> Sequence[AttemptPlan]:
    """Return the plans of running attempts that the portal has chosen."""
    rows = (
        AttemptPlan.objects.unscoped()
        .filter(
            attempt__ended_at=None,
            attempt__running_at__isnull=False,
            attempt__job__state=JobState.RUNNING,
            source__in=ESTIMATED,
        )
        .select_related("attempt__job", "attempt__progress")
        .order_by("-attempt_id")
    )
    return [row for row in rows[:MOST_RUNNING] if _is_chosen(row)]


def _is_chosen(plan: AttemptPlan) -> bool:
    document = plan.attempt.job.spec.get("parallel")
    return document is not None and stored_parallel(document).plan is PlanChoice.AUTO


def _running(plan: AttemptPlan) -> RunningPlan:
    attempt = plan.attempt
    progress = getattr(attempt, "progress", None)
    began = attempt.running_at or attempt.created_at
    total = attempt.job.terms.get("steps")
    last = progress.last_step if progress is not None else None
    return RunningPlan(
        type=plan.device_type,
        devices=attempt.devices,
        plan_id=plan.plan_id,
        steps=progress.steps if progress is not None else 0,
        seconds=progress.seconds if progress is not None else 0.0,
        start_seconds=(began - attempt.created_at).total_seconds(),
        steps_left=None
        if total is None
        else max(0.0, total - 1.0 - (-1 if last is None else last)),
    )


def _rule(found: Replacement) -> str:
    return sentence(
        "restarts-under-plan",
        shape=shape_of(found.grid.plan),
        reason=message(f"parallel-grid-{found.bar}"),
    )
