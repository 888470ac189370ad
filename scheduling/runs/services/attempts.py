"""Reports of nodes about members; ``gang_outcomes`` derives the consequences.

Every function may run inside an outer transaction, so that many reports share one commit. Every
function is idempotent: a repeated or outdated report changes nothing. Frequent reports are handled
in batches with a fixed number of statements.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from django.db import connection, transaction
from django.db.models import DateTimeField, F
from django.db.models.functions import Coalesce

from scheduling.common.on_commit import wake_node_services
from scheduling.core.charging import last_evidence, limited
from scheduling.core.lifecycle import FailureClass, JobEventKind, JobState
from scheduling.enums import MemberStep
from scheduling.jobs.services.lifecycle import Note, event_instant, try_job_events
from scheduling.runs.models import Attempt, Member, Preemption
from scheduling.runs.services.gang_outcomes import (
    GONE,
    ByRow,
    ask_members_to_stop,
    finish_when_gone,
    settle,
)
from scheduling.runs.services.receipts import settle_receipts
from scheduling.runs.services.tallies import count_first_starts
from tessera import protocol

__all__ = ["GONE", "ask_members_to_stop", "finish_when_gone"]

BEFORE_GO: Final = (MemberStep.WAITING, MemberStep.PREPARING, MemberStep.PREPARED)
NOT_RUN_YET: Final = (*BEFORE_GO, MemberStep.STARTING)
_NEVER_RUN: Final = frozenset({*NOT_RUN_YET, MemberStep.RELEASED})
_TO_RUNNING: Final = """
    UPDATE {table} SET step = %s, step_since = %s, pid = %s, boot_id = %s,
        started_at = {later}(%s, step_since), isolation = %s, network = %s, warnings = %s
    WHERE id = %s AND step = %s
"""
"""Start times are not before the go of the gang, which is the last change of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStart:
    """A report that the process of a member runs.

    Attributes:
        pid: process ID on the node; None if unknown.
        boot_id: identifies the boot of the node.
        started_at: start time on the control plane's clock.
        isolation: actual isolation level.
        network: ``own``, or ``shared`` with the node.
        warnings: codes such as ``limits-not-enforced``.
    """

    member_id: int
    pid: int | None
    boot_id: str
    started_at: datetime
    isolation: str = ""
    network: str = ""
    warnings: tuple[str, ...] = ()


@transaction.atomic(savepoint=False)
def mark_preparing(*, member_ids: list[int], now: datetime) -> set[int]:
    """Move members from waiting to preparing; return members to prepare."""
    Member.objects.filter(pk__in=member_ids, step=MemberStep.WAITING, stop_asked_at=None).update(
        step=MemberStep.PREPARING, step_since=now
    )
    ready = Member.objects.filter(
        pk__in=member_ids, step=MemberStep.PREPARING, stop_asked_at=None
    ).values_list("id", "attempt__job_id", "attempt__number", "attempt__job__state")
    wanted = list(ready)
    try_job_events(
        jobs={
            job_id: Note(attempt=number)
            for _, job_id, number, state in wanted
            if state == JobState.ADMITTED
        },
        event=JobEventKind.DISPATCH,
        now=now,
    )
    return {member_id for member_id, *_ in wanted}


def _one_after_the_other(member_ids: Collection[int]) -> None:
    """Serialise reports about the same gangs.

    Each report checks the whole gang. Two concurrent reports would not see each other, and the
    gang would wait forever. SQLite has only one writer at a time. In a deadlock, the database ends
    one transaction, which is retried.
    """
    if connection.features.has_select_for_update:
        theirs = Member.objects.filter(pk__in=list(member_ids)).values("attempt_id")
        gangs = Attempt.objects.filter(pk__in=theirs).order_by("pk").select_for_update(no_key=True)
        list(gangs.values_list("pk", flat=True))


@transaction.atomic(savepoint=False)
def mark_all_prepared(*, member_ids: Collection[int], now: datetime) -> set[int]:
    """Mark members as prepared, and start gangs whose members are all prepared.

    Returns:
        The IDs of the attempts that may start now.
    """
    _one_after_the_other(member_ids)
    mine = Member.objects.filter(pk__in=list(member_ids))
    moved = mine.filter(step=MemberStep.PREPARING, stop_asked_at=None).update(
        step=MemberStep.PREPARED, step_since=now, message=""
    )
    if not moved:
        return set()
    gangs: dict[int, list[int]] = defaultdict(list)
    unready: set[int] = set()
    peers = Member.objects.filter(attempt__in=mine.order_by().values("attempt"))
    for attempt_id, node_id, step, stop_asked_at in peers.order_by().values_list(
        "attempt_id", "node_id", "step", "stop_asked_at"
    ):
        gangs[attempt_id].append(node_id)
        if step != MemberStep.PREPARED or stop_asked_at is not None:
            unready.add(attempt_id)
    ready = gangs.keys() - unready
    if ready:
        Member.objects.filter(attempt_id__in=ready).update(
            step=MemberStep.STARTING, step_since=now
        )
        wake_node_services(node_id for attempt_id in ready for node_id in gangs[attempt_id])
    return ready


