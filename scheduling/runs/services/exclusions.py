"""Nodes that a job avoids after a node failure, leaving enough other nodes for it."""

from collections.abc import Iterable, Iterator
from typing import Final

from scheduling.clusters.models import Node, PinnedCell
from scheduling.core.lifecycle import FailureClass
from scheduling.core.watching.log_rules import LogAction
from scheduling.enums import NodeState
from scheduling.runs.models import Attempt, Lease
from scheduling.watching.models import LogRuleHit

EXCLUDES_NODE: Final = frozenset({FailureClass.NODE, FailureClass.IMAGE, FailureClass.PLATFORM})
USABLE: Final = (NodeState.READY, NodeState.SUSPECT)


def excluded_after(attempt: Attempt, failure: FailureClass) -> list[str]:
    """The names of the nodes that the job's next attempt is to avoid.

    Those at fault join those that were avoided before. Where the other usable nodes of the same
    chains are too few for the gang, the older ones are dropped, and then these as well: otherwise
    the job would wait forever. Its retries bound the number of attempts.

    Args:
        attempt: has just failed; its leases name its nodes.
        failure: the class of its failure.
    """
    before = set(attempt.job.excluded_nodes)
    named = set(
        LogRuleHit.objects.filter(attempt=attempt, action=LogAction.EXCLUDE_NODE).values_list(
            "node_name", flat=True
        )
    )
    if failure not in EXCLUDES_NODE and not named:
        return sorted(before)
    used = set(attempt.members.values_list("node__name", flat=True))
    at_fault = named
    if failure in EXCLUDES_NODE:
        failed = attempt.members.filter(failure_class=failure)
        at_fault = named | set(failed.values_list("node__name", flat=True))
    usable = set() if _is_tied(attempt) else set(_usable(attempt))
    for avoided in (before | at_fault, at_fault):
        if len(usable - avoided) >= len(used):
            return sorted(avoided)
    return []


def with_excluded(attempt: Attempt, before: set[str]) -> list[str]:
    """The nodes to avoid when a line of the attempt's log has named more of them afterwards."""
    return excluded_after(attempt, FailureClass(attempt.failure_class or FailureClass.USER))


def _is_tied(attempt: Attempt) -> bool:
    """Whether it held devices of a pinned cell as its own, and can run only there."""
    pins = PinnedCell.objects.filter(virtual_cluster=attempt.job.virtual_cluster_id)
    cells = [f"{address}/" for address in pins.values_list("address", flat=True)]
    if not cells:
        return False
    leases = Lease.objects.filter(attempt=attempt).exclude(virtual_cell="")
    held = leases.values_list("device__address", flat=True)
    return any(f"{address}/".startswith(cell) for address in held for cell in cells)


def _usable(attempt: Attempt) -> Iterable[str]:
    """Names of the nodes of the attempt's chains that could take work now."""
    leases = Lease.objects.filter(attempt=attempt)
    chains = list(leases.values_list("device__chain", flat=True).distinct())
    nodes: Iterator[str] = (
        Node.objects.filter(
            state__in=USABLE,
            removed_at=None,
            devices__chain__in=chains,
            devices__retired_at=None,
        )
        .values_list("name", flat=True)
        .distinct()
        .iterator()
    )
    return nodes
