"""Random failures and repairs of nodes."""

import heapq
from collections.abc import Iterator

import numpy as np

from scheduling.core.simulation.events import HealthChange
from scheduling.core.simulation.setups import Conditions
from scheduling.core.simulation.shares import node_name
from scheduling.core.workloads.clusters import SimCluster


def node_faults(
    cluster: SimCluster, conditions: Conditions, *, seed: int, start: float
) -> Iterator[HealthChange]:
    """Yield the failures and repairs of all nodes by time, without end; none without an MTBF.

    Each node has a separate random stream, so that equal nodes fail at equal times under every
    policy.
    """
    if conditions.node_mtbf is None:
        return
    means = {False: conditions.node_mtbf, True: conditions.node_repair}
    nodes: list[tuple[str, np.random.Generator]] = []
    changes: list[tuple[float, int, bool]] = []
    for place, (kind, group) in enumerate(sorted(cluster.groups.items())):
        for node in range(group.nodes):
            stream = np.random.default_rng([seed, place, node])
            at = start + _seconds(stream, conditions.node_mtbf)
            changes.append((at, len(nodes), False))
            nodes.append((node_name(kind, node), stream))
    heapq.heapify(changes)
    while True:
        at, index, is_up = changes[0]
        name, stream = nodes[index]
        after = at + _seconds(stream, means[not is_up])
        heapq.heapreplace(changes, (after, index, not is_up))
        yield HealthChange(at=at, node=name, healthy=is_up)


def _seconds(stream: np.random.Generator, mean: float) -> float:
    return max(1.0, float(stream.exponential(mean)))
