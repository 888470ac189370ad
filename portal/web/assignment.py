"""Drawing of one assignment of cells to virtual clusters: the certificate that a shape fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.web.components import words
from portal.web.components.mapvalues import DeviceMap, LegendItem, MapGroup, NodeTile, Rack, Tile
from portal.web.devicemap import tenant_categories
from scheduling.core.cells.feasibility import AssignedCell
from scheduling.topology.current import CellView, TopologyNow


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
        owners: by name of the virtual cluster.
    """
    return _drawn(topology, tuple(assigned), tuple(owners.items()), get_language())


@lru_cache(maxsize=8)
def _drawn(
    topology: TopologyNow,
    assigned: tuple[AssignedCell, ...],
    named: tuple[tuple[str, Owner], ...],
    _language: str | None,
) -> DeviceMap:
    """Draw once for all viewers with the same visible names; cached until guarantees change."""
    owners = dict(named)
    by_leaf = {leaf: cell for cell in assigned for leaf in cell.leaves}
    rows = tuple(
        _row(name, tree, by_leaf, owners) for name, tree in sorted(topology.trees.items())
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
        tenants: in order of creation.
        own: the virtual cluster that is being edited.
        label: its label.
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


def _row(
    name: str,
    tree: CellView,
    by_leaf: Mapping[str, AssignedCell],
    owners: Mapping[str, Owner],
) -> NodeTile:
    part = _part(name, tree, by_leaf, owners)
    width = len(_leaves(tree))
    cells = part if isinstance(part, MapGroup) else MapGroup(width=width, gap=1, parts=(part,))
    return NodeTile(name=name, url="", icon="", tone="", says=name, devices=width, cells=cells)


def _part(
    node: str,
    cell: CellView,
    by_leaf: Mapping[str, AssignedCell],
    owners: Mapping[str, Owner],
) -> Tile | MapGroup:
    leaves = _leaves(cell)
    holders = {by_leaf[leaf].address if leaf in by_leaf else "" for leaf in leaves}
    if len(holders) > 1 and cell.children:
        parts = tuple(_part(node, child, by_leaf, owners) for child in cell.children)
        return MapGroup(
            width=len(leaves), gap=min(3, max(map(_height, cell.children)) + 1), parts=parts
        )
    return _tile(node, len(leaves), by_leaf.get(leaves[0]), owners)


def _tile(node: str, width: int, held: AssignedCell | None, owners: Mapping[str, Owner]) -> Tile:
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


def _leaves(cell: CellView) -> tuple[str, ...]:
    if not cell.children:
        return (cell.address,)
    return tuple(leaf for child in cell.children for leaf in _leaves(child))


def _height(cell: CellView) -> int:
    return 1 + max(map(_height, cell.children)) if cell.children else 0
