"""Preemption receipts, created with the notice to leave and completed by later reports."""

import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Max, Min

from scheduling.core.lifecycle import PreemptionRule
from scheduling.jobs.models import CHECKPOINT, Job, JobEvent
from scheduling.runs.models import Attempt, AttemptProgress, Member, Preemption

RESUMED: Final = "resumed"
ACKNOWLEDGED: Final = "acknowledged"
_HEARD: Final = (CHECKPOINT, RESUMED, ACKNOWLEDGED)


def open_receipt(
    *, job_id: int, for_job: int, cause: PreemptionRule, by: str, rule: str, now: datetime
) -> None:
    """Create the receipt of a job's open attempt, once per attempt."""
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


def settle_receipts(*, attempt_ids: Iterable[int]) -> Mapping[int, str]:
    """Complete the receipts of ended attempts; call it again when later reports arrive.

    Returns:
        The ``PreemptionRule`` of each evicted attempt by attempt ID.
    """
    receipts = list(
        Preemption.objects.filter(
            attempt__in=list(attempt_ids), attempt__ended_at__isnull=False
        ).select_related("attempt")
    )
    if not receipts:
        return {}
    attempts = [receipt.attempt for receipt in receipts]
    told = _told(attempts)
    progress = AttemptProgress.objects.in_bulk([attempt.pk for attempt in attempts])
    killed = set(
        Member.objects.filter(attempt__in=attempts, exit_signal=signal.SIGKILL).values_list(
            "attempt_id", flat=True
        )
    )
    for receipt in receipts:
        attempt = receipt.attempt
        _complete(
            receipt, told.get((attempt.job_id, attempt.number), _Told()), progress.get(attempt.pk)
        )
        receipt.forced = attempt.pk in killed
    Preemption.objects.bulk_update(receipts, [*_COMPLETED, "forced"])
    return {receipt.attempt_id: receipt.cause for receipt in receipts}


@dataclass(slots=True)
class _Told:
    """Checkpoint reports of an attempt's training."""

    begun_at_step: int | None = None
    step: int | None = None
    sha256: str = ""
    at: datetime | None = None
    acknowledged_at: datetime | None = None


_COMPLETED: Final = (
    "acknowledged_at",
    "checkpoint_step",
    "checkpoint_sha256",
    "checkpoint_at",
    "released_at",
    "lost_steps",
    "lost_seconds",
)


def _complete(receipt: Preemption, told: _Told, progress: AttemptProgress | None) -> None:
    receipt.acknowledged_at = _until(told.acknowledged_at, receipt.attempt)
    receipt.checkpoint_step = told.step
    receipt.checkpoint_sha256 = told.sha256
    receipt.checkpoint_at = _until(told.at, receipt.attempt)
    ended_at = receipt.attempt.ended_at
    # The node may report an end that is older than the request to leave.
    receipt.released_at = ended_at and max(ended_at, receipt.asked_at)
    receipt.lost_steps, receipt.lost_seconds = _lost(receipt.attempt, told, progress)


def _until(at: datetime | None, attempt: Attempt) -> datetime | None:
    """Return a time limited to the end of the attempt, since last reports are dated after it."""
    return at if at is None or attempt.ended_at is None else min(at, attempt.ended_at)


def _told(attempts: Collection[Attempt]) -> Mapping[tuple[int, int], _Told]:
    """Return the reports of each attempt by job and number.

    A long training may report any number of checkpoints, so only the relevant event of each kind
    is read.
    """
    ends = (
        JobEvent.objects.filter(
            job__in={attempt.job_id for attempt in attempts},
            attempt__in={attempt.number for attempt in attempts},
            kind__in=_HEARD,
        )
        .order_by()
        .values("job_id", "attempt", "kind")
        .annotate(first=Min("id"), last=Max("id"))
    )
    ids = [end["first"] if end["kind"] == ACKNOWLEDGED else end["last"] for end in ends]
    found: dict[tuple[int, int], _Told] = defaultdict(_Told)
    for event in JobEvent.objects.in_bulk(ids).values():
        told = found[event.job_id, event.attempt or 0]
        if event.kind == ACKNOWLEDGED:
            told.acknowledged_at = event.at
        elif event.kind == RESUMED:
            told.begun_at_step = _step(event.detail)
        else:
            told.step, told.at = _step(event.detail), event.at
            told.sha256 = str(event.detail.get("sha256", ""))[:64]
    return found


def _lost(
    attempt: Attempt, told: _Told, progress: AttemptProgress | None
) -> tuple[int | None, float]:
    """Return the unsaved steps (None if unknown) and seconds at the end of an attempt."""
    if attempt.running_at is None or attempt.ended_at is None:
        return 0, 0.0
    saved = told.step if told.at is not None else told.begun_at_step
    if progress is not None and progress.steps > 0:
        # A checkpoint counts completed steps; a report has the number of the last step, from 0.
        done = progress.last_step + 1
        lost = max(0, done - saved) if saved is not None else progress.steps
        lost = min(lost, progress.steps)
        return lost, lost * progress.seconds / progress.steps
    since = told.at or attempt.running_at
    return None, max(0.0, (attempt.ended_at - since).total_seconds())


def _step(detail: Any) -> int | None:
    step = detail.get("step") if isinstance(detail, dict) else None
    return int(step) if isinstance(step, int | float) else None
