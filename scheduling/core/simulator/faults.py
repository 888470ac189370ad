"""Node failures and repairs: their times, and the devices affected."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scheduling.core.policy_interface import Alloc
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.worlds import Conditions


@dataclass(frozen=True, slots=True, order=True)
class NodeChange:
    """A node that fails, or is back."""

    time: float
    device_type: str
    node: int
    is_up: bool


class NodeFaults:
    """The changes of all nodes by time; each node has a separate random stream.

    So equal nodes fail at equal times under every policy.
    """

    def __init__(
        self, cluster: SimCluster, conditions: Conditions, seed: int, start: float
    ) -> None:
        self._conditions = conditions
        self._streams: dict[tuple[str, int], np.random.Generator] = {}
        self._changes: list[NodeChange] = []
        if conditions.node_mtbf is None:
            return
        for place, (kind, group) in enumerate(sorted(cluster.groups.items())):
            for node in range(group.nodes):
                stream = np.random.default_rng([seed, place, node])
                self._streams[kind, node] = stream
                self._changes.append(
                    NodeChange(start + self._draw(stream, is_up=False), kind, node, is_up=False)
                )
        heapq.heapify(self._changes)

    @property
    def next_time(self) -> float | None:
        """Return the time of the next change of a node, or None without further faults."""
        return self._changes[0].time if self._changes else None

    def until(self, time: float) -> Iterator[NodeChange]:
        """Yield the changes up to ``time``, in order."""
        while self._changes and self._changes[0].time <= time:
            change = self._changes[0]
            stream = self._streams[change.device_type, change.node]
            after = change.time + self._draw(stream, is_up=not change.is_up)
            following = NodeChange(after, change.device_type, change.node, not change.is_up)
            heapq.heapreplace(self._changes, following)
            yield change

    def _draw(self, stream: np.random.Generator, *, is_up: bool) -> float:
        """Draw the seconds until a node's failure if it is up, or else until its repair."""
        mean = self._conditions.node_repair if is_up else self._conditions.node_mtbf
        return max(1.0, float(stream.exponential(mean or 1.0)))


class NodeBook:
    """Nodes of each job's devices; a gang is packed onto the freest nodes."""

    def __init__(self, cluster: SimCluster) -> None:
        self._size = {kind: group.devices for kind, group in cluster.groups.items()}
        self._free = {
            kind: [group.devices] * group.nodes for kind, group in cluster.groups.items()
        }
        self._down: set[tuple[str, int]] = set()
        self._held: dict[int, list[tuple[str, int, int]]] = {}

    def take(self, job_id: int, alloc: Alloc, types: tuple[str, ...]) -> Alloc:
        """Place a job on nodes that are up, which must have enough free devices."""
        held: list[tuple[str, int, int]] = []
        for part in alloc.parts:
            kind = part.type or ""
            free, left = self._free[kind], part.n
            up = [node for node in range(len(free)) if (kind, node) not in self._down]
            for node in sorted(up, key=lambda node: (-free[node], node)):
                n = min(left, free[node])
                if n:
                    free[node] -= n
                    left -= n
                    held.append((kind, node, n))
        self._held[job_id] = held
        return alloc

    def release(self, job_id: int) -> None:
        """Take a job off its nodes."""
        for kind, node, n in self._held.pop(job_id, ()):
            self._free[kind][node] += n

    def on(self, device_type: str, node: int) -> list[int]:
        """Return the jobs on a node, by ID."""
        return sorted(
            job_id
            for job_id, held in self._held.items()
            if any((kind, place) == (device_type, node) for kind, place, _n in held)
        )

    def change(self, change: NodeChange) -> None:
        """Note that a node is down, or back."""
        if change.is_up:
            self._down.discard((change.device_type, change.node))
        else:
            self._down.add((change.device_type, change.node))

    def capacity(self) -> dict[str, int]:
        """Return the devices of the nodes that are up, by type."""
        return {
            kind: sum((kind, node) not in self._down for node in range(len(free)))
            * self._size[kind]
            for kind, free in self._free.items()
        }

    def used(self) -> dict[tuple[str, int], int]:
        """Return the devices in use by node, for checks."""
        return {
            (kind, node): self._size[kind] - n
            for kind, free in self._free.items()
            for node, n in enumerate(free)
        }
