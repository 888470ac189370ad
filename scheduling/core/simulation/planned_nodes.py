"""A cluster with more or fewer nodes of a device type, for planning questions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduling.core.cells import ClusterSpec, PhysicalCell
from scheduling.core.round.engine_setup import empty_engine, guaranteed_devices
from scheduling.core.simulation.guarantees import with_guarantee
from scheduling.core.values import HoldingJob, NodeFacts

MOST_NODES: Final = 1000
PREFIX: Final = "planned-"


class PlannedNodesError(ValueError):
    """The cluster cannot lose this number of nodes, or has no node of the type to copy.

    Attributes:
        device_type: the type.
        possible: the number of nodes of the type that exist.
    """

    def __init__(self, device_type: str, possible: int) -> None:
        super().__init__(f"{device_type} has {possible} nodes")
        self.device_type = device_type
        self.possible = possible


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """One node of a type: its cell type, name of a node to copy, and number of devices."""

    cell_type: str
    like: str
    devices: int


def nodes_of_type(spec: ClusterSpec, device_type: str) -> dict[str, NodeShape]:
    """Return the nodes with devices of a type by name, in the order of the cells."""
    found: dict[str, NodeShape] = {}
    for chain in empty_engine(spec).topology.chains.values():
        if chain.leaf_type != device_type:
            continue
        for node, name in enumerate(chain.node_names):
            found[name] = NodeShape(
                cell_type=chain.types[chain.node_level],
                like=name,
                devices=len(chain.devices_of(node)),
            )
    return found


def more_nodes(
    spec: ClusterSpec, nodes: Sequence[NodeFacts], vc: str, device_type: str, count: int
) -> tuple[ClusterSpec, tuple[NodeFacts, ...]]:
    """Add nodes like the largest one of a type, and guarantee them to a virtual cluster.

    The new nodes are separate trees: a planning question does not choose a rack.

    Raises:
        PlannedNodesError: no node of the type exists.
        GuaranteeError: the cells do not fit.
    """
    known = nodes_of_type(spec, device_type)
    if not known:
        raise PlannedNodesError(device_type, 0)
    shape = max(known.values(), key=lambda one: one.devices)
    names = [f"{PREFIX}{device_type.lower()}-{number}" for number in range(1, count + 1)]
    cells = tuple(PhysicalCell(type=shape.cell_type, address=name) for name in names)
    held = guaranteed_devices(empty_engine(spec), vc).get(device_type, 0)
    grown = replace(spec, physical=(*spec.physical, *cells))
    facts = next(node for node in nodes if node.name == shape.like)
    size = _devices_of_complete(grown, shape.cell_type)
    grown = with_guarantee(grown, vc, {device_type: held + count * size})
    fresh = replace(facts, placeable=True, healthy=True, owner=None)
    return grown, (*nodes, *(replace(fresh, name=name) for name in names))


def _devices_of_complete(spec: ClusterSpec, cell_type: str) -> int:
    """Return the number of devices of a complete cell."""
    devices = 1
    while (found := spec.cell_types.get(cell_type)) is not None:
        devices *= found.count
        cell_type = found.child
    return devices


def fewer_nodes(
    spec: ClusterSpec,
    nodes: Sequence[NodeFacts],
    vc: str,
    device_type: str,
    closed: Iterable[str],
) -> tuple[ClusterSpec, tuple[NodeFacts, ...]]:
    """Drain nodes: no new job starts on them, and the guarantee loses their devices.

    Raises:
        GuaranteeError: pinned cells do not allow the smaller guarantee.
    """
    gone = set(closed)
    known = nodes_of_type(spec, device_type)
    lost = sum(shape.devices for name, shape in known.items() if name in gone)
    held = guaranteed_devices(empty_engine(spec), vc).get(device_type, 0)
    shrunk = with_guarantee(spec, vc, {device_type: max(0, held - lost)})
    return shrunk, tuple(
        replace(node, placeable=False) if node.name in gone else node for node in nodes
    )


def least_held(
    spec: ClusterSpec, device_type: str, count: int, holding: Iterable[HoldingJob]
) -> tuple[str, ...]:
    """Choose the nodes of a type that drain first: the fewest devices in use, then by name.

    Args:
        spec: the cluster.
        device_type: the type.
        count: number of nodes.
        holding: the running jobs.

    Raises:
        PlannedNodesError: fewer than ``count`` nodes exist.
    """
    leaves = {leaf.address for job in holding for member in job.members for leaf in member}
    held = Counter(
        chain.node_names[chain.node_of_leaf[leaf]]
        for chain in empty_engine(spec).topology.chains.values()
        for leaf in range(chain.leaf_count)
        if chain.address[leaf] in leaves
    )
    known = sorted(nodes_of_type(spec, device_type), key=lambda name: (held[name], name))
    if len(known) < count:
        raise PlannedNodesError(device_type, len(known))
    return tuple(known[:count])
