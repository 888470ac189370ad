"""Gang outcomes after members have ended: the attempt ends, and the job changes its state.

Functions handle many attempts at once, with a fixed number of statements for successful ones.
Failures and gangs with remaining members are handled one by one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, F, Field, FloatField
from django.db.models.expressions import Expression
from django.db.models.sql.compiler import SQLCompiler

from scheduling.common.on_commit import request_round_on_commit, wake_node_services
from scheduling.core.gang_outcomes import GangOutcome, MemberEnd, MemberFate, judge
from scheduling.core.jobspec import Completion, parse_stored
from scheduling.core.lifecycle import (
    EVICTED,
    TERMINAL,
    FailureClass,
    JobEventKind,
    JobState,
    end_reason,
)
from scheduling.core.messages import sentence
from scheduling.core.performance.executors import OWN_FAULTS, shared_by
from scheduling.core.round.parallel_plans import ESTIMATED, has_failed
from scheduling.core.watching.log_rules import LogAction
from scheduling.enums import LeaseKind, MemberStep, StopCause
from scheduling.jobs.models import Job, JobSecret
from scheduling.jobs.services.lifecycle import Note, try_job_event, try_job_events
from scheduling.parallelism.models import AttemptPlan
from scheduling.runs.models import Attempt, Lease, Member
from scheduling.runs.services.end_charges import Gangs, charged_at_end, end_cpu_leases
from scheduling.runs.services.exclusions import excluded_after
from scheduling.runs.services.receipts import settle_receipts
from scheduling.runs.services.tallies import count_evictions
from scheduling.watching.models import LogRuleHit
from tessera import protocol

GONE: Final = (MemberStep.EXITED, MemberStep.RELEASED)

FIRST_BACKOFF: Final = timedelta(seconds=10)
LONGEST_BACKOFF: Final = timedelta(minutes=10)
MOST_PLAN_TRIALS: Final = 2
QUICK_BACKOFF: Final = timedelta(seconds=1)
AT_ONCE: Final = frozenset({FailureClass.NODE, FailureClass.PREEMPTED})

_FATE: Final = (
    "attempt_id", "role", "rank", "node_rank", "step", "exited_at", "exit_code", "exit_signal",
    "exit_cause", "failure_class", "message", "devices", "started_at", "share_version",
)  # fmt: skip
"""Fields of a member that the gang outcome and the charge depend on."""
_UNREAD: Final = (
    "demand", "layout", "job__labels", "job__note", "job__source_text", "job__warnings",
    "job__demand", "job__terms", "job__reason", "job__reason_text",
)  # fmt: skip
"""Columns of attempts and jobs that are not needed and costly to read."""


def settle(*, attempt_ids: Collection[int], now: datetime) -> None:
    """Derive gang outcomes after members have ended, and end finished attempts."""
    attempts = _open_attempts(attempt_ids)
    gangs = _gangs(attempts)
    verdicts = {
        attempt.pk: judge(_fates(gangs[attempt.pk]), _rules(attempt.job))
        for attempt in attempts
        if not attempt.outcome
    }
    decided = {pk: verdict for pk, verdict in verdicts.items() if verdict is not None}
    if decided:
        _decide([attempt for attempt in attempts if attempt.pk in decided], decided, gangs, now)
        gangs = _gangs(attempts) if _some_are_left(gangs, decided) else gangs
    _end_attempts([attempt for attempt in attempts if _is_over(gangs[attempt.pk])], gangs, now)


def ask_members_to_stop(*, attempt_id: int, cause: StopCause, now: datetime) -> None:
    """Request the stop of the remaining members; remove members that never started."""
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
    wake_node_services(node_ids)


def finish_when_gone(*, attempt_id: int, now: datetime) -> bool:
    """End the attempt if none of its members is left on a node.

    Returns:
        Whether this call ended the attempt.
    """
    attempts = _open_attempts([attempt_id])
    gangs = _gangs(attempts)
    over = [attempt for attempt in attempts if _is_over(gangs[attempt.pk])]
    _end_attempts(over, gangs, now)
    return bool(over)


def _open_attempts(attempt_ids: Collection[int]) -> list[Attempt]:
    attempts = Attempt.objects.filter(pk__in=list(attempt_ids), ended_at=None)
    return list(attempts.select_related("job").defer(*_UNREAD).order_by("id"))


def _gangs(attempts: Iterable[Attempt]) -> Gangs:
    gangs: dict[int, list[Member]] = defaultdict(list)
    members = Member.objects.filter(attempt_id__in=[attempt.pk for attempt in attempts])
    for member in members.only(*_FATE):
        gangs[member.attempt_id].append(member)
    return gangs


def _is_over(members: Sequence[Member]) -> bool:
    return all(member.step in GONE for member in members)


def _some_are_left(gangs: Gangs, attempt_ids: Iterable[int]) -> bool:
    return any(not _is_over(gangs[attempt_id]) for attempt_id in attempt_ids)


def _decide(
    attempts: Sequence[Attempt],
    verdicts: Mapping[int, GangOutcome],
    gangs: Gangs,
    now: datetime,
) -> None:
    by_verdict: dict[GangOutcome, list[int]] = defaultdict(list)
    for attempt in attempts:
        verdict = verdicts[attempt.pk]
        attempt.outcome = "succeeded" if verdict.succeeded else "failed"
        attempt.exit_code = verdict.exit_code
        attempt.failure_class = verdict.failure or ""
        attempt.message = verdict.message[:500]
        by_verdict[verdict].append(attempt.pk)
    for verdict, attempt_ids in by_verdict.items():
        Attempt.objects.filter(pk__in=attempt_ids).update(
            outcome="succeeded" if verdict.succeeded else "failed",
            exit_code=verdict.exit_code,
            failure_class=verdict.failure or "",
            message=verdict.message[:500],
        )
    for attempt in attempts:
        if not _is_over(gangs[attempt.pk]):
            ask_members_to_stop(attempt_id=attempt.pk, cause=StopCause.GANG, now=now)


def _end_attempts(attempts: Sequence[Attempt], gangs: Gangs, now: datetime) -> None:
    if not attempts:
        return
    ids = [attempt.pk for attempt in attempts]
    ends = {attempt.pk: _left_nodes_at(gangs[attempt.pk], now) for attempt in attempts}
    undecided = [attempt.pk for attempt in attempts if not attempt.outcome]
    if undecided:
        Attempt.objects.filter(pk__in=undecided, outcome="").update(outcome="stopped")
    Attempt.objects.filter(pk__in=ids).update(ended_at=ByRow(ends, DateTimeField()))
    guests = [attempt.pk for attempt in attempts if attempt.is_guest]
    holders = _holders_of(guests) if guests else ()
    Lease.objects.filter(attempt_id__in=ids, released_at=None).update(released_at=now)
    end_cpu_leases([attempt for attempt in attempts if not attempt.devices], gangs, now)
    tell_coordinators(holders)
    used = charged_at_end(attempts, gangs, now)
    evicted_by = settle_receipts(attempt_ids=ids)
    over = _end_or_retry_jobs(attempts, used, evicted_by, now)
    if over:
        JobSecret.objects.filter(job_id__in=over).delete()
    request_round_on_commit("exit")


def _end_or_retry_jobs(
    attempts: Sequence[Attempt],
    used: Mapping[int, float],
    evicted_by: Mapping[int, str],
    now: datetime,
) -> set[int]:
    """Apply job transitions and add device-seconds; return the jobs that have ended."""
    succeeded = [attempt for attempt in attempts if attempt.outcome == "succeeded"]
    failed = [
        attempt for attempt in attempts if attempt.outcome == "failed" and not _may_leave(attempt)
    ]
    released = [attempt for attempt in attempts if attempt not in succeeded + failed]
    moved: dict[int, JobState | None] = {}
    groups: tuple[tuple[JobEventKind, list[Attempt], dict[str, Any]], ...] = (
        (JobEventKind.SUCCEED, succeeded, {"exit_code": 0}),
        (JobEventKind.RELEASED, released, {}),
    )
    for event, group, columns in groups:
        moved |= try_job_events(
            jobs={attempt.job_id: _end_note(attempt, evicted_by) for attempt in group},
            event=event,
            now=now,
            gpu_seconds=F("gpu_seconds") + ByRow(used, FloatField(), default=0.0),
            **columns,
        )
    for attempt in failed:
        moved[attempt.job_id] = _fail_or_retry(attempt, used[attempt.job_id], now)
    count_evictions(_evictions(released, failed, moved))
    return {job_id for job_id, state in moved.items() if state in TERMINAL}


def _may_leave(attempt: Attempt) -> bool:
    """Return whether the failure of an attempt is only the requested end."""
    asked_by_user = attempt.job.state == JobState.STOPPING
    lost = attempt.failure_class in {FailureClass.NODE, FailureClass.PLATFORM}
    return attempt.job.state == JobState.PREEMPTING or (asked_by_user and lost)


def _end_note(attempt: Attempt, evicted_by: Mapping[int, str]) -> Note:
    """Return the end reason for the job's events; the last checkpoint may be reported later."""
    reason = end_reason(
        outcome=attempt.outcome,
        failure_class=attempt.failure_class,
        evicted_by=evicted_by.get(attempt.pk),
    )
    text = f"{reason.value.capitalize()}." if reason in EVICTED else ""
    if attempt.job.state == JobState.STOPPING and attempt.outcome == "failed":
        text = attempt.message
    return Note(attempt=attempt.number, text=text, detail={"end_reason": reason.value})


