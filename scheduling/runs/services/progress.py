"""Progress and events that running attempts report, summed up for performance models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import F

from scheduling.core.performance.losses import with_loss
from scheduling.jobs.models import Job, JobEvent
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.runs.models import AttemptProgress, StepTally
from scheduling.runs.services.receipts import CHECKPOINT

MOST_KINDS: Final = 64
"""Maximum number of step kinds in one attempt: bounds the rows of a job that varies its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """The newest interval of an attempt's first rank.

    Attributes:
        seconds: its duration.
        steps: steps in it.
        step: number of the newest.
        loss: of the newest.
        batch: samples of a step, of all ranks; None if not reported.
        accumulation: micro-batches of each process in it.
        noise: squared norm and variance of the gradient at the initial batch.
        kinds: batch, accumulation, steps and their seconds, for each batch.
    """

    seconds: float
    steps: int
    step: int
    loss: float | None
    batch: int | None = None
    accumulation: int = 1
    noise: tuple[float, float] | None = None
    kinds: Sequence[tuple[int, int, int, float]] = ()


def add_attempt_progress(*, attempt_id: int, samples: float, leading: Leading | None) -> None:
    """Add one rank's newest interval to its attempt.

    Args:
        attempt_id: of the attempt.
        samples: samples that the rank has worked through.
        leading: the first rank's further report.
    """
    changes: dict[str, Any] = {"samples": F("samples") + samples}
    if leading is not None:
        changes |= {
            "seconds": F("seconds") + leading.seconds,
            "steps": F("steps") + leading.steps,
            "last_step": leading.step,
            "loss": leading.loss,
        }
        if leading.batch is not None:
            changes |= {"batch": leading.batch, "accumulation": leading.accumulation}
        if leading.noise is not None:
            changes |= {"noise_square": leading.noise[0], "noise_variance": leading.noise[1]}
    rows = AttemptProgress.objects.filter(pk=attempt_id)
    if leading is not None and leading.loss is not None:
        known = rows.values_list("losses", flat=True).first()
        losses = with_loss(known or (), leading.step, leading.loss)
        changes |= {} if losses is None else {"losses": losses}
    if not rows.update(**changes):
        AttemptProgress.objects.get_or_create(attempt_id=attempt_id)
        rows.update(**changes)
    for kind in leading.kinds if leading is not None else ():
        _add_kind(attempt_id, *kind)


def _add_kind(attempt_id: int, batch: int, accumulation: int, steps: int, seconds: float) -> None:
    there = StepTally.objects.filter(attempt_id=attempt_id)
    kind = there.filter(batch=batch, accumulation=accumulation)
    more = {"steps": F("steps") + steps, "seconds": F("seconds") + seconds}
    if kind.update(**more) or there.count() >= MOST_KINDS:
        return
    StepTally.objects.get_or_create(attempt_id=attempt_id, batch=batch, accumulation=accumulation)
    kind.update(**more)


def initial_batch_of(job_id: int) -> int | None:
    """The batch for which a job's learning rate was chosen; None for a fixed batch."""
    terms = Job.objects.unscoped().filter(pk=job_id).values_list("terms", flat=True).first()
    batches = (terms or {}).get("batch")
    return int(batches[0]) if batches else None


MOST_OF_AN_ATTEMPT: Final = 500
"""Maximum of one kind; it bounds the rows of a job that saves every second.

The newest is always among them: it marks the resume point and the lost work."""


@transaction.atomic
def record_training_events(
    *,
    job_id: int,
    attempt: int,
    notes: Sequence[tuple[str, str, Mapping[str, Any]]],
    now: datetime,
) -> None:
    """Add events to the job; existing ones are not added again.

    Args:
        job_id: whose.
        attempt: its number.
        notes: kind, a line for people, facts.
        now: when they were heard.
    """
    rows = JobEvent.objects.filter(job_id=job_id, attempt=attempt)
    has_saved = False
    for kind in dict.fromkeys(kind for kind, _, _ in notes):
        there = list(rows.filter(kind=kind).values_list("text", flat=True))
        for text, facts in ((text, facts) for found, text, facts in notes if found == kind):
            if text[:500] in there:
                continue
            if len(there) >= MOST_OF_AN_ATTEMPT:
                rows.filter(kind=kind).latest("id").delete()
            there.append(text[:500])
            note = Note(attempt=attempt, text=text, detail=dict(facts))
            record_job_event(job_id=job_id, kind=kind, now=now, note=note)
            has_saved |= kind == CHECKPOINT
    if has_saved:  # less of its work is at stake: rounds choose their victims by that
        running = Job.objects.unscoped().filter(pk=job_id, attempts_made=attempt)
        running.update(saved_at=now)
