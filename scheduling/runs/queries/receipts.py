"""Checkpoints and preemption receipts of jobs, without jobs that the viewer may not see."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from scheduling.core.determinism import SETTINGS, Comparison, Receipt, changed_steps, compare
from scheduling.core.messages import sentence
from scheduling.enums import PreemptionCause
from scheduling.jobs.models import CHECKPOINT, JobEvent
from scheduling.jobs.queries.events import require_visible_job, visible_jobs_among
from scheduling.runs.models import Preemption
from tenants.viewers import ANOTHER_TENANT, Viewer

MOST_CHECKPOINTS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """One checkpoint.

    Attributes:
        receipt: step, hash and settings.
        size: size in bytes; None if not reported.
        seconds: duration of the save; None if not reported.
    """

    at: datetime
    receipt: Receipt
    size: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison of two trainings.

    Attributes:
        left: job and attempt of the first training; attempt None means all attempts.
        right: job and attempt of the second training.
        changed_left: steps that the first training has saved with several hashes.
        changed_right: steps that the second training has saved with several hashes.
    """

    left: tuple[int, int | None]
    right: tuple[int, int | None]
    comparison: Comparison
    changed_left: tuple[int, ...]
    changed_right: tuple[int, ...]


def checkpoints_of_job(
    viewer: Viewer, job_id: int, *, attempt: int | None = None
) -> tuple[CheckpointView, ...]:
    """Return the newest checkpoints of one job, oldest first.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    events = JobEvent.objects.filter(job_id=job_id, kind=CHECKPOINT)
    if attempt is not None:
        events = events.filter(attempt=attempt)
    newest = events.order_by("-id").values_list("at", "attempt", "detail")[:MOST_CHECKPOINTS]
    views = (_checkpoint(at, number, detail) for at, number, detail in reversed(newest))
    return tuple(view for view in views if view is not None)


def compare_jobs(
    viewer: Viewer,
    *,
    left: int,
    left_attempt: int | None = None,
    right: int,
    right_attempt: int | None = None,
) -> Compared:
    """Return a comparison of the checkpoints of two jobs or attempts.

    Raises:
        NotFoundError: a job is unknown, or the viewer may not see it.
    """
    mine = [one.receipt for one in checkpoints_of_job(viewer, left, attempt=left_attempt)]
    theirs = [one.receipt for one in checkpoints_of_job(viewer, right, attempt=right_attempt)]
    return Compared(
        left=(left, left_attempt),
        right=(right, right_attempt),
        comparison=compare(mine, theirs),
        changed_left=changed_steps(mine),
        changed_right=changed_steps(theirs),
    )


def _checkpoint(
    at: datetime, attempt: int | None, detail: dict[str, Any]
) -> CheckpointView | None:
    step, sha256 = detail.get("step"), detail.get("sha256")
    if not isinstance(step, int | float) or not isinstance(sha256, str):
        return None
    size, seconds = detail.get("bytes"), detail.get("seconds")
    return CheckpointView(
        at=at,
        receipt=Receipt(
            attempt=attempt or 0,
            step=int(step),
            sha256=sha256,
            settings={name: detail[name] for name in SETTINGS if name in detail},
        ),
        size=int(size) if isinstance(size, int | float) else None,
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptView:
    """One preemption.

    Attributes:
        attempt: number of the preempted attempt.
        cause: a stable code.
        cause_text: the code as a text.
        by: the requester: ``a round``, or the action of a person.
        for_job: job that gets the devices; None if there is none, or if the viewer may not see it.
        for_text: the job as a text; empty if there is none.
        acknowledged_at: time of the job's acknowledgement; None without one.
        released_at: time at which its devices became free; None until then.
        forced: whether the job was killed at the end of its grace period.
        lost_steps: None if the job reports no steps, or has not left yet.
        lost_seconds: duration of the unsaved work; None if the job has not left yet.
    """

    attempt: int
    cause: str
    cause_text: str
    by: str
    rule: str
    for_job: int | None
    for_text: str
    grace_seconds: int
    asked_at: datetime
    acknowledged_at: datetime | None
    checkpoint_step: int | None
    checkpoint_sha256: str
    checkpoint_at: datetime | None
    released_at: datetime | None
    forced: bool
    lost_steps: int | None
    lost_seconds: float | None


def receipts_of_job(viewer: Viewer, job_id: int) -> tuple[ReceiptView, ...]:
    """Return the preemptions of one job, oldest first.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    rows = list(
        Preemption.objects.filter(job_id=job_id)
        .select_related("attempt")
        .order_by("attempt__number")
    )
    known = visible_jobs_among(viewer, (row.for_job_id for row in rows))
    return tuple(_view(row, known) for row in rows)


def _view(row: Preemption, known: frozenset[int]) -> ReceiptView:
    is_known = row.for_job_id in known
    other = sentence("job-of-tenant", tenant=ANOTHER_TENANT) if row.for_job_id else ""
    return ReceiptView(
        attempt=row.attempt.number,
        cause=row.cause,
        cause_text=str(PreemptionCause(row.cause).label),
        by=row.by or sentence("a-round"),
        rule=row.rule,
        for_job=row.for_job_id if is_known else None,
        for_text=sentence("job-of-id", id=row.for_job_id or 0) if is_known else other,
        grace_seconds=row.grace_seconds,
        asked_at=row.asked_at,
        acknowledged_at=row.acknowledged_at,
        checkpoint_step=row.checkpoint_step,
        checkpoint_sha256=row.checkpoint_sha256,
        checkpoint_at=row.checkpoint_at,
        released_at=row.released_at,
        forced=row.forced,
        lost_steps=row.lost_steps,
        lost_seconds=row.lost_seconds,
    )
