"""What keeps a queued job from being considered at all, whatever is free."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from scheduling.core.reasons import Reason, ReasonCode
from scheduling.core.values import QueuedJob


def closed_gate(job: QueuedJob, now: float) -> Reason | None:
    """The reason why ``job`` may not start at ``now`` (seconds since the epoch), or None."""
    if job.held:
        return Reason(
            code=ReasonCode.HELD,
            text=_held(job),
            unblock=("Release it.",),
        )
    if job.after_failed:
        ended = _jobs(job.after_failed)
        return Reason(
            code=ReasonCode.AFTER_JOB,
            text=f"It comes after {ended}, which did not succeed, so it never starts.",
            blocked_by=job.after_failed,
            unblock=("Stop it, and submit it again without that dependency.",),
        )
    if job.after:
        return Reason(
            code=ReasonCode.AFTER_JOB,
            text=f"It comes after {_jobs(job.after)}.",
            blocked_by=job.after,
        )
    if job.not_before is not None and job.not_before > now:
        return Reason(
            code=ReasonCode.NOT_BEFORE,
            text=f"It starts not before {_instant(job.not_before)}.",
        )
    if job.backoff_until is not None and job.backoff_until > now:
        return Reason(
            code=ReasonCode.BACKOFF_AFTER_FAILURE,
            text=f"Its last attempt failed; the next is due at {_instant(job.backoff_until)}.",
        )
    return None


def next_opening(job: QueuedJob, now: float) -> float | None:
    """When a gate that time alone opens will open, in seconds since the epoch."""
    moments = [
        moment
        for moment in (job.not_before, job.backoff_until)
        if moment is not None and moment > now
    ]
    return max(moments, default=None)


def seconds_closed(
    job: QueuedJob, now: float, waiting: Mapping[int, QueuedJob] = MappingProxyType({})
) -> float:
    """Seconds before which ``job`` cannot start, by its own gates and those of jobs before it.

    Args:
        job: which job.
        now: seconds since the epoch.
        waiting: the queue by job id, for jobs that ``job`` has to wait for (``after``).

    Returns:
        0 where no gate is closed that time alone opens.
    """
    latest, seen, left = now, {job.id}, [job]
    while left:
        one = left.pop()
        latest = max(latest, next_opening(one, now) or now)
        before = [waiting[pk] for pk in one.after if pk in waiting and pk not in seen]
        seen.update(each.id for each in before)
        left += before
    return latest - now


def _held(job: QueuedJob) -> str:
    if job.turn_of is None:
        return "It is held until somebody releases it."
    jobs = "job runs" if job.turn_of == 1 else "jobs run"
    return f"It waits for its turn in the sweep: {job.turn_of} {jobs} at a time."


def _jobs(ids: tuple[int, ...]) -> str:
    shown = ", ".join(str(job_id) for job_id in ids[:5])
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return f"job {shown}{more}" if len(ids) == 1 else f"jobs {shown}{more}"


def _instant(moment: float) -> str:
    return datetime.fromtimestamp(moment, tz=UTC).strftime("%d %b %Y %H:%M:%S UTC")
