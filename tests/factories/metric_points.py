"""Points of metrics of jobs without a node."""

from collections.abc import Sequence

from django.utils import timezone

from scheduling.jobs.models import Job
from workers.services.dispatch import MemberRef
from workers.services.metrics import add_points
from workers.services.points import PointBatch, Sample, SeriesKey


def member_of_job(job: Job, *, attempt: int = 1, rank: int = 0) -> MemberRef:
    """A rank of a job, for reports: nothing else of it exists."""
    return MemberRef(
        member_id=0,
        node_id=0,
        run_id="run",
        job_id=job.pk,
        attempt_id=0,
        attempt_number=attempt,
        role="worker",
        rank=rank,
        node_rank=rank,
        gang_devices=1,
    )


def add_values(
    rank: MemberRef, values: Sequence[float], *, name: str = "loss", first: int = 0
) -> None:
    """Report a value for each step from ``first`` on, one a second until now."""
    now = timezone.now()
    begun = now.timestamp() - len(values)
    samples = [
        Sample(first + place, begun + place, (first + place) / 100, value)
        for place, value in enumerate(values)
    ]
    add_points(rank=rank, batch=PointBatch(series={SeriesKey(0, name): samples}), at=now)
