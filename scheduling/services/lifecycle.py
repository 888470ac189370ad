"""The one writer of a job's state."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import F

from scheduling.core.lifecycle import (
    TERMINAL,
    TRANSITIONS,
    IllegalTransitionError,
    JobEventKind,
    JobState,
    next_state,
)
from scheduling.core.notices import event_of
from scheduling.models import Job, JobEvent
from scheduling.signals import job_transitioned


class StaleJobError(Exception):
    """The job was moved by somebody else between reading and writing; nothing has been written."""

    def __init__(self, job_id: int, expected: JobState) -> None:
        super().__init__(f"job {job_id} is no longer {expected}")
        self.job_id = job_id
        self.expected = expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a transition leaves in the job's list of events."""

    text: str = ""
    attempt: int | None = None
    detail: Mapping[str, Any] | None = None


@transaction.atomic
def apply_job_event(
    *, job_id: int, event: JobEventKind, now: datetime, note: Note | None = None, **columns: Any
) -> JobState:
    """Move one job, write the event, and announce it after the commit.

    Args:
        job_id: which job.
        event: what happened to it.
        now: the instant that is written.
        note: words and details for the job's events.
        columns: further columns of the job that change with the state.

    Returns:
        The new state.

    Raises:
        IllegalTransitionError: the job's state does not allow the event.
        StaleJobError: somebody moved the job first.
    """
    job = (
        Job.objects.unscoped()
        .select_related("virtual_cluster")
        .only("state", "tenant_id", "virtual_cluster__name")
        .get(pk=job_id)
    )
    before = JobState(job.state)
    after = next_state(before, event)
    columns = {**columns, "state": after, "state_since": now}
    if after in TERMINAL:
        columns |= {"finished_at": now, "reason_code": "", "reason_text": "", "reason": {}}
    moved = Job.objects.unscoped().filter(pk=job_id, state=before).update(**columns)
    if not moved:
        raise StaleJobError(job_id, before)
    record_job_event(job_id=job_id, kind=event.value, state=after, now=now, note=note)
    whose = _Whose(job.tenant_id, job.virtual_cluster_id, job.virtual_cluster.name)
    _announce(job_id, whose, before, after)
    return after


def try_job_event(
    *, job_id: int, event: JobEventKind, now: datetime, note: Note | None = None, **columns: Any
) -> JobState | None:
    """Like ``apply_job_event``, but None where the job's state does not allow the event."""
    try:
        return apply_job_event(job_id=job_id, event=event, now=now, note=note, **columns)
    except IllegalTransitionError:
        return None


@transaction.atomic(savepoint=False)
def try_job_events(
    *,
    jobs: Mapping[int, Note],
    event: JobEventKind,
    now: datetime,
    only_in: JobState | None = None,
    **columns: Any,
) -> dict[int, JobState]:
    """Move many jobs by the same event in a fixed number of statements.

    Args:
        jobs: what to note, by job.
        event: what happened to all of them.
        now: the instant that is written.
        only_in: jobs in another state are left out too.
        **columns: further columns, values or expressions, for all of them.

    Returns:
        The new states. Jobs whose state does not allow the event, or that somebody else is
        moving, are left out.
    """
    if not jobs:
        return {}
    found = {job_id: (state, whose) for job_id, state, whose in _read(list(jobs))}
    moved: dict[int, JobState] = {}
    for before in sorted({state for state, _ in found.values()}):
        after = TRANSITIONS.get((before, event))
        if after is not None and only_in in (None, before):
            ids = [pk for pk, (state, _) in found.items() if state is before]
            for pk in _move_all(ids, before, after, now, columns):
                moved[pk] = after
    JobEvent.objects.bulk_create(
        _event_row(pk, event.value, after, now, jobs[pk]) for pk, after in moved.items()
    )
    for pk, after in moved.items():
        before, whose = found[pk]
        _announce(pk, whose, before, after)
    return moved


