"""The only writer of a job's state.

The times of a job's events never decrease: ``Job.event_at`` is the newest of them. Each event
moves it forward under the lock of the job's row. An older time (the writer has waited for the
lock, or its clock differs) does not change it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from django.db import OperationalError, connection, transaction
from django.db.models import DateTimeField, F, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Greatest

from scheduling.core.lifecycle import (
    TERMINAL,
    TRANSITIONS,
    IllegalTransitionError,
    JobEventKind,
    JobState,
    next_state,
)
from scheduling.core.notices import event_of
from scheduling.jobs.models import TEXT_MESSAGE, Job, JobEvent
from scheduling.signals import job_transitioned
from tessera.messages import Sentence

T = TypeVar("T")

MOST_TRIES: Final = 10
"""Maximum number of tries to move a job that other transactions move concurrently."""


class StaleJobError(Exception):
    """The job changed its state concurrently; nothing has been written."""

    def __init__(self, job_id: int, expected: JobState) -> None:
        super().__init__(f"job {job_id} is no longer {expected}")
        self.job_id = job_id
        self.expected = expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Text and details that a transition adds to the job's events."""

    text: str = ""
    attempt: int | None = None
    detail: Mapping[str, Any] | None = None


def insist(act: Callable[[], T]) -> T:
    """Call a service in a transaction, and retry if the job changes its state concurrently.

    Raises:
        StaleJobError: all ``MOST_TRIES`` tries failed.
    """
    for left in reversed(range(MOST_TRIES)):
        try:
            with transaction.atomic():
                return act()
        except StaleJobError:
            if not left:
                raise
        except OperationalError as error:
            # In a deadlock, the database ends one of the transactions.
            if not left or connection.in_atomic_block or not _is_deadlock(error):
                raise
    raise AssertionError  # the last try returns or raises


def event_instant(now: datetime) -> Combinable:
    """Return an expression for an event's time: ``now``, but not before the job's last event."""
    return Greatest(
        Coalesce(F("event_at"), F("state_since")), Value(now, output_field=DateTimeField())
    )


@transaction.atomic
def apply_job_event(
    *, job_id: int, event: JobEventKind, now: datetime, note: Note | None = None, **columns: Any
) -> JobState:
    """Move one job to its next state, write the event, and send the signal after the commit.

    Args:
        job_id: ID of the job.
        event: the transition.
        now: time of the event; the stored time is not before the job's last event.
        note: text and details for the job's events.
        columns: further columns of the job that change with the state.

    Returns:
        The new state.

    Raises:
        IllegalTransitionError: the job's state does not allow the event.
        StaleJobError: the job changed its state concurrently.
    """
    job = (
        Job.objects.unscoped()
        .select_related("virtual_cluster")
        .only("state", "tenant_id", "virtual_cluster__name")
        .get(pk=job_id)
    )
    before = JobState(job.state)
    after = next_state(before, event)
    moved = Job.objects.unscoped().filter(pk=job_id, state=before)
    if not moved.update(**_moving(after, now, columns)):
        raise StaleJobError(job_id, before)
    at = _event_times([job_id])[job_id]
    _event_row(job_id, event.value, after, at, note).save(force_insert=True)
    whose = _Whose(job.tenant_id, job.virtual_cluster_id, job.virtual_cluster.name)
    _announce(job_id, whose, before, after)
    return after


def try_job_event(
    *, job_id: int, event: JobEventKind, now: datetime, note: Note | None = None, **columns: Any
) -> JobState | None:
    """Call ``apply_job_event``, but return None if the job's state does not allow the event."""
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
        jobs: note by job ID.
        event: the transition of all jobs.
        now: time to store.
        only_in: if set, jobs in other states are skipped.
        **columns: further columns, as values or expressions, for all jobs.

    Returns:
        The new states by job ID, without jobs whose state does not allow the event, and without
        jobs that another transaction is moving.
    """
    if not jobs:
        return {}
    found = {row.job_id: row for row in _read(list(jobs))}
    moved: dict[int, JobState] = {}
    for before in sorted({row.state for row in found.values()}):
        after = TRANSITIONS.get((before, event))
        if after is not None and only_in in (None, before):
            ids = [pk for pk, row in found.items() if row.state is before]
            for pk in _move_all(ids, before, after, now, columns):
                moved[pk] = after
    if connection.features.has_select_for_update:
        times = _event_times(moved)
    else:  # no other transaction has changed the jobs since they were read
        times = {pk: max(found[pk].event_at or found[pk].since, now) for pk in moved}
    JobEvent.objects.bulk_create(
        _event_row(pk, event.value, after, times[pk], jobs[pk]) for pk, after in moved.items()
    )
    for pk, after in moved.items():
        _announce(pk, found[pk].whose, found[pk].state, after)
    return moved


def _move_all(
    ids: list[int], before: JobState, after: JobState, now: datetime, columns: Mapping[str, Any]
) -> list[int]:
    """Move jobs by compare-and-set; return the IDs of jobs that were still in ``before``."""
    there = Job.objects.unscoped().filter(pk__in=ids, state=before)
    if connection.features.has_select_for_update:
        # Other transactions may have moved some jobs since they were read.
        locked = there.order_by("pk").select_for_update(no_key=True)
        ids = list(locked.values_list("id", flat=True))
    there.update(**_moving(after, now, columns))
    return ids


def _moving(after: JobState, now: datetime, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a job that is moved to ``after``."""
    at = event_instant(now)
    columns = {**columns, "state": after, "state_since": at, "event_at": at}
    if after in TERMINAL:
        columns |= {"finished_at": at, "reason_code": "", "reason_text": "", "reason": {}}
    return columns


