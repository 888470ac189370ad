"""External events of a simulation: health of nodes, changes of the cluster and of the queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from scheduling.core.cells import ClusterSpec
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
    """Another state of the cluster, which an admin or the nodes brought about.

    Jobs keep their devices, also on unhealthy nodes; a job on removed devices is interrupted.

    Attributes:
        vcs: all virtual clusters; the engine keeps the state of an unchanged policy.
    """

    at: float
    spec: ClusterSpec
    topology_version: int
    vcs: tuple[VcFacts, ...]
    nodes: tuple[NodeFacts, ...]
    bad_devices: frozenset[tuple[str, int]]
    device_memory: Mapping[str, int]
    storages: Mapping[str, StorageFacts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChange:
    """An owner changes a job that waits for its first start, or withdraws it (``job`` None)."""

    at: float
    job_id: int
    job: QueuedJob | None


Event: TypeAlias = HealthChange | ClusterChange | QueueChange


def changed_vcs(before: Mapping[int, VcFacts], after: tuple[VcFacts, ...]) -> dict[int, VcFacts]:
    """Return the virtual clusters after a change; an unchanged policy keeps its state."""
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
