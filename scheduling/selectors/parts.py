"""Which jobs are the instances of one job that is no gang."""

from collections import defaultdict
from collections.abc import Sequence

from scheduling.models import Job
from tenants.viewers import Viewer


def parts_of_job(viewer: Viewer, job: Job) -> tuple[int, ...]:
    """The jobs that were submitted together as instances of one, in order; empty for a gang."""
    group = _group(job)
    if not group:
        return ()
    # A copy has the group of its original, and another instant.
    together = Job.objects.visible_to(viewer).filter(
        owner_id=job.owner_id, submitted_at=job.submitted_at, spec__part__group=group
    )
    return tuple(together.order_by("id").values_list("id", flat=True))


def parts_among(jobs: Sequence[Job]) -> dict[int, tuple[int, ...]]:
    """The same of jobs that have just come in together, by job."""
    groups: dict[str, list[int]] = defaultdict(list)
    for job in jobs:
        groups[_group(job)].append(job.pk)
    return {job.pk: tuple(groups[_group(job)]) if _group(job) else () for job in jobs}


def _group(job: Job) -> str:
    return str(job.spec.get("part", {}).get("group", ""))
