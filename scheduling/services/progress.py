"""What running attempts have reported, summed up for the performance models of later rounds."""

from django.db.models import F

from scheduling.models import AttemptProgress


def add_attempt_progress(
    *,
    attempt_id: int,
    samples: float,
    leading: tuple[float, int, int, float | None] | None,
) -> None:
    """Add one rank's newest interval to its attempt.

    Args:
        attempt_id: which attempt.
        samples: samples that the rank has worked through.
        leading: of the first rank only: seconds, steps, number of the newest step, its loss.
    """
    changes: dict[str, object] = {"samples": F("samples") + samples}
    if leading is not None:
        seconds, steps, step, loss = leading
        changes |= {
            "seconds": F("seconds") + seconds,
            "steps": F("steps") + steps,
            "last_step": step,
            "loss": loss,
        }
    rows = AttemptProgress.objects.filter(pk=attempt_id)
    if not rows.update(**changes):
        AttemptProgress.objects.get_or_create(attempt_id=attempt_id)
        rows.update(**changes)
