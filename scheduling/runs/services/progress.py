"""What running attempts have reported, summed up for the performance models of later rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import F

from scheduling.core.performance.losses import with_loss
from scheduling.jobs.models import Job
from scheduling.runs.models import AttemptProgress, StepTally

MOST_KINDS: Final = 64
"""Of steps in one attempt; a job that tells another batch each time must not fill the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """The newest interval of an attempt's first rank.

    Attributes:
        seconds: how long it was.
        steps: that were made in it.
        step: number of the newest.
        loss: of the newest.
        batch: samples of a step, of all ranks; None where it is not told.
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
        attempt_id: which attempt.
        samples: samples that the rank has worked through.
        leading: what the first rank has told besides.
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
    """The batch for which a job's learning rate was chosen; None where batches do not change."""
    terms = Job.objects.unscoped().filter(pk=job_id).values_list("terms", flat=True).first()
    batches = (terms or {}).get("batch")
    return int(batches[0]) if batches else None
