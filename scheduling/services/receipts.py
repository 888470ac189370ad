"""Receipts of preemptions: opened with the notice, completed by what the job told until then."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from scheduling.core.lifecycle import PreemptionRule
from scheduling.models import Attempt, AttemptProgress, Job, JobEvent, Member, Preemption

CHECKPOINT: Final = "checkpoint"
RESUMED: Final = "resumed"
ACKNOWLEDGED: Final = "acknowledged"
_HEARD: Final = (CHECKPOINT, RESUMED, ACKNOWLEDGED)


def open_receipt(
    *, job_id: int, for_job: int, cause: PreemptionRule, by: str, rule: str, now: datetime
) -> None:
    """Note that the open attempt of a job has been asked to leave; once for each attempt."""
    attempt = Attempt.objects.select_related("job").get(job_id=job_id, ended_at=None)
    wanted = Job.objects.unscoped().filter(pk=for_job).values_list("id", flat=True).first()
    Preemption.objects.get_or_create(
        attempt=attempt,
        defaults={
            "job_id": job_id,
            "for_job_id": wanted,
            "cause": cause.value,
            "by": by[:200],
            "rule": rule[:300],
            "grace_seconds": int(attempt.job.spec.get("grace_seconds", 0)),
            "asked_at": now,
        },
    )


def settle_receipts(*, attempt_ids: Iterable[int]) -> None:
    """Complete the receipts of attempts that have ended; again when more has been heard."""
    receipts = Preemption.objects.filter(
        attempt__in=list(attempt_ids), attempt__ended_at__isnull=False
    ).select_related("attempt")
    for receipt in receipts:
        found = _end_of(receipt)
        Preemption.objects.filter(pk=receipt.pk).update(**found)


@dataclass(slots=True)
class _Told:
    """What the training of an attempt told of its checkpoints."""

    begun_at_step: int | None = None
    step: int | None = None
    sha256: str = ""
    at: datetime | None = None
    acknowledged_at: datetime | None = None


def _end_of(receipt: Preemption) -> dict[str, Any]:
    attempt = receipt.attempt
    told = _told(attempt)
    steps, seconds = _lost(attempt, told)
    killed = Member.objects.filter(attempt=attempt, exit_signal=signal.SIGKILL).exists()
    return {
        "acknowledged_at": told.acknowledged_at,
        "checkpoint_step": told.step,
        "checkpoint_sha256": told.sha256,
        "checkpoint_at": told.at,
        "released_at": attempt.ended_at,
        "forced": killed,
        "lost_steps": steps,
        "lost_seconds": seconds,
    }


def _told(attempt: Attempt) -> _Told:
    told = _Told()
    for kind, at, detail in (
        JobEvent.objects.filter(job_id=attempt.job_id, attempt=attempt.number, kind__in=_HEARD)
        .order_by("id")
        .values_list("kind", "at", "detail")
    ):
        if kind == ACKNOWLEDGED:
            told.acknowledged_at = told.acknowledged_at or at
        elif kind == RESUMED:
            told.begun_at_step = _step(detail)
        else:
            told.step, told.at = _step(detail), at
            told.sha256 = str(detail.get("sha256", ""))[:64]
    return told


def _lost(attempt: Attempt, told: _Told) -> tuple[int | None, float]:
    """Steps (None: nobody knows) and seconds of work that were not saved when it left."""
    if attempt.running_at is None or attempt.ended_at is None:
        return 0, 0.0
    progress = AttemptProgress.objects.filter(pk=attempt.pk).first()
    saved = told.step if told.at is not None else told.begun_at_step
    if progress is not None and progress.steps > 0:
        # A checkpoint counts the steps that are done, a report names the last of them from 0.
        done = progress.last_step + 1
        lost = max(0, done - saved) if saved is not None else progress.steps
        lost = min(lost, progress.steps)
        return lost, lost * progress.seconds / progress.steps
    since = told.at or attempt.running_at
    return None, max(0.0, (attempt.ended_at - since).total_seconds())


def _step(detail: Any) -> int | None:
    step = detail.get("step") if isinstance(detail, dict) else None
    return int(step) if isinstance(step, int | float) else None
