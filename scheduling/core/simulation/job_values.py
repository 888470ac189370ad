"""Jobs of a simulation as values: those that hold devices, wait, or are next in the queue."""

from collections import defaultdict
from collections.abc import Mapping

from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.values import HeldLeaf, HoldingJob, QueuedJob


def holding_job(
    job: QueuedJob, members: tuple[tuple[HeldLeaf, ...], ...], now: float
) -> HoldingJob:
    """Return a waiting job as it holds devices from now on."""
    return HoldingJob(
        id=job.id,
        vc=job.vc,
        tenant=job.tenant,
        owner=job.owner,
        priority=job.priority,
        job_class=job.job_class,
        demand=job.demand,
        submitted=job.submitted,
        since=now,
        leaving=False,
        members=members,
        user_cap=job.user_cap,
    )


def queued_job(held: HoldingJob, asked: Demand) -> QueuedJob:
    """Return a job with devices as it waits again, with the gang that it requests."""
    return QueuedJob(
        id=held.id,
        vc=held.vc,
        tenant=held.tenant,
        owner=held.owner,
        owner_name="",
        priority=held.priority,
        job_class=held.job_class,
        demand=asked,
        submitted=held.submitted,
        user_cap=held.user_cap,
    )


def first_in_line(waiting: Mapping[int, QueuedJob], most: int) -> tuple[QueuedJob, ...]:
    """Return at most ``most`` waiting jobs of each virtual cluster and class."""
    if len(waiting) <= most:
        return tuple(waiting.values())
    lines: dict[tuple[int, JobClass], list[QueuedJob]] = defaultdict(list)
    for job in waiting.values():
        lines[job.vc, job.job_class].append(job)
    return tuple(
        job
        for line in lines.values()
        for job in sorted(line, key=lambda job: (-job.priority, job.submitted, job.id))[:most]
    )
