"""Requests to stop or preempt jobs; reports of the nodes complete them."""

from datetime import datetime

from django.db import connection, transaction

from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.lifecycle import JobEventKind, JobState, PreemptionRule
from scheduling.core.messages import sentence
from scheduling.enums import StopCause
from scheduling.jobs.models import Job, JobSecret
from scheduling.jobs.services.lifecycle import Note, insist, try_job_event
from scheduling.jobs.services.ownership import require_own
from scheduling.runs.models import Attempt
from scheduling.runs.services.attempts import ask_members_to_stop, finish_when_gone
from scheduling.runs.services.receipts import open_receipt
from tenants.audit import Actor, record
from tenants.viewers import Viewer


def stop_job(*, job: Job, viewer: Viewer, now: datetime, message: str = "") -> JobState:
    """Stop a job by request: a queued job at once, a running job when its processes have ended.

    Repeated stops and stops of ended jobs change nothing. If the job changes its state
    concurrently, it is stopped in the new state.

    Returns:
        The state of the job after the request.

    Raises:
        ForbiddenError: the viewer may see the job but not stop it.
    """
    require_own(job=job, viewer=viewer)
    return insist(lambda: _stop(job=job, viewer=viewer, now=now, message=message))


def _stop(*, job: Job, viewer: Viewer, now: datetime, message: str) -> JobState:
    _lock_attempt(job.pk)
    before = JobState(Job.objects.unscoped().values_list("state", flat=True).get(pk=job.pk))
    after = try_job_event(
        job_id=job.pk,
        event=JobEventKind.STOP,
        now=now,
        note=Note(
            text=sentence("stopped-by", username=viewer.username), detail={"by": viewer.username}
        ),
    )
    if after is None:
        return before
    record(
        actor=viewer,
        action="job.stop",
        obj=job,
        before={"state": before},
        after={"state": after},
        tenant=job.tenant_id,
        message=message,
    )
    if after is JobState.STOPPING:
        _ask_to_stop(job_id=job.pk, cause=StopCause.STOP, now=now)
    else:
        JobSecret.objects.filter(job_id=job.pk).delete()
        request_round_on_commit("stop")
    return after


def _lock_attempt(job_id: int) -> None:
    """Lock the attempt before the job, in the same order as reports of nodes."""
    if connection.features.has_select_for_update:
        attempts = Attempt.objects.filter(job_id=job_id, ended_at=None).order_by("pk")
        list(attempts.select_for_update(no_key=True).values_list("pk", flat=True))


@transaction.atomic
def preempt_job(
    *,
    job_id: int,
    for_job: int,
    rule: str,
    now: datetime,
    cause: PreemptionRule = PreemptionRule.POLICY,
    by: str = "",
) -> bool:
    """Preempt a running job; it is requeued when it has left.

    Args:
        job_id: the job to preempt.
        for_job: the job that gets the devices; 0 for none.
        rule: the rule as a text.
        now: time of the request.
        cause: kind of the rule.
        by: the requester, if not a round.

    Returns:
        Whether the job was running and now has to leave.
    """
    after = try_job_event(
        job_id=job_id,
        event=JobEventKind.PREEMPT,
        now=now,
        note=Note(text=rule, detail={"for_job": for_job, "rule": rule, "cause": cause.value}),
    )
    if after is None:
        return False
    open_receipt(job_id=job_id, for_job=for_job, cause=cause, by=by, rule=rule, now=now)
    _ask_to_stop(job_id=job_id, cause=StopCause.PREEMPT, now=now)
    return True


@transaction.atomic
def stop_by_rule(*, job_id: int, attempt_id: int, rule: str, text: str, now: datetime) -> bool:
    """Stop a running job by a rule, without a user's request.

    Args:
        job_id: the job.
        attempt_id: the attempt that the rule checked; another attempt is not stopped.
        rule: name of the rule, for the audit.
        text: the displayed reason.
        now: the current time.

    Returns:
        Whether that attempt was running and now has to stop.
    """
    job = Job.objects.unscoped().get(pk=job_id)
    is_this = Attempt.objects.filter(pk=attempt_id, job=job_id, ended_at=None).exists()
    if job.state != JobState.RUNNING or not is_this:
        return False
    note = Note(text=text, detail={"rule": rule})
    after = try_job_event(job_id=job_id, event=JobEventKind.STOP, now=now, note=note)
    if after is None:
        return False
    Job.objects.unscoped().filter(pk=job_id).update(end_message=text[:500])
    record(
        actor=Actor.system(rule),
        action="job.stop",
        obj=job,
        before={"state": JobState.RUNNING},
        after={"state": after},
        tenant=job.tenant_id,
        message=text,
    )
    _ask_to_stop(job_id=job_id, cause=StopCause.STOP, now=now)
    return True


def _ask_to_stop(*, job_id: int, cause: StopCause, now: datetime) -> None:
    attempt = Attempt.objects.get(job_id=job_id, ended_at=None)
    ask_members_to_stop(attempt_id=attempt.pk, cause=cause, now=now)
    finish_when_gone(attempt_id=attempt.pk, now=now)
