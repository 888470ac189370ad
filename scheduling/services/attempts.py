"""What the nodes report about an attempt's members, and what follows for the gang and its job.

Every function may run inside an outer transaction, so that many reports share one commit, and is
idempotent: a report that comes twice, or after the member has moved on, changes nothing.
"""

from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from scheduling.core.gangs import MemberEnd, MemberFate, Verdict, judge
from scheduling.core.jobspec import Completion, JobSpec, parse_stored
from scheduling.core.lifecycle import FailureClass, JobEventKind, JobState
from scheduling.enums import DirectiveKind, MemberStep
from scheduling.models import Attempt, Directive, Job, JobSecret, Lease, Member
from scheduling.services.announce import tell_nodes, want_round
from scheduling.services.lifecycle import Note, try_job_event
from tessera import protocol

GONE: Final = (MemberStep.EXITED, MemberStep.RELEASED)
BEFORE_GO: Final = (MemberStep.WAITING, MemberStep.PREPARING, MemberStep.PREPARED)

FIRST_BACKOFF: Final = timedelta(seconds=10)
LONGEST_BACKOFF: Final = timedelta(minutes=10)
QUICK_BACKOFF: Final = timedelta(seconds=1)
AT_ONCE: Final = frozenset({FailureClass.NODE, FailureClass.PREEMPTED})
EXCLUDES_NODE: Final = frozenset({FailureClass.NODE, FailureClass.IMAGE, FailureClass.PLATFORM})


@transaction.atomic
def mark_preparing(*, member_ids: list[int], now: datetime) -> set[int]:
    """Take members from waiting to preparing; returns those that are preparing and wanted."""
    Member.objects.filter(pk__in=member_ids, step=MemberStep.WAITING, stop_asked_at=None).update(
        step=MemberStep.PREPARING, step_since=now
    )
    ready = Member.objects.filter(
        pk__in=member_ids, step=MemberStep.PREPARING, stop_asked_at=None
    ).values_list("id", "attempt__job_id", "attempt__number", "attempt__job__state")
    wanted = list(ready)
    for job_id, number in {
        (job_id, number) for _, job_id, number, state in wanted if state == JobState.ADMITTED
    }:
        try_job_event(
            job_id=job_id, event=JobEventKind.DISPATCH, now=now, note=Note(attempt=number)
        )
    return {member_id for member_id, *_ in wanted}


@transaction.atomic
def mark_prepared(*, member_id: int, now: datetime) -> bool:
    """One node is ready; when all are, the whole gang gets its go.

    Returns:
        Whether the gang may start now.
    """
    member = Member.objects.select_related("attempt").get(pk=member_id)
    moved = Member.objects.filter(
        pk=member_id, step=MemberStep.PREPARING, stop_asked_at=None
    ).update(step=MemberStep.PREPARED, step_since=now)
    if not moved:
        return False
    gang = Member.objects.filter(attempt_id=member.attempt_id)
    if gang.exclude(step=MemberStep.PREPARED, stop_asked_at=None).exists():
        return False
    gang.update(step=MemberStep.STARTING, step_since=now)
    tell_nodes(gang.values_list("node_id", flat=True))
    return True


@transaction.atomic
def mark_prepare_failed(
    *, member_id: int, failure: FailureClass, code: str, message: str, now: datetime
) -> None:
    """One node could not prepare: the gang does not start, and its attempt has failed."""
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
        _settle(member_id, now)


@transaction.atomic
def mark_running(
    *, member_id: int, pid: int | None, boot_id: str, started_at: datetime, now: datetime
) -> None:
    """One rank's process runs; when all do, the job is running."""
    moved = Member.objects.filter(pk=member_id, step=MemberStep.STARTING).update(
        step=MemberStep.RUNNING, step_since=now, pid=pid, boot_id=boot_id, started_at=started_at
    )
    if moved:
        _run_when_all_do(member_id, now)


@transaction.atomic
def mark_exited(*, member_id: int, record: protocol.ExitRecord, now: datetime) -> None:
    """One rank has ended, whatever the reason; the gang's rules decide what follows."""
    moved = (
        Member.objects.filter(pk=member_id)
        .exclude(step__in=GONE)
        .update(
            step=MemberStep.EXITED,
            step_since=now,
            exited_at=now,
            exit_code=_exit_code(record),
            exit_signal=record.signal,
            exit_cause=record.cause,
            failure_class=_failure_of(record),
            message=record.message[:500],
        )
    )
    if moved:
        _settle(member_id, now)