def admit_jobs(*, jobs: Mapping[int, Note], now: datetime) -> None:
    """Move queued jobs to admitted in two statements, for a round's commit.

    Raises:
        StaleJobError: a job is not queued any more; the caller's transaction must roll back.
    """
    before, after = JobState.QUEUED, next_state(JobState.QUEUED, JobEventKind.ADMIT)
    reason = {"reason_code": "", "reason_text": "", "reason": {}}
    columns = {"attempts_made": F("attempts_made") + 1, **reason}
    moved = (
        Job.objects.unscoped()
        .filter(pk__in=list(jobs), state=before)
        .update(**_moving(after, now, columns))
    )
    if moved != len(jobs):
        raise StaleJobError(min(jobs), before)
    rows = _read(list(jobs))
    JobEvent.objects.bulk_create(
        _event_row(
            one.job_id, JobEventKind.ADMIT.value, after, one.event_at or now, jobs[one.job_id]
        )
        for one in rows
    )
    for row in rows:
        _announce(row.job_id, row.whose, before, after)


def record_job_event(
    *, job_id: int, kind: str, now: datetime, state: str = "", note: Note | None = None
) -> None:
    """Record an event that does not change the job's state."""
    record_job_events(notes={job_id: note or Note()}, kind=kind, now=now, state=state)


@transaction.atomic(savepoint=False)
def record_job_events(
    *, notes: Mapping[int, Note], kind: str, now: datetime, state: str = ""
) -> None:
    """Record the same kind of event for several jobs, in three statements.

    The rows are locked in the order of their IDs, as in every write of several jobs.
    """
    jobs = Job.objects.unscoped().filter(pk__in=list(notes))
    rows = jobs.select_for_update(no_key=True).order_by("pk")
    times = {
        pk: max(event_at or since, now)
        for pk, event_at, since in rows.values_list("id", "event_at", "state_since")
    }
    jobs.update(event_at=event_instant(now))
    JobEvent.objects.bulk_create(
        _event_row(job_id, kind, state, times[job_id], note) for job_id, note in notes.items()
    )


def _event_times(job_ids: Collection[int]) -> Mapping[int, datetime]:
    """Return the newest event's time of jobs that this transaction has just updated."""
    if not job_ids:
        return {}
    rows = Job.objects.unscoped().filter(pk__in=list(job_ids))
    return {pk: at for pk, at in rows.values_list("id", "event_at") if at is not None}


def queued_among(job_ids: Collection[int]) -> set[int]:
    """Return the subset of ``job_ids`` that are currently queued."""
    return set(
        Job.objects.unscoped()
        .filter(pk__in=list(job_ids), state=JobState.QUEUED)
        .values_list("id", flat=True)
    )


def _event_row(job_id: int, kind: str, state: str, at: datetime, note: Note | None) -> JobEvent:
    note = note or Note()
    return JobEvent(
        job_id=job_id,
        at=at,
        kind=kind,
        state=state,
        attempt=note.attempt,
        text=note.text[:500],
        detail={**(note.detail or {}), **_message_of(note.text)},
        untold=event_of(kind, state) is not None,
    )


def _message_of(text: str) -> dict[str, Any]:
    """Return the message of an event's text, to be merged with the event's facts."""
    return {TEXT_MESSAGE: text.message.to_json()} if isinstance(text, Sentence) else {}


class _Whose(NamedTuple):
    """Tenant and virtual cluster of a job, used by other packages to filter receivers."""

    tenant_id: int
    virtual_cluster_id: int
    virtual_cluster: str


class _Row(NamedTuple):
    job_id: int
    state: JobState
    since: datetime
    event_at: datetime | None
    whose: _Whose


def _read(job_ids: list[int]) -> list[_Row]:
    rows = (
        Job.objects.unscoped()
        .filter(pk__in=job_ids)
        .values_list(
            "id",
            "state",
            "state_since",
            "event_at",
            "tenant_id",
            "virtual_cluster_id",
            "virtual_cluster__name",
        )
    )
    return [_Row(row[0], JobState(row[1]), row[2], row[3], _Whose(*row[4:])) for row in rows]


def _is_deadlock(error: OperationalError) -> bool:
    return getattr(error.__cause__, "sqlstate", "") in {"40P01", "40001"}


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