def note_preparing(*, messages: Mapping[int, str]) -> None:
    """Store the progress of preparations by member ID; prepared members do not change."""
    for member_id, message in messages.items():
        Member.objects.filter(pk=member_id, step=MemberStep.PREPARING).update(
            message=message[:500]
        )


def mark_prepared(*, member_id: int, now: datetime) -> bool:
    """Mark one member as prepared; return whether its gang may start now."""
    return bool(mark_all_prepared(member_ids=[member_id], now=now))


@transaction.atomic
def mark_prepare_failed(
    *, member_id: int, failure: FailureClass, code: str, message: str, now: datetime
) -> None:
    """Record that a node could not prepare a member; the attempt fails."""
    _one_after_the_other([member_id])
    text = f"{code}: {message}"[:500]
    moved = Member.objects.filter(
        pk=member_id, step__in=(MemberStep.PREPARING, MemberStep.PREPARED, MemberStep.STARTING)
    ).update(
        step=MemberStep.EXITED,
        step_since=now,
        exited_at=now,
        exit_cause=protocol.CAUSE_START,
        failure_class=failure,
        message=text,
    )
    if moved:
        _settle_of(member_id, now)


@transaction.atomic(savepoint=False)
def mark_all_running(*, starts: Sequence[ReportedStart], now: datetime) -> None:
    """Record that processes run; a job is running when all its processes run."""
    _one_after_the_other([start.member_id for start in starts])
    moved = _move_to_running(starts, now)
    if moved:
        _run_when_all_do(moved, now)


def mark_running(
    *, member_id: int, pid: int | None, boot_id: str, started_at: datetime, now: datetime
) -> None:
    """Record that the process of one member runs; the job is running when all do."""
    start = ReportedStart(member_id=member_id, pid=pid, boot_id=boot_id, started_at=started_at)
    mark_all_running(starts=[start], now=now)


@transaction.atomic(savepoint=False)
def mark_all_exited(
    *,
    records: Mapping[int, protocol.ExitRecord],
    now: datetime,
    ended_at: Mapping[int, datetime] = MappingProxyType({}),
) -> None:
    """Record the end of members, for any reason; gang rules decide the consequences.

    Args:
        records: exit record by member.
        now: time of the observation.
        ended_at: end of each process on its node, on the control plane's clock, limited to the
            range from its start to ``now``. Other members ended at ``now``.
    """
    _one_after_the_other(records)
    members = Member.objects.filter(pk__in=list(records)).exclude(step__in=GONE)
    attempts: dict[int, int] = {}
    exits: dict[int, datetime] = {}
    for member_id, attempt_id, started_at in members.values_list("id", "attempt_id", "started_at"):
        attempts[member_id] = attempt_id
        exits[member_id] = limited(ended_at.get(member_id), earliest=started_at, latest=now)
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for member_id in attempts:
        record = records[member_id]
        ending = (_exit_code(record), record.signal, record.cause, _failure_of(record))
        alike[*ending, record.message[:500]].append(member_id)
    for (code, number, cause, failure, message), ids in alike.items():
        Member.objects.filter(pk__in=ids).update(
            step=MemberStep.EXITED,
            step_since=now,
            exited_at=ByRow({pk: exits[pk] for pk in ids}, DateTimeField()),
            exit_code=code,
            exit_signal=number,
            exit_cause=cause,
            failure_class=failure,
            message=message,
        )
    if attempts:
        settle(attempt_ids=set(attempts.values()), now=now)


def mark_exited(
    *,
    member_id: int,
    record: protocol.ExitRecord,
    now: datetime,
    ended_at: datetime | None = None,
) -> None:
    """Record the end of one member, for any reason; gang rules decide the consequences."""
    ends = {} if ended_at is None else {member_id: ended_at}
    mark_all_exited(records={member_id: record}, ended_at=ends, now=now)


@transaction.atomic
def mark_cancelled(*, member_id: int, now: datetime) -> None:
    """Record that a member that had not started has left its node."""
    _one_after_the_other([member_id])
    moved = Member.objects.filter(pk=member_id, step__in=NOT_RUN_YET).update(
        step=MemberStep.RELEASED, step_since=now, removed_at=now
    )
    if moved:
        _settle_of(member_id, now)


