"""The cells of a node that result from its inventory, one for each device type."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from scheduling.clusters.models import Node
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.clusters.services.node_groups import with_groups
from scheduling.clusters.services.topology import LeafPlace
from scheduling.core.cells import CellError, CellType, ClusterSpec, PhysicalCell, feasible
from scheduling.core.cells.topology import ClusterTopology
from scheduling.core.inventory import NodePart, propose
from scheduling.core.messages import sentence
from scheduling.core.node_parts import Home
from scheduling.runs.models import Lease
from scheduling.topology.current import TopologyNow
from tessera.inventory import Inventory
from tessera.messages import message_of


def shaped_cells(
    node: Node,
    topology: TopologyNow,
    places: Mapping[int, LeafPlace],
    *,
    inventory: Inventory,
    kept: Collection[str],
) -> tuple[ClusterSpec | None, tuple[str, ...]]:
    """Return the cells of the cluster with those of a node, or None if unchanged, and warnings.

    Each part of the node changes by itself: a part whose devices are in use, or whose change would
    break a guarantee, stays as it is.

    Args:
        node: the node.
        topology: the current topology.
        places: the leaves of the node by number.
        inventory: the inventory, with the number of a leaf as the index of each device.
        kept: chains of the node's cells that do not change.
    """
    spec = with_groups(topology.spec)
    homes = _homes(node.name, topology, places)
    proposal = propose(
        node=node.name, inventory=inventory, known=spec.cell_types, homes=homes, kept=kept
    )
    warnings = [*proposal.warnings, *_imported_words(node.name, proposal.extra)]
    promised = spec_in_force(topology).virtual_clusters if proposal.parts else {}
    held = _held_numbers(node) if proposal.parts else frozenset()
    types = {**spec.cell_types, **proposal.new_types}
    for part in proposal.parts:
        before = part.home.numbers if part.home else frozenset[int]()
        addresses = {places[number].address for number in before}
        if addresses == {leaf.address for leaf in part.leaves}:
            continue
        if before & held:
            warnings.append(sentence("cells-changed-in-use"))
            continue
        wanted = replace(
            spec,
            cell_types={**spec.cell_types, **_below(part.chain, types)},
            physical=_with(spec.physical, part),
        )
        fault = _fault(replace(wanted, virtual_clusters=promised))
        if fault:
            warnings.append(sentence("cells-changed", fault=message_of(fault)))
        else:
            spec = wanted
    return None if spec is topology.spec else spec, tuple(warnings)


def _below(name: str, types: Mapping[str, CellType]) -> Mapping[str, CellType]:
    """Return a cell type and those below it."""
    found: dict[str, CellType] = {}
    while name in types and name not in found:
        found[name] = types[name]
        name = types[name].child
    return found


def _homes(name: str, topology: TopologyNow, places: Mapping[int, LeafPlace]) -> list[Home]:
    """Return the cells of a node, those with its name as their address first."""
    own = own_cells(topology.spec, name)
    homes = []
    for chain, cell in topology.cells.nodes.get(name, ()):
        cells = topology.cells.chains[chain]
        address = cells.address[cells.node_base + cell]
        homes.append(
            Home(
                chain=chain,
                device_type=cells.leaf_type,
                address=address,
                numbers=frozenset(n for n, place in places.items() if place.chain == chain),
                is_fixed=address not in own,
            )
        )
    return sorted(homes, key=lambda home: (home.address != name, home.address))


def own_cells(spec: ClusterSpec, name: str) -> Mapping[str, int]:
    """Return the positions of the top cells that are a node, by address."""
    found = {}
    for position, cell in enumerate(spec.physical):
        cell_type = spec.cell_types.get(cell.type)
        address = cell.address or str(position)
        if cell_type is not None and cell_type.node_level and address.rpartition("/")[2] == name:
            found[address] = position
    return found


def _with(physical: tuple[PhysicalCell, ...], part: NodePart) -> tuple[PhysicalCell, ...]:
    """Return the cells with a new cell at the end, or with a cell replaced at its position.

    Default addresses count positions, so the positions of other cells must not change.
    """
    position = next(
        (
            at
            for at, cell in enumerate(physical)
            if part.home is not None
            and cell.type == part.home.chain
            and (cell.address or str(at)) == part.home.address
        ),
        None,
    )
    if position is None:
        return (*physical, part.cell)
    return (*physical[:position], part.cell, *physical[position + 1 :])


def _held_numbers(node: Node) -> frozenset[int]:
    """Return the numbers of the devices that jobs hold."""
    leases = Lease.objects.filter(released_at=None, device__node=node)
    return frozenset(leases.values_list("device__index", flat=True))


def _imported_words(name: str, extra: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return a warning for devices that an imported cell does not have."""
    numbers = sorted(number for some in extra.values() for number in some)
    if not numbers:
        return ()
    shown = ", ".join(str(number) for number in numbers)
    return (sentence("import-lacks-devices", node=name, extra=shown),)


def _fault(spec: ClusterSpec) -> str:
    try:
        ClusterTopology(spec)
        answer = feasible(spec)
    except CellError as error:
        return str(error)
    return "" if answer.ok else answer.witness
