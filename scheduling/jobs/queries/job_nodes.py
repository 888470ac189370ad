"""Present or last nodes of the jobs of a list."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from django.db.models import F, Min

from scheduling.core.lifecycle import JobState
from scheduling.jobs.queries.jobs import JobRow
from scheduling.runs.models import Member


def nodes_of_jobs(rows: Iterable[JobRow]) -> Mapping[int, tuple[str, ...]]:
    """Names of the nodes of each job's newest attempt by job, in the order of ranks, in one query.

    Jobs that wait are left out: they have no nodes any more.
    """
    placed = [row.id for row in rows if row.attempts and row.state != JobState.QUEUED]
    if not placed:
        return {}
    found: dict[int, list[str]] = defaultdict(list)
    newest = Member.objects.filter(
        attempt__job_id__in=placed, attempt__number=F("attempt__job__attempts_made")
    )
    # Grouped by node: a gang has as many members as it has ranks.
    for job_id, node, _ in (
        newest.values_list("attempt__job_id", "node__name")
        .annotate(first=Min("node_rank"))
        .order_by("attempt__job_id", "first")
    ):
        found[job_id].append(node)
    return {job_id: tuple(names) for job_id, names in found.items()}
