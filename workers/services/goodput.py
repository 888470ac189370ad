"""Samples of goodput: what the ranks of an attempt have done in one interval, summed up."""

from datetime import datetime
from functools import partial

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest

from scheduling.services.progress import add_attempt_progress
from workers.models import GoodputSample, LogStream
from workers.services.dispatch import Rank
from workers.services.log_rows import open_log
from workers.services.reports import Progress
from workers.signals import goodput_sampled


@transaction.atomic
def add_progress(*, rank: Rank, progress: Progress, at: datetime) -> None:
    """Add one rank's progress to its attempt's sample; the first rank names step and loss.

    The offset up to which its reports are counted moves in the same transaction, so that after a
    crash nothing is counted twice and nothing is left out.
    """
    open_log(rank)
    moved = LogStream.objects.filter(
        member_id=rank.member_id, reports_end__lt=progress.reports_end
    ).update(reports_end=progress.reports_end)
    if not moved:
        return
    throughput = progress.samples / progress.seconds
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
    sample.update(
        seconds=Greatest(F("seconds"), progress.seconds),
        samples=F("samples") + progress.samples,
        throughput=F("throughput") + throughput,
        goodput=F("goodput") + F("efficiency") * throughput,
    )
    if rank.node_rank == 0:
        sample.update(
            step=progress.step,
            steps=F("steps") + progress.steps,
            step_seconds=progress.step_seconds,
            loss=progress.loss,
        )
    leads = rank.node_rank == 0
    add_attempt_progress(
        attempt_id=rank.attempt_id,
        samples=progress.samples,
        leading=(progress.seconds, progress.steps, progress.step, progress.loss)
        if leads
        else None,
    )
    transaction.on_commit(
        partial(
            goodput_sampled.send_robust,
            sender=None,
            job_id=rank.job_id,
            attempt_id=rank.attempt_id,
            at=at,
        )
    )