def _move_all(
    ids: list[int], before: JobState, after: JobState, now: datetime, columns: Mapping[str, Any]
) -> list[int]:
    """Move jobs by compare-and-set; returns those that were still in ``before``."""
    columns = {**columns, "state": after, "state_since": now}
    if after in TERMINAL:
        columns |= {"finished_at": now, "reason_code": "", "reason_text": "", "reason": {}}
    there = Job.objects.unscoped().filter(pk__in=ids, state=before)
    if there.update(**columns) == len(ids):
        return ids
    # Somebody moved one of them between reading and writing: see which are ours.
    mine = Job.objects.unscoped().filter(pk__in=ids, state=after, state_since=now)
    return list(mine.values_list("id", flat=True))


def admit_jobs(*, jobs: Mapping[int, Note], now: datetime) -> None:
    """Move queued jobs to admitted in two statements, for a round's commit.

    Raises:
        StaleJobError: one of them is no longer queued; the caller's transaction must roll back.
    """
    before, after = JobState.QUEUED, next_state(JobState.QUEUED, JobEventKind.ADMIT)
    moved = (
        Job.objects.unscoped()
        .filter(pk__in=list(jobs), state=before)
        .update(
            state=after,
            state_since=now,
            attempts_made=F("attempts_made") + 1,
            reason_code="",
            reason_text="",
            reason={},
        )
    )
    if moved != len(jobs):
        raise StaleJobError(min(jobs), before)
    JobEvent.objects.bulk_create(
        _event_row(job_id, JobEventKind.ADMIT.value, after, now, note)
        for job_id, note in jobs.items()
    )
    for job_id, _, whose in _read(list(jobs)):
        _announce(job_id, whose, before, after)


def record_job_event(
    *, job_id: int, kind: str, now: datetime, state: str = "", note: Note | None = None
) -> None:
    """Add a line to the job's events that does not move it."""
    _event_row(job_id, kind, state, now, note).save(force_insert=True)


def record_job_events(*, notes: Mapping[int, Note], kind: str, now: datetime) -> None:
    """Add the same kind of line, one to each job, in one statement."""
    JobEvent.objects.bulk_create(
        _event_row(job_id, kind, "", now, note) for job_id, note in notes.items()
    )


def queued_among(job_ids: Collection[int]) -> set[int]:
    """Those of ``job_ids`` that are queued at this moment."""
    return set(
        Job.objects.unscoped()
        .filter(pk__in=list(job_ids), state=JobState.QUEUED)
        .values_list("id", flat=True)
    )


def _event_row(job_id: int, kind: str, state: str, now: datetime, note: Note | None) -> JobEvent:
    note = note or Note()
    return JobEvent(
        job_id=job_id,
        at=now,
        kind=kind,
        state=state,
        attempt=note.attempt,
        text=note.text[:500],
        detail=dict(note.detail or {}),
        untold=event_of(kind, state) is not None,
    )


class _Whose(NamedTuple):
    """Whose a job is; rooms above tell only those who may hear of it."""

    tenant_id: int
    virtual_cluster_id: int
    virtual_cluster: str


def _read(job_ids: list[int]) -> list[tuple[int, JobState, _Whose]]:
    rows = (
        Job.objects.unscoped()
        .filter(pk__in=job_ids)
        .values_list("id", "state", "tenant_id", "virtual_cluster_id", "virtual_cluster__name")
    )
    return [(row[0], JobState(row[1]), _Whose(*row[2:])) for row in rows]


def _announce(job_id: int, whose: _Whose, before: JobState, after: JobState) -> None:
    transaction.on_commit(
        partial(
            job_transitioned.send_robust,
            sender=Job,
            job_id=job_id,
            tenant_id=whose.tenant_id,
            virtual_cluster_id=whose.virtual_cluster_id,
            virtual_cluster=whose.virtual_cluster,
            before=before,
            after=after,
        )
    )
