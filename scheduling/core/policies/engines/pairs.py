"""Pairs of jobs on one device, judged by their measured paces."""

from collections.abc import Iterable, Mapping
from typing import Final

from scheduling.core.policy_interface import JobPhase, PolicyJob

Pair = tuple[int, int]

WORTH: Final = 1.0
"""Sum of the paces of a pair, relative to the jobs alone, at or below which a device for each in
turn is as good."""


def measured_worth(pair: Iterable[int], jobs: Mapping[int, PolicyJob]) -> float | None:
    """Return the work of a running pair in devices; None before it was measured.

    Args:
        pair: IDs of its jobs.
        jobs: jobs of the view by ID.
    """
    paces = [_pace(jobs.get(job_id)) for job_id in pair]
    known = [pace for pace in paces if pace is not None]
    return sum(known) if len(known) == len(paces) else None


def _pace(job: PolicyJob | None) -> float | None:
    is_shared = (
        job is not None
        and job.phase is JobPhase.RUNNING
        and job.alloc is not None
        and job.alloc.share is not None
    )
    return job.pace if job is not None and is_shared else None
