"""Nodes that a job avoids after a node failure, and marks of devices on which many jobs failed."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from scheduling.clusters.models import Device, Node, PinnedCell
from scheduling.core.lifecycle import FailureClass
from scheduling.core.watching.log_rules import LogAction
from scheduling.enums import NodeState
from scheduling.runs.models import Attempt, Lease
from scheduling.runs.queries.device_failures import suspect_devices
from scheduling.watching.models import LogRuleHit

EXCLUDES_NODE: Final = frozenset({FailureClass.NODE, FailureClass.IMAGE, FailureClass.PLATFORM})
USABLE: Final = (NodeState.READY, NodeState.SUSPECT)


def excluded_after(attempt: Attempt, failure: FailureClass) -> list[str]:
    """Return the names of the nodes that the job's next attempt avoids.

    The faulty nodes are added to the nodes avoided before. If too few other nodes of the same
    chains remain for the gang, the older ones are dropped, and then the new ones: otherwise the
    job would wait forever. The job's retries limit the number of attempts.

    Args:
        attempt: the failed attempt; its leases refer to its nodes.
        failure: class of its failure.
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


def mark_suspect_devices(*, now: datetime) -> int:
    """Mark the devices on which unusually many jobs of several tenants failed.

    Other marks are cleared. A mark that remains keeps its time. Returns the number of devices.
    """
    found = suspect_devices(now=now)
    Device.objects.exclude(suspect_since=None).exclude(pk__in=found).update(suspect_since=None)
    Device.objects.filter(pk__in=found, suspect_since=None).update(suspect_since=now)
    return len(found)


def with_excluded(attempt: Attempt, before: set[str]) -> list[str]:
    """Return the nodes to avoid after a log rule has named further nodes of an ended attempt."""
    return excluded_after(attempt, FailureClass(attempt.failure_class or FailureClass.USER))


def _is_tied(attempt: Attempt) -> bool:
    """Return whether the attempt held devices of its pinned cell, and can run only there."""
    pins = PinnedCell.objects.filter(virtual_cluster=attempt.job.virtual_cluster_id)
    cells = [f"{address}/" for address in pins.values_list("address", flat=True)]
    if not cells:
        return False
    leases = Lease.objects.filter(attempt=attempt).exclude(virtual_cell="")
    held = leases.values_list("device__address", flat=True)
    return any(f"{address}/".startswith(cell) for address in held for cell in cells)


def _usable(attempt: Attempt) -> Iterable[str]:
    """Return names of nodes of the attempt's chains that accept work now.

    A job without devices may use nodes of every chain.
    """
    if not attempt.devices:
        usable = Node.objects.filter(state__in=USABLE, removed_at=None)
        return usable.values_list("name", flat=True).iterator()
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
