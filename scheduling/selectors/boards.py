"""What live pages are told of the cluster and of virtual clusters: small flat values by key.

The public board names nobody. A virtual cluster's board is for whoever may see it, which is asked
where somebody begins to listen.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final

from django.db.models import Count, Sum

from scheduling.core.lifecycle import HOLDING, JobState
from scheduling.models import Job
from scheduling.selectors.cluster_facts import ClusterFacts, cluster_facts
from scheduling.selectors.shares import Missing

FREE: Final = "f"
USED: Final = "u"
BORROWED: Final = "b"
CLAIMED: Final = "c"
UNHEALTHY: Final = "x"

Board = Mapping[str, Any]


def read_boards(virtual_clusters: Collection[int]) -> tuple[Board, Mapping[int, Board]]:
    """The public board and those of some virtual clusters, all of one reading of the rows.

    Returns:
        The public board: numbers of devices (``devices``, ``healthy``, ``cordoned``, ``in_use``,
        ``borrowed``),
        ``free:<chain>`` as [idle, largest whole cell], and ``node:<id>`` as the node's state and a
        letter a device: f free, u used, b borrowed, c claimed, x unhealthy. And by the id of each
        virtual cluster its numbers of devices and jobs.
    """
    facts = cluster_facts()
    public: Board = facts.once("board", lambda: _public(facts))
    if not virtual_clusters:
        return public, {}
    counts = _live_counts(virtual_clusters)
    return public, {number: _of_vc(facts, number, counts[number]) for number in virtual_clusters}


def _public(facts: ClusterFacts) -> Board:
    letters = _letters(facts)
    board: dict[str, Any] = {
        "devices": len(facts.devices),
        "healthy": sum(device.healthy for device in facts.devices),
        "cordoned": sum(use.cordoned for use in facts.uses.values()),
        "in_use": facts.in_use,
        "borrowed": sum(facts.borrowed.values()),
    }
    for chain in facts.free:
        board[f"free:{chain.chain}"] = [chain.idle, chain.largest_cell]
    for node in facts.nodes:
        devices = facts.devices_by_node.get(node.id, ())
        told = "".join(
            letters.get(device.id, FREE if device.healthy else UNHEALTHY) for device in devices
        )
        board[f"node:{node.id}"] = f"{node.state} {told}"
    return board


def _letters(facts: ClusterFacts) -> Mapping[int, str]:
    """A letter for each device that is held or claimed; who holds it goes before who claims it."""
    found: dict[int, str] = {}
    for lease in facts.leases:
        if lease.reserved:
            found.setdefault(lease.device_id, CLAIMED)
        else:
            found[lease.device_id] = BORROWED if lease.opportunistic else USED
    return found


def _of_vc(facts: ClusterFacts, number: int, counts: Mapping[str, tuple[int, int]]) -> Board:
    none = Missing()
    queued_jobs, queued = counts.get(JobState.QUEUED, (0, 0))
    return {
        "guarantee": sum(use.guaranteed.get(number, 0) for use in facts.uses.values()),
        "used": sum(use.used.get(number, 0) for use in facts.uses.values()),
        "borrowed": facts.borrowed.get(number, 0),
        "lent": sum(chain.get(number, none).lent for chain in facts.missing.values()),
        "unhealthy": sum(chain.get(number, none).unhealthy for chain in facts.missing.values()),
        "cordoned": sum(chain.get(number, none).cordoned for chain in facts.missing.values()),
        "queued": queued,
        "queued_jobs": queued_jobs,
        "running_jobs": sum(counts.get(state, (0, 0))[0] for state in HOLDING),
    }


def _live_counts(
    virtual_clusters: Collection[int],
) -> Mapping[int, Mapping[str, tuple[int, int]]]:
    found: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    live: Any = Job.objects.unscoped().filter(state__in=[*HOLDING, JobState.QUEUED])
    for number, state, jobs, wanted in (
        live.filter(virtual_cluster_id__in=virtual_clusters)
        .order_by()
        .values_list("virtual_cluster_id", "state")
        .annotate(jobs=Count("id"), wanted=Sum("devices"))
    ):
        found[number][state] = (jobs, wanted)
    return found
