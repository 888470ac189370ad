"""Nodes of the newest attempts of listed jobs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from django.db.models import F, Min

from scheduling.core.lifecycle import JobState
from scheduling.jobs.queries.jobs import JobRow
from scheduling.runs.models import Member


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
