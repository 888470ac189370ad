"""Explanation of a waiting job: reason, visible blocking jobs, and remedies."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Any, Final

from scheduling.core.lifecycle import FailureClass, JobState, PreemptionRule
from scheduling.core.messages import message, sentence
from scheduling.core.reasons import stored_steps, stored_text, with_message
from scheduling.core.round.gates import jobs_named
from scheduling.estimates.models import StartEstimate
from scheduling.estimates.queries import Eta, eta_of, holds_for, is_of, no_estimate_of, steps_left
from scheduling.jobs.models import Job
from scheduling.jobs.queries.events import visible_jobs_among
from scheduling.jobs.queries.job_columns import ASK_A_LEAD, jobs_ahead, waits_for_a_lead
from scheduling.jobs.queries.jobs import visible_job
from scheduling.jobs.queries.shared_running import shared_state, time_span
from scheduling.rounds.queries import RoundHealth, newest_round, round_health
from scheduling.runs.models import Attempt, Preemption
from tenants.viewers import Viewer
from tessera.messages import Message, plain
from tessera.reasons import ReasonCode

_NOT_WAITING = {
    JobState.ADMITTED: message("admitted"),
    JobState.STARTING: message("starting"),
    JobState.SUSPECT: message("suspect"),
    JobState.PREEMPTING: message("preempting"),
    JobState.STOPPING: message("stopping"),
}
STEPS: Final = "steps"
ETA: Final = "eta"

_RESIZES = (PreemptionRule.RESIZE, PreemptionRule.REVERT)
_AFTER_FAILURE = {
    FailureClass.USER: message("clone-after-user-error"),
    FailureClass.RESOURCE_LIMIT: message("clone-with-memory"),
    FailureClass.TIMEOUT: message("clone-with-time"),
    FailureClass.IMAGE: message("clone-with-image"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Reason, remedies and start estimate of a job.

    Attributes:
        code: a reason code; empty for a job that does not wait.
        text: one or two sentences.
        blocked_by: IDs of blocking jobs that the viewer may see.
        blocked_by_others: number of other blocking jobs.
        unblock: remedies, most useful first.
        told: remedies from the reason itself, without ``steps``.
        steps: changes with which the job starts now, each with kind, text and changes.
        proof: the certificate that no change helps: the reason for the smallest demand, by virtual
            cluster.
        round_number: the newest round, which decided the reason; 0 for a job that does not wait.
        steps_round: the round after which ``steps`` and ``proof`` were found; 0 for none.
        eta: start estimate; None if unknown.
        no_eta: reason of a missing start estimate; empty otherwise.
        unlimited: running jobs without a time limit that cause a missing estimate, as far as
            visible.
        ahead: queue position; None if unknown.
        pending: the fields ``steps`` and ``eta`` that are still being computed.
    """

    job_id: int
    state: str
    since: datetime
    code: str
    text: str
    blocked_by: tuple[int, ...] = ()
    blocked_by_others: int = 0
    unblock: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    steps: tuple[Mapping[str, Any], ...] = ()
    proof: tuple[Mapping[str, Any], ...] = ()
    round_number: int = 0
    steps_round: int = 0
    eta: Eta | None = None
    no_eta: str = ""
    unlimited: tuple[int, ...] = ()
    ahead: int | None = None
    pending: tuple[str, ...] = ()


def why(viewer: Viewer, job_id: int, *, now: datetime, round_seconds: float) -> Why:
    """Explain why a job waits, or describe its current state.

    Args:
        viewer: the requesting user.
        job_id: ID of the job.
        now: the current time.
        round_seconds: the regular interval of rounds.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    job = visible_job(viewer, job_id)
    if job.state != JobState.QUEUED:
        text = sentence(shared_state(job, now) or _state(job))
        return _answer(job, code="", text=text, unblock=_next_steps(job))
    number, at = newest_round()
    age = (now - at).total_seconds() if at else None
    waited = (now - job.submitted_at).total_seconds()
    # Before the first round, the wait of the job itself shows whether a round is overdue.
    if round_health(waited if age is None else age, round_seconds) is RoundHealth.STOPPED:
        return _answer(
            job,
            code=ReasonCode.SCHEDULER_NOT_RUNNING,
            text=sentence(_silence(age)),
            unblock=(sentence(message("tell-admin-of-scheduler")),),
        )
    if not job.reason_code:
        text = sentence(_due(min(waited, age) if age is not None else waited, round_seconds))
        answer = _answer(job, code=ReasonCode.WAITING_FOR_ROUND, text=text)
        return replace(answer, pending=(STEPS, ETA))
    return replace(_by_its_reason(viewer, job), round_number=number)


def _by_its_reason(viewer: Viewer, job: Job) -> Why:
    """Return the explanation from the newest round and from later estimates."""
    estimate: StartEstimate | None = getattr(job, "estimate", None)
    if estimate is not None and not is_of(job.amendments, vars(estimate)):
        estimate = None
    blockers = [int(blocker) for blocker in job.reason.get("blocked_by", ())]
    unlimited = estimate.unlimited if estimate is not None else ()
    known = visible_jobs_among(viewer, (*blockers, *unlimited))
    seen = tuple(job_id for job_id in unlimited if job_id in known)
    pending = _pending(viewer, job, estimate)
    steps, told = _what_helps(viewer, job, None if STEPS in pending else estimate)
    told = (*told, *_limits_to_set(seen))
    answer = _answer(
        job,
        code=job.reason_code,
        text=stored_text(job.reason_text, job.reason),
        blocked_by=tuple(blocker for blocker in blockers if blocker in known),
        blocked_by_others=len(set(blockers) - known),
        unblock=(*(step["text"] for step in steps), *told),
    )
    answer = replace(
        answer,
        told=told,
        steps=steps,
        ahead=jobs_ahead([job.virtual_cluster_id]).get(job.pk),
        pending=pending,
    )
    if estimate is None:
        return answer
    proof = () if STEPS in pending else tuple(map(with_message, estimate.proof))
    return replace(
        answer,
        proof=proof,
        steps_round=0 if STEPS in pending else estimate.sought,
        eta=eta_of(vars(estimate)),
        no_eta=no_estimate_of(vars(estimate)),
        unlimited=seen,
    )


def _limits_to_set(unlimited: tuple[int, ...]) -> tuple[str, ...]:
    """Return the remedy if running jobs without a time limit prevent a start estimate."""
    if not unlimited:
        return ()
    return (sentence(message("set-max-duration", jobs=jobs_named(unlimited))),)


def _answer(
    job: Job,
    *,
    code: str,
    text: str,
    blocked_by: tuple[int, ...] = (),
    blocked_by_others: int = 0,
    unblock: tuple[str, ...] = (),
) -> Why:
    return Why(
        job_id=job.pk,
        state=job.state,
        since=job.state_since,
        code=str(code),
        text=text,
        blocked_by=blocked_by,
        blocked_by_others=blocked_by_others,
        unblock=unblock,
    )


def _pending(viewer: Viewer, job: Job, estimate: StartEstimate | None) -> tuple[str, ...]:
    """Return the fields that are not yet computed for the job's current reason."""
    is_sought = estimate is not None and holds_for(job.reason_code, vars(estimate))
    is_estimated = estimate is not None and bool(estimate.round_number)
    pending = () if is_sought or waits_for_a_lead(viewer, job) else (STEPS,)
    return pending if is_estimated else (*pending, ETA)


