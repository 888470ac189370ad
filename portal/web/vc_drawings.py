"""Drawings of cells of virtual clusters: virtual, physical, and an assignment that fits."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.addresses import job_url
from portal.web.cluster_drawing import cell as drawn_cell
from portal.web.cluster_drawing import level_word
from portal.web.components import words
from portal.web.components.mapvalues import (
    DeviceMap,
    DeviceNow,
    LegendItem,
    MapGroup,
    MapNode,
    MapOccupant,
    NodeTile,
    Rack,
    Tile,
)
from portal.web.devicemap import device_map, tenant_categories
from scheduling.clusters.queries.vc_cells import BoundNode, CellOwner, VcCell, VcCells, VcLeaf
from scheduling.core.cells.feasibility import AssignedCell
from scheduling.core.cells.views import LeafUse
from scheduling.topology.current import CellView, TopologyNow
from tenants.viewers import ANOTHER_TENANT


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTrees:
    """The two drawings and their captions.

    Attributes:
        hidden: numbers of cells and of nodes beyond the limit of the drawing.
    """

    virtual: DeviceMap
    physical: DeviceMap
    summary: str
    hidden: tuple[int, int]


def cell_trees(
    topology: TopologyNow, found: VcCells, tenants: Sequence[str], *, tenant: str
) -> CellTrees:
    """Draw both sides of the binding.

    Args:
        topology: all cells.
        found: the cells of the virtual cluster.
        tenants: tenants in order of creation, which gives their colours.
        tenant: owner of the virtual cluster.
    """
    colour = tenant_categories(tenants).get(tenant, 6)
    left = len(found.cells), len(found.nodes)
    return CellTrees(
        virtual=_virtual(topology, found, tenants),
        physical=_map(
            Rack(
                name="", index=None, rows=tuple(_bound_node(node, colour) for node in found.nodes)
            )
        ),
        summary=_("%(bound)s of %(total)s bound")
        % {
            "bound": words.count(found.bound),
            "total": words.plural(found.total, "cell", "cells"),
        },
        hidden=(found.total - left[0], found.all_nodes - left[1]),
    )


def _virtual(topology: TopologyNow, found: VcCells, tenants: Sequence[str]) -> DeviceMap:
    nodes = [node for cell in found.cells if cell.physical for node in _bound_rows(topology, cell)]
    drawn = device_map(nodes, tenants=tenants, in_words=False)
    racks = {rack.name: rack for rack in drawn.racks}
    for kind, row in _unbound_rows(found.cells):
        rack = racks.get(kind, Rack(name=kind, index=None, rows=()))
        racks[kind] = replace(rack, rows=(*rack.rows, row))
    return replace(drawn, racks=tuple(racks.values()), density="")


def _map(rack: Rack) -> DeviceMap:
    return DeviceMap(
        racks=(rack,) if rack.rows else (), table=(), density="", tenants=(), kinds=(), devices=0
    )


def _bound_rows(topology: TopologyNow, cell: VcCell) -> Iterator[MapNode]:
    """Yield the cell as rows of one node each; smaller cells are a part of a node."""
    by_node: dict[str, list[VcLeaf]] = {}
    for leaf in cell.leaves:
        by_node.setdefault(leaf.node, []).append(leaf)
    pin = f" {cell.pinned}" if cell.pinned else ""
    title = f"{cell.number} {level_word(cell.level)}{pin}"
    for number, (node, leaves) in enumerate(by_node.items()):
        tree = topology.tree_of(node)
        yield MapNode(
            name=title if not number else f"· {node}",
            tree=drawn_cell(_below(tree, cell.physical) or tree),
            devices={leaf.device: _device(leaf) for leaf in leaves},
            rack=cell.device_type,
            device_type=cell.device_type,
        )


def _below(tree: CellView, address: str) -> CellView | None:
    if tree.address == address:
        return tree
    return next((hit for child in tree.children if (hit := _below(child, address))), None)


def _device(leaf: VcLeaf) -> DeviceNow:
    if leaf.use is LeafUse.BAD:
        return DeviceNow(condition="cordoned" if leaf.is_cordoned else "unhealthy")
    if leaf.use is LeafUse.IDLE:
        return DeviceNow()
    return DeviceNow(
        occupant=MapOccupant(
            allocation=f"{leaf.job_id or leaf.tenant}",
            tenant="" if leaf.tenant == ANOTHER_TENANT else leaf.tenant,
            job_id=leaf.job_id,
            name=leaf.job,
            user=leaf.user,
            state=leaf.state or "running",
            borrowed=leaf.use is LeafUse.LENT,
            url=job_url(leaf.job_id),
        )
    )


def _unbound_rows(cells: Iterable[VcCell]) -> Iterator[tuple[str, NodeTile]]:
    """Return one row for all unbound cells of a level, which are equal."""
    alike: dict[tuple[str, str], list[VcCell]] = {}
    for cell in cells:
        if not cell.physical:
            alike.setdefault((cell.device_type, cell.level), []).append(cell)
    for (kind, level), members in alike.items():
        facts = {"cells": f"{words.count(len(members))} {level_word(level, len(members))}"}
        text = _("%(cells)s not bound") % facts
        title = _("%(cells)s not bound: no job needs them") % facts
        tile = Tile(width=1, kind="free", title=title, text=text)
        first, last = members[0].number, members[-1].number
        yield (
            kind,
            NodeTile(
                name=f"{first} {level_word(level)}" if first == last else f"{first} – {last}",
                url="",
                icon="",
                tone="",
                summary=text,
                devices=members[0].devices,
                cells=MapGroup(width=1, gap=1, parts=(tile,)),
            ),
        )


def _bound_node(node: BoundNode, colour: int) -> NodeTile:
    return _row(
        node.name,
        node.tree,
        node.owners.get,
        lambda leaf, width: _tile(node.name, width, node.owners.get(leaf), colour),
    )


def _tile(node: str, width: int, owner: CellOwner | None, colour: int) -> Tile:
    facts: dict[str, object] = {
        "node": node,
        "devices": words.plural(width, "device", "devices"),
    }
    if owner is None:
        text = _("not bound") if width > 1 else ""
        title = _("%(node)s: %(devices)s not bound") % facts
        return Tile(width=width, kind="free", title=title, text=text)
    if not owner.is_own:
        facts["owner"] = name = owner.virtual_cluster or _("another virtual cluster")
        title = _("%(node)s: %(devices)s bound to %(owner)s") % facts
        return Tile(width=width, kind="other", title=title, text=name if width > 1 else "")
    facts["number"] = owner.number
    return Tile(
        width=width,
        kind="used",
        title=_("%(node)s: %(devices)s bound to cell %(number)s") % facts,
        text=str(owner.number),
        tenant=colour,
    )


def _row(
    name: str, tree: CellView, holder: Callable[[str], object], tile: Callable[[str, int], Tile]
) -> NodeTile:
    """Draw a node; leaves with one holder are one tile.

    Args:
        name: name of the node.
        tree: cells of the node.
        holder: holder of a leaf; equal values mean one holder.
        tile: draws some leaves of one holder, given the first of them and their number.
    """
    part = _part(tree, holder, tile)
    width = len(_leaves(tree))
    cells = part if isinstance(part, MapGroup) else MapGroup(width=width, gap=1, parts=(part,))
    return NodeTile(name=name, url="", icon="", tone="", summary=name, devices=width, cells=cells)


def _part(
    cell: CellView, holder: Callable[[str], object], tile: Callable[[str, int], Tile]
) -> Tile | MapGroup:
    leaves = _leaves(cell)
    if len({holder(leaf) for leaf in leaves}) > 1 and cell.children:
        parts = tuple(_part(child, holder, tile) for child in cell.children)
        gap = min(3, max(map(_height, cell.children)) + 1)
        return MapGroup(width=len(leaves), gap=gap, parts=parts)
    return tile(leaves[0], len(leaves))


def _leaves(cell: CellView) -> tuple[str, ...]:
    if not cell.children:
        return (cell.address,)
    return tuple(leaf for child in cell.children for leaf in _leaves(child))


def _height(cell: CellView) -> int:
    return 1 + max(map(_height, cell.children)) if cell.children else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of a cell in the drawing: its label and colour."""

    name: str
    category: int