def _evictions(
    released: Iterable[Attempt], failed: Iterable[Attempt], moved: Mapping[int, JobState | None]
) -> Iterator[tuple[int, FailureClass]]:
    """Yield virtual cluster and reason of evicted attempts that no user stopped."""
    for attempt in released:
        if moved.get(attempt.job_id) is JobState.QUEUED:
            yield attempt.job.virtual_cluster_id, FailureClass.PREEMPTED
    for attempt in failed:
        if moved[attempt.job_id] is not None:
            failure = FailureClass(attempt.failure_class or FailureClass.USER)
            yield attempt.job.virtual_cluster_id, failure


class ByRow(Expression):
    """A different value for each row of an update, by primary key.

    Django's ``Case`` has the same result, but each of its conditions is an expression that is
    resolved and compiled.
    """

    def __init__(
        self, values: Mapping[int, Any], output: "Field[Any, Any]", *, default: Any = None
    ) -> None:
        super().__init__(output_field=output)
        self._values, self._default = values, default

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, tuple[Any, ...]]:
        """Return ``CASE id WHEN … THEN … ELSE … END`` with its parameters."""

        def stored(value: Any) -> Any:
            return self.output_field.get_db_prep_value(value, connection)

        column = connection.ops.quote_name("id")
        whens = " WHEN %s THEN %s" * len(self._values)
        parameters = [one for pk, value in self._values.items() for one in (pk, stored(value))]
        return f"CASE {column}{whens} ELSE %s END", (*parameters, stored(self._default))


