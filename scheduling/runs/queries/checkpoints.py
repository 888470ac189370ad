"""Checkpoints that a job's training has reported: receipts of its bits."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from scheduling.core.determinism import SETTINGS, Comparison, Receipt, changed_steps, compare
from scheduling.jobs.models import JobEvent
from scheduling.jobs.queries.events import require_visible_job
from tenants.viewers import Viewer

MOST_CHECKPOINTS: Final = 2_000
CHECKPOINT: Final = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """One checkpoint.

    Attributes:
        receipt: its step, hash and settings.
        size: bytes; None if not reported.
        seconds: that saving took, likewise.
    """

    at: datetime
    receipt: Receipt
    size: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Comparison of two trainings.

    Attributes:
        left, right: job and attempt (None: all of them) of each.
        changed_left, changed_right: steps that a side has saved with several hashes.
    """

    left: tuple[int, int | None]
    right: tuple[int, int | None]
    comparison: Comparison
    changed_left: tuple[int, ...]
    changed_right: tuple[int, ...]


def checkpoints_of_job(
    viewer: Viewer, job_id: int, *, attempt: int | None = None
) -> tuple[CheckpointView, ...]:
    """The newest checkpoints of one job, the oldest first.

    Raises:
        NotFoundError: unknown job, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    events = JobEvent.objects.filter(job_id=job_id, kind=CHECKPOINT)
    if attempt is not None:
        events = events.filter(attempt=attempt)
    newest = events.order_by("-id").values_list("at", "attempt", "detail")[:MOST_CHECKPOINTS]
    views = (_view(at, number, detail) for at, number, detail in reversed(newest))
    return tuple(view for view in views if view is not None)


def compare_jobs(
    viewer: Viewer,
    *,
    left: int,
    left_attempt: int | None = None,
    right: int,
    right_attempt: int | None = None,
) -> Compared:
    """The first difference between the checkpoints of two jobs, or of two attempts.

    Raises:
        NotFoundError: unknown job, or the viewer may not see it.
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


def _view(at: datetime, attempt: int | None, detail: dict[str, Any]) -> CheckpointView | None:
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
