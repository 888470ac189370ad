"""What a publisher tells everybody: facts without names, or for an audience checked elsewhere."""

from dataclasses import dataclass
from typing import Any

from scheduling.models import Job, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueue:
    """The queue in which a job stands."""

    virtual_cluster_id: int
    virtual_cluster: str


def queue_of_job(job_id: int) -> JobQueue | None:
    """The virtual cluster of a job, for topics that only its tenant may hear."""
    found = (
        Job.objects.unscoped()
        .filter(pk=job_id)
        .values_list("virtual_cluster_id", "virtual_cluster__name")
        .first()
    )
    return JobQueue(virtual_cluster_id=found[0], virtual_cluster=found[1]) if found else None


def round_beat(number: int) -> dict[str, Any] | None:
    """What the round ticker shows of a round; it names nobody."""
    found = (
        Round.objects.filter(number=number)
        .values("number", "duration_ms", "committed_at", "policies", "queued", "running")
        .first()
    )
    return {**found, "committed_at": found["committed_at"].isoformat()} if found else None