def _left_nodes_at(members: Iterable[Member], now: datetime) -> datetime:
    """Return the end of a gang's last process on its node; ``now`` if no process existed."""
    return max((member.exited_at for member in members if member.exited_at), default=now)


def _holders_of(attempt_ids: Collection[int]) -> list[int]:
    """Return the members beside which some attempts run as guests."""
    leases = Lease.objects.filter(
        attempt_id__in=attempt_ids, released_at=None, kind=LeaseKind.GUEST
    )
    return [member for member in leases.values_list("beside_id", flat=True) if member is not None]


def tell_coordinators(member_ids: Collection[int]) -> None:
    """Order the coordinators of these holders to read their guests again."""
    if not member_ids:
        return
    members = Member.objects.filter(pk__in=sorted(set(member_ids)))
    if members.update(share_version=F("share_version") + 1):
        wake_node_services(set(members.values_list("node_id", flat=True)))


def _fail_or_retry(attempt: Attempt, used_seconds: float, now: datetime) -> JobState | None:
    job = attempt.job
    failure = FailureClass(attempt.failure_class or FailureClass.USER)
    failed_before = int(job.failures.get(failure, 0))
    trial = _was_a_trial(attempt, failure) or _lost_its_holder(attempt, failure)
    granted = trial or parse_stored(job.spec).retries.allows(failure, used=failed_before)
    used = {"gpu_seconds": F("gpu_seconds") + used_seconds}
    if granted and job.state != JobState.STOPPING and not _is_not_to_be_retried(attempt):
        return try_job_event(
            job_id=job.pk,
            event=JobEventKind.RETRY,
            now=now,
            note=Note(
                attempt=attempt.number,
                text=attempt.message,
                detail={"failure_class": failure, "exit_code": attempt.exit_code},
            ),
            failures={**job.failures, failure.value: failed_before + (not trial)},
            excluded_nodes=excluded_after(attempt, failure),
            backoff_until=now + _backoff(failure, failed_before),
            **used,
        )
    return try_job_event(
        job_id=job.pk,
        event=JobEventKind.FAIL,
        now=now,
        note=Note(attempt=attempt.number, text=attempt.message, detail={"failure_class": failure}),
        failure_class=failure,
        retryable=failure is not FailureClass.USER,
        exit_code=attempt.exit_code,
        end_message=attempt.message,
        **used,
    )


