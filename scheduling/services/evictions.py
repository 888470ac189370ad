"""Counting the jobs that lost their devices without having ended by themselves."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from django.db.models import F

from scheduling.core.lifecycle import FailureClass
from scheduling.models import EvictionTally

# What a job's own command or limits do to it is its end and no eviction.
EVICTING: Final = frozenset(
    {
        FailureClass.NODE,
        FailureClass.IMAGE,
        FailureClass.PREEMPTED,
        FailureClass.TIMEOUT,
        FailureClass.PLATFORM,
    }
)


def count_evictions(reasons: Iterable[tuple[int, FailureClass]]) -> None:
    """Add to the tallies, inside the transaction that evicts.

    Args:
        reasons: virtual cluster and reason of each eviction; others than ``EVICTING`` are left
            out.
    """
    # In one order everywhere, so that two writers cannot wait for each other.
    found = Counter((vc, reason.value) for vc, reason in reasons if reason in EVICTING)
    for (vc_id, reason), number in sorted(found.items()):
        row, _ = EvictionTally.objects.get_or_create(virtual_cluster_id=vc_id, reason=reason)
        EvictionTally.objects.filter(pk=row.pk).update(count=F("count") + number)
