"""How many jobs stand before a waiting one, as the newest round has tried them."""

from collections.abc import Collection

from scheduling.rounds.models import QueueOrder


def jobs_ahead(virtual_clusters: Collection[int]) -> dict[int, int]:
    """How many jobs each waiting job's policy tries before it, in its virtual cluster and class.

    One query, and none where no virtual cluster is named. Jobs that may not start yet, or that
    the policy does not try, are not in it.
    """
    if not virtual_clusters:
        return {}
    found: dict[int, int] = {}
    lines = QueueOrder.objects.filter(pk__in=virtual_clusters)
    for line in lines.values_list("guaranteed", "opportunistic"):
        for jobs in line:
            found.update(zip(jobs, range(len(jobs)), strict=True))
    return found