@transaction.atomic
def mark_cancelled(*, member_id: int, now: datetime) -> None:
    """A member that had not started is gone from its node."""
    moved = Member.objects.filter(pk=member_id, step__in=(*BEFORE_GO, MemberStep.STARTING)).update(
        step=MemberStep.RELEASED, step_since=now, removed_at=now
    )
    if moved:
        _settle(member_id, now)


def mark_lost(*, member_id: int, message: str, now: datetime) -> None:
    """A member is proved gone without an exit record (fenced, or its node was declared dead)."""
    record = protocol.ExitRecord(
        cause=protocol.CAUSE_LOST, failure=protocol.NODE, at=now.timestamp(), message=message
    )
    mark_exited(member_id=member_id, record=record, now=now)


def mark_removed(*, member_ids: list[int], now: datetime) -> None:
    """The run directories of these members are gone from their nodes."""
    Member.objects.filter(pk__in=member_ids, removed_at=None).update(removed_at=now)


def record_renewal(*, member_ids: list[int], now: datetime) -> None:
    """The node has confirmed new lease deadlines for these members."""
    Member.objects.filter(pk__in=member_ids).update(lease_renewed_at=now)


def ask_members_to_stop(*, attempt_id: int, cause: str, now: datetime) -> None:
    """Order the remaining members to leave; those that never began are gone at once."""
    open_members = Member.objects.filter(attempt_id=attempt_id, stop_asked_at=None).exclude(
        step__in=GONE
    )
    node_ids = set(open_members.values_list("node_id", flat=True))
    open_members.filter(step=MemberStep.WAITING).update(
        step=MemberStep.RELEASED,
        step_since=now,
        stop_asked_at=now,
        stop_cause=cause,
        removed_at=now,
    )
    open_members.update(stop_asked_at=now, stop_cause=cause)
    tell_nodes(node_ids)


def finish_when_gone(*, attempt_id: int, now: datetime) -> bool:
    """End the attempt if no member of it is left on any node.

    Returns:
        Whether it has ended now.
    """
    attempt = Attempt.objects.select_related("job").get(pk=attempt_id)
    if attempt.ended_at or attempt.members.exclude(step__in=GONE).exists():
        return False
    _end_attempt(attempt, now)
    return True


def _run_when_all_do(member_id: int, now: datetime) -> None:
    attempt = Attempt.objects.get(members=member_id)
    steps = set(attempt.members.values_list("step", flat=True))
    if not steps <= {MemberStep.RUNNING, MemberStep.EXITED} or attempt.running_at:
        return
    Attempt.objects.filter(pk=attempt.pk, running_at=None).update(running_at=now)
    Directive.objects.filter(attempt_id=attempt.pk, kind=DirectiveKind.START, done_at=None).update(
        done_at=now
    )
    job = Job.objects.unscoped().only("first_started_at").get(pk=attempt.job_id)
    try_job_event(
        job_id=attempt.job_id,
        event=JobEventKind.ALL_RUNNING,
        now=now,
        note=Note(attempt=attempt.number),
        started_at=now,
        first_started_at=job.first_started_at or now,
    )


def _settle(member_id: int, now: datetime) -> None:
    """After a member has gone: decide the gang if it can be, end the attempt if it is over."""
    attempt = Attempt.objects.select_related("job").get(members=member_id)
    if not attempt.outcome:
        verdict = judge(_fates(attempt), _rules(attempt.job))
        if verdict is not None:
            _decide(attempt, verdict, now)
    finish_when_gone(attempt_id=attempt.pk, now=now)


def _decide(attempt: Attempt, verdict: Verdict, now: datetime) -> None:
    attempt.outcome = "succeeded" if verdict.succeeded else "failed"
    attempt.exit_code = verdict.exit_code
    attempt.failure_class = verdict.failure or ""
    attempt.message = verdict.message[:500]
    attempt.save(update_fields=["outcome", "exit_code", "failure_class", "message"])
    ask_members_to_stop(attempt_id=attempt.pk, cause="gang", now=now)


def _end_attempt(attempt: Attempt, now: datetime) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(
        ended_at=now, outcome=attempt.outcome or "stopped"
    )
    Lease.objects.filter(attempt_id=attempt.pk, released_at=None).update(released_at=now)
    Directive.objects.filter(attempt_id=attempt.pk, done_at=None).update(done_at=now)
    _end_or_retry_job(attempt, now)
    if Job.objects.unscoped().get(pk=attempt.job_id).is_over:
        JobSecret.objects.filter(job_id=attempt.job_id).delete()
    want_round("exit")