def assignment_map(
    topology: TopologyNow, assigned: Sequence[AssignedCell], owners: Mapping[str, Owner]
) -> DeviceMap:
    """Draw the nodes with the cells assigned to virtual clusters.

    Args:
        topology: all cells.
        assigned: the virtual cluster of each guaranteed cell.
        owners: owners by name of the virtual cluster.
    """
    return _drawn(topology, tuple(assigned), tuple(owners.items()), get_language())


@lru_cache(maxsize=8)
def _drawn(
    topology: TopologyNow,
    assigned: tuple[AssignedCell, ...],
    named: tuple[tuple[str, Owner], ...],
    _language: str | None,
) -> DeviceMap:
    """Draw the map for all viewers with these visible names; cached until guarantees change."""
    owners = dict(named)
    by_leaf = {leaf: cell for cell in assigned for leaf in cell.leaves}
    rows = tuple(
        _assigned_node(name, tree, by_leaf, owners)
        for name, tree in sorted(topology.trees.items())
    )
    by_size: dict[int, list[NodeTile]] = {}
    for row in rows:
        by_size.setdefault(row.devices, []).append(row)
    seen = {cell.vc for cell in assigned}
    return DeviceMap(
        racks=tuple(
            Rack(name="", index=None, rows=part)
            for _, same in sorted(by_size.items(), reverse=True)
            for part in _columns(same)
        ),
        table=(),
        density="square" if len(rows) > 40 else "",
        tenants=tuple(
            LegendItem(name=owner.name, category=owner.category)
            for vc, owner in owners.items()
            if vc in seen
        ),
        kinds=(),
        devices=sum(row.devices for row in rows),
        colour="tenant",
    )


