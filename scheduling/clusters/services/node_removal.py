"""Removal of a node's cells from the topology, if no guarantee needs them."""

from dataclasses import replace
from datetime import datetime

from scheduling.clusters.models import Node
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.clusters.services.topology import (
    append_version,
    require_fit,
    require_unused,
    retire_devices,
)
from scheduling.core.cells import ClusterSpec, PhysicalCell
from scheduling.core.inventory import with_addresses
from scheduling.topology.current import TopologyNow, current_topology


def take_out_of_topology(*, node: Node, user_id: int | None, now: datetime) -> None:
    """Remove the node's cells and retire its devices; call it inside ``in_turn``.

    Raises:
        DevicesInUseError: jobs hold devices of the node.
        DoesNotFitError: a guarantee needs its cells.
        TopologyMovedError: another edit changed the topology.
    """
    devices = list(node.devices.filter(retired_at=None))
    require_unused([device.pk for device in devices], field="node")
    topology = current_topology()
    if node.name in topology.cells.nodes:
        spec = without_node(topology, node.name)
        before = spec_in_force(topology)
        promised = before.virtual_clusters
        require_fit(replace(spec, virtual_clusters=promised), before=before, field="node")
        append_version(
            before=topology.version,
            spec=spec,
            reason=f"{node.name} removed",
            user_id=user_id,
            now=now,
        )
    retire_devices(devices, now)


def without_node(topology: TopologyNow, name: str) -> ClusterSpec:
    """Return the cells without a node and without larger cells that become empty."""
    spec = topology.spec
    cells = with_addresses(spec.physical, spec.cell_types)
    kept = tuple(
        left for cell in cells if (left := _without(cell, cell.type, name, spec)) is not None
    )
    return replace(spec, physical=kept)


def _without(
    cell: PhysicalCell, type_name: str, name: str, spec: ClusterSpec
) -> PhysicalCell | None:
    cell_type = spec.cell_types.get(type_name)
    if cell_type is None:
        return cell
    if cell_type.node_level:
        return None if cell.address.rpartition("/")[2] == name else cell
    children = tuple(
        left
        for child in cell.children
        if (left := _without(child, cell_type.child, name, spec)) is not None
    )
    return replace(cell, children=children) if children else None