def _end_or_retry_job(attempt: Attempt, now: datetime) -> None:
    job = attempt.job
    seconds = (now - attempt.created_at).total_seconds() * job.devices
    used = {"gpu_seconds": job.gpu_seconds + seconds}
    if attempt.outcome == "succeeded":
        try_job_event(
            job_id=job.pk,
            event=JobEventKind.SUCCEED,
            now=now,
            note=Note(attempt=attempt.number),
            exit_code=attempt.exit_code,
            **used,
        )
    elif attempt.outcome == "failed" and job.state != JobState.PREEMPTING:
        _fail_or_retry(attempt, now, used)
    else:
        try_job_event(
            job_id=job.pk,
            event=JobEventKind.RELEASED,
            now=now,
            note=Note(attempt=attempt.number),
            **used,
        )


def _fail_or_retry(attempt: Attempt, now: datetime, used: dict[str, float]) -> None:
    job = attempt.job
    failure = FailureClass(attempt.failure_class or FailureClass.USER)
    spec = parse_stored(job.spec)
    failed_before = int(job.failures.get(failure, 0))
    granted = spec.retries.allows(failure, used=failed_before)
    ended = {"exit_code": attempt.exit_code, "end_message": attempt.message, **used}
    if granted and job.state != JobState.STOPPING:
        backoff = now + _backoff(failure, failed_before)
        try_job_event(
            job_id=job.pk,
            event=JobEventKind.RETRY,
            now=now,
            note=Note(
                attempt=attempt.number,
                text=attempt.message,
                detail={"failure_class": failure, "exit_code": attempt.exit_code},
            ),
            failures={**job.failures, failure.value: failed_before + 1},
            excluded_nodes=_excluded(attempt, failure),
            backoff_until=backoff,
            **used,
        )
        return
    try_job_event(
        job_id=job.pk,
        event=JobEventKind.FAIL,
        now=now,
        note=Note(attempt=attempt.number, text=attempt.message, detail={"failure_class": failure}),
        failure_class=failure,
        retryable=failure is not FailureClass.USER,
        **ended,
    )


def _excluded(attempt: Attempt, failure: FailureClass) -> list[str]:
    """The job's excluded nodes, with those at fault in this attempt."""
    excluded = set(attempt.job.excluded_nodes)
    if failure in EXCLUDES_NODE:
        excluded |= set(
            attempt.members.filter(failure_class=failure).values_list("node__name", flat=True)
        )
    return sorted(excluded)


def _backoff(failure: FailureClass, failed_before: int) -> timedelta:
    if failure in AT_ONCE:
        return QUICK_BACKOFF
    return min(FIRST_BACKOFF * 2 ** min(failed_before, 16), LONGEST_BACKOFF)


def _exit_code(record: protocol.ExitRecord) -> int | None:
    """The code as a shell would report it: a signal counts as 128 and its number."""
    if record.code is None and record.signal is not None:
        return 128 + record.signal
    return record.code


def _failure_of(record: protocol.ExitRecord) -> str:
    """The class of an end; a stop that was asked for is nobody's failure."""
    if record.failure:
        return record.failure
    if record.cause in (protocol.CAUSE_EXITED, protocol.CAUSE_STOPPED):
        clean = record.cause == protocol.CAUSE_STOPPED or record.code == 0
        return "" if clean else FailureClass.USER
    return FailureClass.PLATFORM


def _fates(attempt: Attempt) -> list[MemberFate]:
    return [
        MemberFate(
            role=member.role,
            order=member.node_rank,
            end=_end_of(member),
            ended=member.exited_at.timestamp() if member.exited_at else 0.0,
            exit_code=member.exit_code,
            failure=FailureClass(member.failure_class) if member.failure_class else None,
            message=member.message or _plain_message(member),
        )
        for member in attempt.members.all()
    ]


def _end_of(member: Member) -> MemberEnd:
    if member.step == MemberStep.RELEASED:
        return MemberEnd.STOPPED
    if member.step != MemberStep.EXITED:
        return MemberEnd.OPEN
    if member.failure_class:
        return MemberEnd.FAILED
    stopped = member.exit_cause == protocol.CAUSE_STOPPED
    return MemberEnd.STOPPED if stopped else MemberEnd.SUCCEEDED


def _plain_message(member: Member) -> str:
    if member.exit_signal:
        return f"{member.role}-{member.rank} was ended by signal {member.exit_signal}"
    return f"{member.role}-{member.rank} ended with exit code {member.exit_code}"


def _rules(job: Job) -> dict[str, Completion]:
    spec: JobSpec = parse_stored(job.spec)
    return {name: role.completion for name, role in spec.roles.items()}
