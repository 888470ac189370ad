"""Goodput samples: progress of the ranks of an attempt in one interval, summed up."""

from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest

from scheduling.runs.services.progress import Leading, add_attempt_progress, initial_batch_of
from tessera.efficiency import efficiency
from workers.models import GoodputSample, LogStream
from workers.services.dispatch import MemberRef
from workers.services.logs import open_log
from workers.services.metrics import add_points
from workers.services.reports import RankProgress
from workers.signals import goodput_sampled

LEAST_EFFICIENCY: Final = 1e-6


@transaction.atomic
def add_progress(*, rank: MemberRef, progress: RankProgress, at: datetime) -> None:
    """Add one rank's progress to its attempt's sample; step and loss are the first rank's.

    The same transaction stores the offset of the counted reports. So a crash neither repeats nor
    loses reports.
    """
    open_log(rank)
    moved = LogStream.objects.filter(
        member_id=rank.member_id, reports_end__lt=progress.reports_end
    ).update(reports_end=progress.reports_end)
    if not moved:
        return
    add_points(rank=rank, batch=progress.points, at=at)
    if progress.has_steps:
        _add_to_sample(rank, progress, at)
        _add_to_attempt(rank, progress)
    transaction.on_commit(
        partial(
            goodput_sampled.send_robust,
            sender=None,
            job_id=rank.job_id,
            attempt_id=rank.attempt_id,
            at=at,
        )
    )


def _add_to_attempt(rank: MemberRef, progress: RankProgress) -> None:
    leading = Leading(
        seconds=progress.seconds,
        steps=progress.steps,
        step=progress.step,
        loss=progress.loss,
        batch=progress.batch,
        accumulation=progress.accumulation,
        noise=progress.noise,
        kinds=progress.kinds,
        parameters=progress.parameters,
    )
    add_attempt_progress(
        attempt_id=rank.attempt_id,
        samples=progress.samples,
        leading=leading if rank.node_rank == 0 else None,
    )


def _add_to_sample(rank: MemberRef, progress: RankProgress, at: datetime) -> None:
    GoodputSample.objects.get_or_create(
        attempt_id=rank.attempt_id,
        at=at,
        defaults={
            "job_id": rank.job_id,
            "seconds": 0.0,
            "step": progress.step,
            "steps": 0,
            "samples": 0.0,
            "throughput": 0.0,
            "goodput": 0.0,
            "devices": rank.gang_devices,
        },
    )
    sample = GoodputSample.objects.filter(attempt_id=rank.attempt_id, at=at)
    throughput = progress.samples / progress.seconds
    useful = _efficiency(rank, progress) if rank.node_rank == 0 else None
    changes: dict[str, Any] = {} if useful is None else {"efficiency": useful}
    share = F("efficiency") if useful is None else useful
    if rank.node_rank == 0:
        changes |= {
            "step": progress.step,
            "steps": F("steps") + progress.steps,
            "step_seconds": progress.step_seconds,
            "loss": progress.loss,
            "batch": progress.batch,
        }
    sample.update(
        seconds=Greatest(F("seconds"), progress.seconds),
        samples=F("samples") + progress.samples,
        throughput=F("throughput") + throughput,
        goodput=share * (F("throughput") + throughput),
        **changes,
    )


def _efficiency(rank: MemberRef, progress: RankProgress) -> float | None:
    """Return the useful part of each sample at the batch of the interval; None if unknown."""
    if progress.batch is None or progress.noise is None:
        return None
    initial = initial_batch_of(rank.job_id)
    if initial is None:
        return None
    square, variance = progress.noise
    found = efficiency(square, variance, min(1.0, initial / progress.batch))
    return min(1.0, max(LEAST_EFFICIENCY, float(found)))
