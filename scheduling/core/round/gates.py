"""Gates: conditions that exclude a queued job from a round, even with free devices."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from scheduling.core.messages import message
from scheduling.core.reasons import Reason
from scheduling.core.values import QueuedJob
from tessera.messages import Listing, Message, Moment
from tessera.reasons import ReasonCode

MOST_NAMED: Final = 5
"""Maximum number of jobs named in a message."""


def closed_gate(job: QueuedJob, now: float) -> Reason | None:
    """Return the reason why ``job`` may not start at ``now`` (epoch seconds), or None."""
    if job.held:
        return Reason(
            code=ReasonCode.HELD,
            message=message("held")
            if job.turn_of is None
            else message("turn-of-sweep", n=job.turn_of),
            unblock=(message("release"),),
        )
    if job.after_failed:
        return Reason(
            code=ReasonCode.AFTER_JOB,
            message=message("after-failed", jobs=jobs_named(job.after_failed)),
            blocked_by=job.after_failed,
            unblock=(message("submit-without-dependency"),),
        )
    if job.after:
        return Reason(
            code=ReasonCode.AFTER_JOB,
            message=message("after-jobs", jobs=jobs_named(job.after)),
            blocked_by=job.after,
        )
    if job.not_before is not None and job.not_before > now:
        return Reason(
            code=ReasonCode.NOT_BEFORE,
            message=message("not-before", not_before=Moment(job.not_before)),
        )
    if job.backoff_until is not None and job.backoff_until > now:
        return Reason(
            code=ReasonCode.BACKOFF_AFTER_FAILURE,
            message=message("backoff", backoff_until=Moment(job.backoff_until)),
        )
    return None


def next_opening(job: QueuedJob, now: float) -> float | None:
    """Time at which a gate opens by time alone, in seconds since the epoch."""
    moments = [
        moment
        for moment in (job.not_before, job.backoff_until)
        if moment is not None and moment > now
    ]
    return max(moments, default=None)


def seconds_closed(
    job: QueuedJob, now: float, waiting: Mapping[int, QueuedJob] = MappingProxyType({})
) -> float:
    """Return the seconds before which ``job`` cannot start, by its gates and dependencies.

    Args:
        job: the job.
        now: seconds since the epoch.
        waiting: the queue by job id, for jobs that ``job`` has to wait for (``after``).

    Returns:
        0 if no time gate is closed.
    """
    latest, seen, left = now, {job.id}, [job]
    while left:
        one = left.pop()
        latest = max(latest, next_opening(one, now) or now)
        before = [waiting[pk] for pk in one.after if pk in waiting and pk not in seen]
        seen.update(each.id for each in before)
        left += before
    return latest - now


def jobs_named(ids: Sequence[int]) -> Message:
    """Format the IDs of jobs, at most ``MOST_NAMED`` of them."""
    shown = Listing(tuple(ids[:MOST_NAMED]))
    if len(ids) > MOST_NAMED:
        return message("jobs-and-more", shown=shown, more=len(ids) - MOST_NAMED)
    return message("jobs", n=len(ids), shown=shown)
