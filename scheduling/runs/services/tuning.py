"""Batches of running jobs, chosen after each round and sent without a restart.

A batch changes no allocation, so it needs neither the fence nor the record of a round. Each choice
is a compare-and-set on the member that reads it, and an event of the job.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import F

from scheduling.common.on_commit import wake_node_services
from scheduling.core.jobspec import Demand
from scheduling.core.lifecycle import JobState
from scheduling.core.messages import message, sentence
from scheduling.core.round.declared_terms import read_terms
from scheduling.core.values import Timed
from scheduling.enums import MemberStep
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.rounds.snapshot.performance_facts import timed_steps
from scheduling.runs.models import Attempt, Member

if TYPE_CHECKING:
    from scheduling.core.performance.batches import BatchedJob, Chosen

BATCH_EVENT = "batch"


def choose_batches(*, now: datetime) -> int:
    """Choose the batch of every running job with a variable batch.

    Returns:
        The number of changed batches.
    """
    attempts = list(
        Attempt.objects.filter(
            ended_at=None, progress__batch__isnull=False, job__state=JobState.RUNNING
        )
        .select_related("job", "progress")
        .order_by("id")
    )
    if not attempts:
        return 0
    from scheduling.core.performance.batches import choose_batch  # noqa: PLC0415  brings NumPy

    timed = timed_steps("default", [attempt.job_id for attempt in attempts])
    leaders = _leaders([attempt.pk for attempt in attempts])
    changed = 0
    for attempt in attempts:
        leader = leaders.get(attempt.pk)
        running = _running(attempt, leader, timed.get(attempt.job_id, ()), now)
        chosen = choose_batch(running) if running is not None else None
        if leader is not None and running is not None and chosen is not None:
            changed += _send(attempt, leader, running, chosen, now)
    return changed


def _leaders(attempt_ids: Sequence[int]) -> Mapping[int, Member]:
    members = Member.objects.filter(
        attempt_id__in=attempt_ids, node_rank=0, step=MemberStep.RUNNING, stop_asked_at=None
    )
    return {member.attempt_id: member for member in members}


def _running(
    attempt: Attempt, leader: Member | None, timed: Sequence[Timed], now: datetime
) -> "BatchedJob | None":
    """Return the job as input of the choice; None if it is not tunable or has no data."""
    from scheduling.core.performance.batches import (  # noqa: PLC0415  brings NumPy
        BatchedJob,
        limits_of,
        noise_of,
    )

    progress, job = attempt.progress, attempt.job
    terms = read_terms(job.terms, Demand.from_json(job.demand), job.tenant_id)
    limits = limits_of(terms)
    noise = noise_of(
        None
        if progress.noise_square is None or progress.noise_variance is None
        else (progress.noise_square, progress.noise_variance)
    )
    seen = tuple(one for one in timed if one.type == attempt.device_type)
    if limits is None or noise is None or leader is None or not seen or not attempt.devices:
        return None
    since = leader.settings_at or attempt.running_at or attempt.created_at
    return BatchedJob(
        type=attempt.device_type,
        nodes=attempt.nodes,
        devices=attempt.devices,
        batch=progress.batch or limits.initial,
        accumulation=progress.accumulation or 1,
        steps=progress.steps,
        unchanged=(now - since).total_seconds(),
        limits=limits,
        noise=noise,
        seen=seen,
    )


@transaction.atomic
def _send(
    attempt: Attempt, leader: Member, running: "BatchedJob", chosen: "Chosen", now: datetime
) -> bool:
    """Store the batch for the node of the job's first member; return whether it was stored.

    If a job runs with another batch than the sent one (too little data, or ignored), the same
    batch is not sent again.
    """
    settings: dict[str, Any] = {**(leader.settings or {})}
    settings |= {"batch": chosen.batch, "accumulation": chosen.accumulation}
    if settings == leader.settings:
        return False
    wanted = Member.objects.filter(
        pk=leader.pk, step=MemberStep.RUNNING, settings_version=leader.settings_version
    )
    if not wanted.update(
        settings=settings, settings_version=F("settings_version") + 1, settings_at=now
    ):
        return False
    passes = chosen.accumulation
    parts = message("passes", n=passes)
    record_job_event(
        job_id=attempt.job_id,
        kind=BATCH_EVENT,
        now=now,
        note=Note(
            attempt=attempt.number,
            text=sentence(
                "batch-changed",
                batch=format(chosen.batch, ","),
                parts=parts,
                before=format(running.batch, ","),
                gain=format(chosen.gain - 1.0, ".0%"),
            ),
            detail={
                "batch": chosen.batch,
                "accumulation": passes,
                "before": running.batch,
                "gain": round(chosen.gain, 4),
            },
        ),
    )
    wake_node_services({leader.node_id})
    return True
