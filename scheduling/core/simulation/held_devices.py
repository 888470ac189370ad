"""Held devices in the engine of a simulation: release, health and rebinding."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduling.core.cells import CellEngine, ClusterSpec
from scheduling.core.round.engine_setup import empty_engine
from scheduling.core.round.gang_requests import group_name, parts_of
from scheduling.core.round_result import Rebinding
from scheduling.core.simulation.speedup import HeldShape
from scheduling.core.values import ClusterSnapshot, HeldLeaf, HoldingJob, NodeFacts


def release(engine: CellEngine, held: HoldingJob) -> None:
    """Free the devices of a job."""
    for part in range(len(parts_of(held.demand))):
        engine.release(group_name(held.id, part))


def shape_of(engine: CellEngine, members: Iterable[Sequence[HeldLeaf]]) -> HeldShape:
    """Return the types, nodes and devices of a gang."""
    topology = engine.topology
    types, nodes, devices = set(), set(), 0
    for leaves in members:
        devices += len(leaves)
        for leaf in leaves:
            place = topology.leaves.get(leaf.address)
            if place is not None:
                chain = topology.chains[place[0]]
                types.add(chain.leaf_type)
                nodes.add((place[0], chain.node_of_leaf[place[1]]))
    return HeldShape(types=tuple(sorted(types)), nodes=len(nodes), devices=devices)


def types_of(engine: CellEngine, members: Iterable[Sequence[HeldLeaf]]) -> dict[str, int]:
    """Return the devices of a gang by type."""
    topology = engine.topology
    found: dict[str, int] = defaultdict(int)
    for leaves in members:
        for leaf in leaves:
            place = topology.leaves.get(leaf.address)
            if place is not None:
                found[topology.chains[place[0]].leaf_type] += 1
    return dict(found)


def jobs_on(
    engine: CellEngine, holding: Iterable[HoldingJob], node: str, device: int | None
) -> list[int]:
    """Return the jobs on a node, or on one device of it."""
    topology = engine.topology
    places = {
        place
        for (name, index), place in topology.devices.items()
        if name == node and device in (None, index)
    }
    return [
        job.id
        for job in holding
        if any(topology.leaves.get(leaf.address) in places for one in job.members for leaf in one)
    ]


def nodes_like(engine: CellEngine, node: str, nodes: Iterable[NodeFacts]) -> frozenset[str]:
    """Return the nodes that accept work in the chains of a node."""
    places = engine.topology.nodes
    chains = {chain for chain, _ in places.get(node, ())}
    return frozenset(
        one.name
        for one in nodes
        if one.placeable and any(chain in chains for chain, _ in places.get(one.name, ()))
    )


def jobs_off(spec: ClusterSpec, holding: Iterable[HoldingJob]) -> list[int]:
    """Return the jobs with a device that ``spec`` does not have."""
    leaves = empty_engine(spec).topology.leaves
    return [
        job.id
        for job in holding
        if any(leaf.address not in leaves for one in job.members for leaf in one)
    ]


def set_health(engine: CellEngine, before: ClusterSnapshot, after: ClusterSnapshot) -> None:
    """Set the health of nodes and devices that changed between two snapshots of one topology."""
    old = {node.name: node.healthy for node in before.nodes}
    for node in after.nodes:
        if old.get(node.name, True) != node.healthy:
            engine.set_node_health(node.name, healthy=node.healthy)
    for name, index in sorted(before.bad_devices ^ after.bad_devices):
        is_healthy = (name, index) not in after.bad_devices
        engine.set_device_health(name, index, healthy=is_healthy)


def rebound(engine: CellEngine, held: HoldingJob, rebinding: Rebinding) -> HoldingJob:
    """Return a job with the virtual leaves of a rebinding.

    A gang without its guarantee also loses its virtual addresses in the engine, as in its leases.
    """
    for part in range(len(parts_of(held.demand))):
        gang = engine.gangs.get(group_name(held.id, part))
        if gang is not None and not gang.guaranteed:
            gang.virtual = [()] * len(gang.spots)
    virtual = {leaf.address: leaf for leaf in rebinding.leaves}
    members = tuple(
        tuple(virtual.get(leaf.address, leaf) for leaf in leaves) for leaves in held.members
    )
    return replace(held, members=members)
