"""Expanding the physical cells of a specification into the levels of a chain."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.core.cells.errors import SpecError
from scheduling.core.cells.spec import CellType, PhysicalCell

MAX_LEAVES = 2_000_000


def child_segment(parent_type: CellType, parent_index: int, position: int) -> int:
    """Return the default address segment of a child; numbers restart inside each node."""
    base = 0 if parent_type.node_level else parent_index
    return base * parent_type.count + position


def level_word(type_name: str) -> str:
    """Return the last word of a cell type; words of one level that is several are joined by +."""
    return type_name.rpartition("-")[2].lower()


@dataclass(slots=True)
class TreeCell:
    """A cell that has no number yet."""

    type: str
    address: str
    index: int
    children: tuple[PhysicalCell, ...]
    parent: int


def type_path(name: str, cell_types: Mapping[str, CellType]) -> tuple[list[str], str]:
    """Return the types of a chain from the top cell down to the device, and the node type.

    Raises:
        SpecError: the types form a cycle, or the number of node types is not 1.
    """
    path = [name]
    while path[-1] in cell_types:
        child = cell_types[path[-1]].child
        if child in path:
            raise SpecError(
                f"cell types form a cycle: {' > '.join([*path, child])}",
                field=f"cell_types.{path[-1]}.child",
                value=child,
                remedy="end the chain of types with a device type",
            )
        path.append(child)
    marked = [t for t in path[:-1] if cell_types[t].node_level]
    if len(marked) != 1:
        raise SpecError(
            f"chain {name!r} has {len(marked)} node levels; a top cell must be at or"
            " above exactly one",
            field=f"cell_types.{name}",
            value=marked,
            remedy="set node_level (isNodeLevel) on the type that is a node",
        )
    return path, marked[0]


def build_levels(
    types: list[str], cell_types: Mapping[str, CellType], tops: list[tuple[int, PhysicalCell]]
) -> list[list[TreeCell]]:
    """Build all cells by level, each with the index of its parent in the level above.

    Args:
        types: type names by level; the first entry is unused.
        cell_types: child type and count by type.
        tops: the top cells with their positions in the specification.

    Raises:
        SpecError: too many cells, or children that the types do not allow.
    """
    levels = len(types) - 1
    cells: list[list[TreeCell]] = [[] for _ in types]
    cells[levels] = [
        TreeCell(types[levels], cell.address or str(i), i, cell.children, -1) for i, cell in tops
    ]
    for level in range(levels, 1, -1):
        for number, cell in enumerate(cells[level]):
            cell_type = cell_types[types[level]]
            if len(cells[level - 1]) + (len(cell.children) or cell_type.count) > MAX_LEAVES:
                raise SpecError(
                    f"chain {types[levels]!r} has more than {MAX_LEAVES} cells at one level",
                    field="physical",
                    value=types[level - 1],
                    remedy="split the cluster",
                )
            cells[level - 1] += _children(cell, number, cell_type)
    for cell in cells[1]:
        if cell.children:
            raise SpecError(
                f"device {cell.address!r} has children",
                field="physical",
                value=cell.address,
                remedy="remove them, or define the device's type",
            )
    return cells


def _children(cell: TreeCell, number: int, cell_type: CellType) -> list[TreeCell]:
    _check_children(cell, cell_type)
    found = []
    for i, child in enumerate(cell.children or (PhysicalCell(),) * cell_type.count):
        index = child_segment(cell_type, cell.index, i)
        address = f"{cell.address}/{child.address or index}"
        found.append(TreeCell(cell_type.child, address, index, child.children, number))
    return found


def _check_children(cell: TreeCell, cell_type: CellType) -> None:
    if len(cell.children) > cell_type.count:
        raise SpecError(
            f"cell {cell.address!r} lists {len(cell.children)} children; a {cell.type} has at"
            f" most {cell_type.count}",
            field="physical",
            value=cell.address,
            remedy="list fewer children, or raise the count of the type",
        )
    for child in cell.children:
        if child.type not in ("", cell_type.child):
            raise SpecError(
                f"cell {cell.address!r} has a child of type {child.type!r}; children of"
                f" {cell.type} are {cell_type.child}",
                field="physical",
                value=child.type,
                remedy=f"use {cell_type.child}, or omit the type",
            )
        if "/" in child.address:
            raise SpecError(
                f"address {child.address!r} has a slash",
                field="physical",
                value=child.address,
                remedy="use one path segment without '/'",
            )


def device_index(address: str) -> int:
    """Parse the index of a device in its node from the last segment of its address.

    Raises:
        SpecError: the segment is not an integer.
    """
    segment = address.rpartition("/")[2]
    if not (segment.isascii() and segment.isdigit()) or len(segment) > 9:
        raise SpecError(
            f"device {address!r}: the last segment {segment!r} is not a device index",
            field="physical",
            value=address,
            remedy="use whole numbers as addresses of devices",
        )
    return int(segment)
