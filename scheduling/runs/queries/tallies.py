"""How often jobs had to leave their devices."""

from collections.abc import Mapping, Sequence

from scheduling.runs.models import EvictionTally


def evictions_of(virtual_cluster_ids: Sequence[int]) -> Mapping[tuple[int, str], int]:
    """The tallies by virtual cluster and reason, in one query.

    Args:
        virtual_cluster_ids: those that the reader may see.
    """
    rows = EvictionTally.objects.filter(virtual_cluster_id__in=virtual_cluster_ids)
    return {
        (vc_id, reason): number
        for vc_id, reason, number in rows.order_by("virtual_cluster_id", "reason").values_list(
            "virtual_cluster_id", "reason", "count"
        )
    }