def _what_helps(
    viewer: Viewer, job: Job, estimate: StartEstimate | None
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Return steps that can be applied, and other remedies as texts."""
    if waits_for_a_lead(viewer, job):
        return (), (sentence(ASK_A_LEAD),)
    found = steps_left(estimate.steps, job.reason) if estimate is not None else ()
    steps = tuple(map(with_message, found))
    return steps, _not_yet_said(job, steps)


def _not_yet_said(job: Job, steps: tuple[Mapping[str, Any], ...]) -> tuple[str, ...]:
    """Return each remedy of the reason once, without those that a step already contains."""
    said = {str(step["text"]).rstrip(".").casefold() for step in steps}
    told = dict.fromkeys(stored_steps(job.reason))
    return tuple(step for step in told if step.rstrip(".").casefold() not in said)


def _due(age: float, round_seconds: float) -> Message:
    """Return a message with the time until the next round tries the job.

    Args:
        age: seconds since the newest round or the submit, whichever is later.
        round_seconds: the regular interval of rounds.
    """
    left = round_seconds - age
    if left > 0:
        return message("round-due", seconds=ceil(left))
    return message("round-overdue", seconds=max(ceil(-left), 1))


def _silence(age: float | None) -> Message:
    if age is None:
        return message("no-round-ever")
    return message("no-round-for", time=time_span(age))


def _state(job: Job) -> Message:
    cause = plain(job.end_message)
    if job.state == JobState.FAILED:
        failure = job.failure_class or "unknown"
        if job.end_message:
            return message("failed-because", failure_class=failure, cause=cause)
        return message("failed", failure_class=failure)
    if job.state == JobState.STOPPED:
        return _stopped(job, cause)
    if job.state == JobState.SUCCEEDED:
        time = _run_time(job)
        return message("succeeded") if time is None else message("succeeded-after", time=time)
    return _running(job) if job.state == JobState.RUNNING else _NOT_WAITING[JobState(job.state)]


def _stopped(job: Job, cause: Message) -> Message:
    time = _run_time(job)
    if time is None:
        return message("stopped-because", cause=cause) if job.end_message else message("stopped")
    if job.end_message:
        return message("stopped-after-because", time=time, cause=cause)
    return message("stopped-after", time=time)


def _running(job: Job) -> Message:
    """Return a message for a running job, with the size of an elastic job."""
    if "elastic" not in job.terms:
        return message("running")
    held = Attempt.objects.filter(job=job, ended_at=None).values_list("devices", flat=True).first()
    if not held or held == job.devices:
        return message("running")
    resizes = Preemption.objects.filter(job=job, cause__in=_RESIZES).order_by("-asked_at")
    rule = resizes.values_list("rule", flat=True).first()
    return message(
        "running-resized",
        n=held,
        asked=job.devices,
        rule=plain(f"{rule}.") if rule else message("own-size"),
    )


def _run_time(job: Job) -> Message | None:
    """Return a message with the time from first start to end; None if the job never started."""
    if job.first_started_at is None or job.finished_at is None:
        return None
    return time_span((job.finished_at - job.first_started_at).total_seconds())


def _next_steps(job: Job) -> tuple[str, ...]:
    """Return remedies for a failed job."""
    if job.state != JobState.FAILED:
        return ()
    if not job.failure_class:
        return (sentence(message("clone")),)
    known = FailureClass(job.failure_class)
    return (sentence(_AFTER_FAILURE.get(known, message("clone-to-retry"))),)
