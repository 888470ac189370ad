"""Instances of a job that is not a gang; each instance is a separate job."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import F, Min

from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import JobRow
from scheduling.runs.models import Member
from tenants.viewers import Viewer

MOST_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """One instance of a job that is not a gang.

    Attributes:
        node: current node; empty while the job waits and after its end.
    """

    id: int
    role: str
    rank: int
    state: str
    node: str = ""
    node_id: int | None = None


def parts_shown(viewer: Viewer, parts: Sequence[int]) -> tuple[PartView, ...]:
    """Return the first instances with their states and nodes, in two queries; empty for a gang."""
    chosen = list(parts[:MOST_SHOWN])
    if not chosen:
        return ()
    places = {
        job: (node, number)
        for job, node, number in Member.objects.filter(
            attempt__job_id__in=chosen, attempt__ended_at=None
        ).values_list("attempt__job_id", "node__name", "node_id")
    }
    jobs = Job.objects.visible_to(viewer).filter(pk__in=chosen).order_by("id")
    return tuple(_part(job, *places.get(job.pk, ("", None))) for job in jobs)


def _part(job: Job, node: str, node_id: int | None) -> PartView:
    return PartView(
        id=job.pk,
        role=next(iter(job.spec["roles"])),
        rank=int(job.spec["part"]["rank"]),
        state=job.state,
        node=node,
        node_id=node_id,
    )


def parts_of_job(viewer: Viewer, job: Job) -> tuple[int, ...]:
    """Return the IDs of the instances submitted with a job, in order; empty for a gang."""
    group = _group(job)
    if not group:
        return ()
    # A copy has the group of its original, but another submit time.
    together = Job.objects.visible_to(viewer).filter(
        owner_id=job.owner_id, submitted_at=job.submitted_at, spec__part__group=group
    )
    return tuple(together.order_by("id").values_list("id", flat=True))


def parts_among(jobs: Sequence[Job]) -> dict[int, tuple[int, ...]]:
    """Return the instances of jobs that were submitted together, by job ID."""
    groups: dict[str, list[int]] = defaultdict(list)
    for job in jobs:
        groups[_group(job)].append(job.pk)
    return {job.pk: tuple(groups[_group(job)]) if _group(job) else () for job in jobs}


def _group(job: Job) -> str:
    return str(job.spec.get("part", {}).get("group", ""))


def nodes_of_jobs(rows: Iterable[JobRow]) -> Mapping[int, tuple[str, ...]]:
    """Return the node names of each job's newest attempt, in the order of ranks.

    Waiting jobs are omitted, since they have no nodes any more.
    """
    placed = [row.id for row in rows if row.attempts and row.state != JobState.QUEUED]
    if not placed:
        return {}
    found: dict[int, list[str]] = defaultdict(list)
    newest = Member.objects.filter(
        attempt__job_id__in=placed, attempt__number=F("attempt__job__attempts_made")
    )
    # Grouped by node, since a gang can have many members on one node.
    for job_id, node, _ in (
        newest.values_list("attempt__job_id", "node__name")
        .annotate(first=Min("node_rank"))
        .order_by("attempt__job_id", "first")
    ):
        found[job_id].append(node)
    return {job_id: tuple(names) for job_id, names in found.items()}
