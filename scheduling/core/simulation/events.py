"""External events of a simulation: health of nodes, changes of the cluster and of the queue."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from scheduling.core.cells import ClusterSpec
from scheduling.core.cpu_pools import CpuPool
from scheduling.core.storages import StorageFacts
from scheduling.core.values import NodeFacts, QueuedJob, VcFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A node, or one device of it, fails or is repaired. A failure interrupts the jobs on it."""

    at: float
    node: str
    healthy: bool
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChange:
    """A change of the cluster by an admin or by nodes.

    Jobs keep their devices, also on unhealthy nodes; a job on removed devices is interrupted.

    Attributes:
        vcs: all virtual clusters; the engine keeps the state of an unchanged policy.
        cpu_pools: CPUs and memory that belong to no device; None without a change.
    """

    at: float
    spec: ClusterSpec
    topology_version: int
    vcs: tuple[VcFacts, ...]
    nodes: tuple[NodeFacts, ...]
    bad_devices: frozenset[tuple[str, int]]
    device_memory: Mapping[str, int]
    storages: Mapping[str, StorageFacts] = field(default_factory=dict)
    cpu_pools: tuple[CpuPool, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChange:
    """An owner changes a job that waits for its first start, or withdraws it (``job`` None)."""

    at: float
    job_id: int
    job: QueuedJob | None


Event: TypeAlias = HealthChange | ClusterChange | QueueChange


def changed_vcs(before: Mapping[int, VcFacts], after: tuple[VcFacts, ...]) -> dict[int, VcFacts]:
    """Return the virtual clusters after a change; the state of an unchanged policy remains."""
    found = {}
    for vc in after:
        old = before.get(vc.id)
        if old is not None and (vc.policy, vc.policy_args) == (old.policy, old.policy_args):
            found[vc.id] = replace(vc, policy_state=old.policy_state)
        else:
            found[vc.id] = vc
    return found


def with_owners(
    nodes: tuple[NodeFacts, ...], before: tuple[NodeFacts, ...]
) -> tuple[NodeFacts, ...]:
    """Return ``nodes`` with the tenants that own them in the simulation."""
    owners = {node.name: node.owner for node in before}
    return tuple(replace(node, owner=owners.get(node.name, node.owner)) for node in nodes)


class EventKind(IntEnum):
    """Kinds of events, in their order at one instant."""

    END = 0
    LEAVE = 1
    GATE = 2
    WAKE = 3
    EXTERNAL = 4


class ClockEvent(NamedTuple):
    """An event: ``number`` is a job ID or the index of an external event.

    Attributes:
        version: version of the job's progress for which the event holds.
    """

    at: float
    kind: EventKind
    number: int
    version: int


class EventClock:
    """Future events in order, and the present in seconds since the epoch."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._events: list[ClockEvent] = []

    def add(self, at: float, kind: EventKind, number: int = 0, version: int = 0) -> None:
        heapq.heappush(self._events, ClockEvent(at, kind, number, version))

    def first(self) -> ClockEvent | None:
        """Return the next event."""
        return self._events[0] if self._events else None

    def pop(self) -> ClockEvent:
        """Remove and return the next event."""
        return heapq.heappop(self._events)
