"""Parallel plans of new attempts, and the events of re-plans."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Final

from django.db.models import Q

from scheduling.core.jobspec import ProfileUse, parse_stored
from scheduling.core.messages import message, sentence
from scheduling.core.policy_interface import GridTable
from scheduling.core.round.parallel_plans import PlanRun, barred_plans, plan_of_start, shape_of
from scheduling.jobs.services.lifecycle import Note, record_job_events
from scheduling.parallelism.models import AttemptPlan
from scheduling.runs.models import Attempt

REPLANNED: Final = "replanned"
"""Kind of the event of a job whose plan differs from that of its previous attempt."""


def create_plans(
    attempts: Sequence[Attempt], grids: Mapping[int, GridTable], *, now: datetime
) -> None:
    """Store the parallel plan of each attempt of a hybrid job that has one.

    Args:
        attempts: the new attempts, with their jobs.
        grids: best grids by job ID.
        now: time of the round.
    """
    rows = []
    for attempt in attempts:
        job = attempt.job
        parallel = parse_stored(job.spec).parallel if job.model_fingerprint else None
        if parallel is None or parallel.profile is ProfileUse.ONLY:
            continue
        chosen = plan_of_start(
            parallel,
            grids.get(job.pk, ()),
            device_type=attempt.device_type,
            nodes=attempt.nodes,
            devices=attempt.devices,
        )
        if chosen is not None:
            rows.append(
                AttemptPlan(
                    attempt=attempt,
                    tenant_id=job.tenant_id,
                    fingerprint=job.model_fingerprint,
                    device_type=attempt.device_type,
                    plan_id=chosen.plan["id"],
                    plan=dict(chosen.plan),
                    predicted=chosen.predicted,
                    source=chosen.source,
                )
            )
    if rows:
        AttemptPlan.objects.unscoped().bulk_create(rows)
        _record_replans(rows, now)


def _record_replans(rows: Sequence[AttemptPlan], now: datetime) -> None:
    again = [row for row in rows if row.attempt.number > 1]
    if not again:
        return
    earlier = reduce(
        or_,
        (
            Q(attempt__job=row.attempt.job_id, attempt__number=row.attempt.number - 1)
            for row in again
        ),
    )
    found = {
        row.attempt.job_id: row
        for row in AttemptPlan.objects.unscoped()
        .filter(earlier)
        .select_related("attempt", "attempt__progress")
    }
    notes = {
        row.attempt.job_id: Note(
            text=_replan(row, found[row.attempt.job_id]), attempt=row.attempt.number
        )
        for row in again
        if row.attempt.job_id in found and _differ(row, found[row.attempt.job_id])
    }
    if notes:
        record_job_events(notes=notes, kind=REPLANNED, now=now)


def _differ(new: AttemptPlan, old: AttemptPlan) -> bool:
    return (new.plan_id, new.device_type) != (old.plan_id, old.device_type)


def _replan(new: AttemptPlan, old: AttemptPlan) -> str:
    """Return the change as a sentence, with the reason if the earlier plan was barred."""
    facts: dict[str, str | int] = {
        "shape": shape_of(new.plan),
        "devices": new.attempt.devices,
        "device_type": new.device_type,
        "old": shape_of(old.plan),
        "old_devices": old.attempt.devices,
        "old_type": old.device_type,
    }
    progress = getattr(old.attempt, "progress", None)
    run = PlanRun(
        type=old.device_type,
        plan_id=old.plan_id,
        predicted=old.predicted,
        steps=progress.steps if progress is not None else 0,
        seconds=progress.seconds if progress is not None else 0.0,
        failure_class=old.attempt.failure_class,
    )
    bar = barred_plans([run]).get((old.device_type, old.plan_id))
    if bar is None:
        return sentence("replanned", **facts)
    return sentence("replanned-after-bar", **facts, reason=message(f"parallel-grid-{bar}"))