def owners_of(
    names: Mapping[str, str], tenants: Sequence[str], *, own: str, label: str
) -> Mapping[str, Owner]:
    """Return label and colour of each virtual cluster in the drawing.

    Args:
        names: tenant by name of the virtual cluster.
        tenants: tenants in order of creation.
        own: the virtual cluster that is being edited.
        label: label of that virtual cluster.
    """
    categories = tenant_categories(tenants)
    return {
        vc: Owner(name=label if vc == own else vc, category=categories.get(tenant, 6))
        for vc, tenant in names.items()
    }


def _columns(rows: Sequence[NodeTile]) -> list[tuple[NodeTile, ...]]:
    """Split into at most three columns of about the same height."""
    height = max(4, -(-len(rows) // 3))
    return [tuple(rows[at : at + height]) for at in range(0, len(rows), height)]


def _assigned_node(
    name: str,
    tree: CellView,
    by_leaf: Mapping[str, AssignedCell],
    owners: Mapping[str, Owner],
) -> NodeTile:
    return _row(
        name,
        tree,
        lambda leaf: by_leaf[leaf].address if leaf in by_leaf else "",
        lambda leaf, width: _assigned_tile(name, width, by_leaf.get(leaf), owners),
    )


def _assigned_tile(
    node: str, width: int, held: AssignedCell | None, owners: Mapping[str, Owner]
) -> Tile:
    facts = {"node": node, "devices": words.plural(width, "device", "devices")}
    if held is None:
        text = _("%(width)s left") % {"width": width} if width > 1 else "1"
        title = _("%(node)s: %(devices)s not assigned") % facts
        return Tile(width=width, kind="free", title=title, text=text)
    owner = owners[held.vc]
    facts["owner"] = owner.name
    shape = (
        _("%(node)s: %(devices)s for %(owner)s, pinned")
        if held.pinned
        else _("%(node)s: %(devices)s for %(owner)s")
    )
    return Tile(
        width=width,
        kind="used",
        title=shape % facts,
        text=owner.name if width > 1 else "",
        tenant=owner.category,
    )