def _was_a_trial(attempt: Attempt, failure: FailureClass) -> bool:
    """Return whether an attempt failed with a choice of the portal, which is not made again.

    A choice is several processes on a device, or an estimated parallel plan.
    """
    if failure in OWN_FAULTS and attempt.job.model_fingerprint:
        return _has_failed_plan(attempt, failure)
    allowed = (attempt.job.spec.get("elastic") or {}).get("executors", 1)
    if allowed < 2 or failure not in OWN_FAULTS:
        return False
    return shared_by(attempt.layout, attempt.devices) > 1


def _has_failed_plan(attempt: Attempt, failure: FailureClass) -> bool:
    """Return whether an estimated plan did not fit into memory, or failed before its first step.

    A job gets another plan at most ``MOST_PLAN_TRIALS`` times; then its own retries decide.
    """
    plans = AttemptPlan.objects.unscoped().filter(
        attempt__job=attempt.job_id, source__in=ESTIMATED
    )
    own = plans.filter(attempt=attempt).values_list("attempt__progress__steps", flat=True)
    if not own or not has_failed(failure, own[0] or 0):
        return False
    return plans.filter(attempt__failure_class__in=OWN_FAULTS).count() <= MOST_PLAN_TRIALS


def _lost_its_holder(attempt: Attempt, failure: FailureClass) -> bool:
    """Return whether a guest had to leave with the holder of its device; this is not a failure."""
    is_guest = attempt.is_guest and attempt.promoted_at is None
    return is_guest and failure in {FailureClass.PLATFORM, FailureClass.PREEMPTED}


def _is_not_to_be_retried(attempt: Attempt) -> bool:
    """Return whether a line of the attempt's log matched a rule that stops retries."""
    hits = LogRuleHit.objects.filter(attempt=attempt, action=LogAction.STOP_RETRIES)
    return hits.exists()


def _backoff(failure: FailureClass, failed_before: int) -> timedelta:
    if failure in AT_ONCE:
        return QUICK_BACKOFF
    return min(FIRST_BACKOFF * 2.0 ** min(failed_before, 16), LONGEST_BACKOFF)


def _fates(members: Iterable[Member]) -> list[MemberFate]:
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
        for member in members
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
    role = f"{member.role}-{member.rank}"
    if member.exit_signal:
        return sentence("ended-by-signal", role=role, exit_signal=member.exit_signal)
    return sentence("ended-with-code", role=role, exit_code=member.exit_code or 0)


def _rules(job: Job) -> dict[str, Completion]:
    """Return the completion rules of the roles; the stored document has no omitted values."""
    return {
        name: Completion(
            min_failed=role["completion"]["min_failed"],
            min_succeeded=role["completion"]["min_succeeded"],
        )
        for name, role in job.spec["roles"].items()
    }