def mark_lost(*, member_id: int, message: str, now: datetime) -> None:
    """Record that a member has ended without an exit record (fenced, or its node is dead).

    The member is charged until its node last confirmed it.
    """
    record = protocol.ExitRecord(
        cause=protocol.CAUSE_LOST, failure=protocol.NODE, at=now.timestamp(), message=message
    )
    seen = Member.objects.filter(pk=member_id).values_list("started_at", "lease_renewed_at")
    started, renewed = seen.first() or (None, None)
    ended_at = last_evidence(started, [renewed])
    mark_exited(member_id=member_id, record=record, ended_at=ended_at, now=now)


def mark_removed(*, member_ids: list[int], now: datetime) -> None:
    """Record that the run directories of these members were removed from their nodes."""
    ended = Member.objects.filter(pk__in=member_ids, step__in=GONE, removed_at=None)
    ended.update(removed_at=now)
    # The last reports and checkpoints of a run arrive at its end.
    settle_receipts(
        attempt_ids=Preemption.objects.filter(attempt__members__in=member_ids)
        .order_by("attempt_id")
        .values_list("attempt_id", flat=True)
        .distinct()
    )


def record_renewal(*, member_ids: list[int], now: datetime) -> None:
    """Record that the node has confirmed new lease deadlines for these members."""
    Member.objects.filter(pk__in=member_ids).update(lease_renewed_at=now)


def mark_tuned(*, member_id: int, version: int) -> None:
    """Record that the node has received the settings of this version, even if it rejected them."""
    Member.objects.filter(pk=member_id, settings_told__lt=version).update(settings_told=version)


def mark_shared(*, member_id: int, version: int) -> None:
    """Record that the node of a holder has received its guests of this version."""
    Member.objects.filter(pk=member_id, share_told__lt=version).update(share_told=version)


def _settle_of(member_id: int, now: datetime) -> None:
    settle(
        attempt_ids=Member.objects.filter(pk=member_id).values_list("attempt", flat=True), now=now
    )


def _move_to_running(starts: Sequence[ReportedStart], now: datetime) -> list[int]:
    """Move members by compare-and-set with one prepared statement; return the moved members."""
    table = connection.ops.quote_name(Member._meta.db_table)
    as_stored = connection.ops.adapt_datetimefield_value
    since = as_stored(now)
    rows = [
        (
            MemberStep.RUNNING.value,
            since,
            start.pid,
            start.boot_id,
            as_stored(min(start.started_at, now)),
            start.isolation,
            start.network,
            " ".join(start.warnings)[:200],
            start.member_id,
            MemberStep.STARTING.value,
        )
        for start in starts
    ]
    ids = list({start.member_id: None for start in starts})
    with connection.cursor() as cursor:
        later = "MAX" if connection.vendor == "sqlite" else "GREATEST"
        cursor.executemany(_TO_RUNNING.format(table=table, later=later), rows)
        moved = cursor.rowcount
    if moved == len(ids):
        return ids
    mine = Member.objects.filter(pk__in=ids, step=MemberStep.RUNNING, step_since=now)
    return list(mine.order_by().values_list("id", flat=True))


def _run_when_all_do(member_ids: Sequence[int], now: datetime) -> None:
    theirs = Member.objects.filter(pk__in=member_ids).order_by().values("attempt")
    found: dict[int, tuple[int, int]] = {}
    starts: dict[int, datetime] = {}
    unready: set[int] = set()
    for attempt_id, step, job_id, number, started in (
        Member.objects.filter(attempt__in=theirs, attempt__running_at=None)
        .order_by("attempt_id")
        .values_list("attempt_id", "step", "attempt__job_id", "attempt__number", "started_at")
    ):
        found[attempt_id] = job_id, number
        starts[attempt_id] = max(starts.get(attempt_id, started or now), started or now)
        if step in _NEVER_RUN:
            unready.add(attempt_id)
    ids = [attempt_id for attempt_id in found if attempt_id not in unready]
    if not ids:
        return
    Attempt.objects.filter(pk__in=ids, running_at=None).update(
        running_at=ByRow({pk: starts[pk] for pk in ids}, DateTimeField())
    )
    running = try_job_events(
        jobs={job_id: Note(attempt=number) for job_id, number in map(found.__getitem__, ids)},
        event=JobEventKind.ALL_RUNNING,
        now=now,
        started_at=event_instant(now),
        first_started_at=Coalesce(F("first_started_at"), event_instant(now)),
    )
    count_first_starts(running, now)


def _exit_code(record: protocol.ExitRecord) -> int | None:
    """Return the exit code as a shell reports it: 128 plus the number of a signal."""
    if record.code is None and record.signal is not None:
        return 128 + record.signal
    return record.code


def _failure_of(record: protocol.ExitRecord) -> str:
    """Return the failure class of an end; a requested stop is not a failure."""
    if record.failure:
        return record.failure
    if record.cause in (protocol.CAUSE_EXITED, protocol.CAUSE_STOPPED):
        clean = record.cause == protocol.CAUSE_STOPPED or record.code == 0
        return "" if clean else FailureClass.USER
    return FailureClass.PLATFORM
