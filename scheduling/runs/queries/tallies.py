"""Tallies of evictions and waits by virtual cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduling.core.waits import CLASSES, cumulated
from scheduling.runs.models import EvictionTally, WaitTally


def evictions_of(virtual_cluster_ids: Sequence[int]) -> Mapping[tuple[int, str], int]:
    """Return the number of evictions by virtual cluster and reason, in one query.

    Args:
        virtual_cluster_ids: virtual clusters that the reader may see.
    """
    rows = EvictionTally.objects.filter(virtual_cluster_id__in=virtual_cluster_ids)
    return {
        (vc_id, reason): number
        for vc_id, reason, number in rows.order_by("virtual_cluster_id", "reason").values_list(
            "virtual_cluster_id", "reason", "count"
        )
    }


@dataclass(slots=True)
class Waits:
    """Waits for the first start of all past jobs of one virtual cluster.

    Attributes:
        counts: number of waits by class.
        seconds: sum of the waits.
    """

    counts: list[int] = field(default_factory=lambda: [0] * CLASSES)
    seconds: float = 0.0

    @property
    def within(self) -> tuple[tuple[str, int], ...]:
        """Return upper bounds, each with the number of waits up to this bound."""
        return cumulated(self.counts)


def waits_of(virtual_cluster_ids: Sequence[int]) -> Mapping[int, Waits]:
    """Return the waits by virtual cluster, in one query.

    Args:
        virtual_cluster_ids: virtual clusters that the reader may see.
    """
    found = {vc_id: Waits() for vc_id in virtual_cluster_ids}
    rows = WaitTally.objects.filter(virtual_cluster_id__in=virtual_cluster_ids)
    for vc_id, within, count, seconds in rows.values_list(
        "virtual_cluster_id", "wait_class", "count", "seconds"
    ):
        found[vc_id].counts[within] += count
        found[vc_id].seconds += seconds
    return found
