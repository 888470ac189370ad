"""Conversion of a node's inventory to cell types and its cells in the topology."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, count
from typing import Final

from scheduling.core.cells.cell_tree import child_segment, level_word
from scheduling.core.cells.spec import CellType, PhysicalCell
from scheduling.core.device_types import clean_name, reported_types
from scheduling.core.node_parts import MAX_PARTS, Home, divide
from tessera.inventory import Device, Inventory

DEVICE: Final = "device"
NODE: Final = "node"
MOST_IRREGULAR: Final = 6
"""Upper levels of a node among which regular ones are sought; a node may report any tree."""
_RUNG_WORDS: Final = {1: ("socket",), 2: ("pcie", "socket")}
_SPOKEN: Final = frozenset(
    {"pcie", "switch", "socket", "numa", "nvlink", "board", "rack", "row", "pod", "pool"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A device at its address in the topology.

    Attributes:
        address: full address of the leaf, ``<node>/.../<index>``.
        device: as the node reported it.
    """

    address: str
    device: Device


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """The cell for the devices of one type of a node.

    Attributes:
        device_type: name of the leaf type.
        chain: type of the cell, which is the chain's name.
        home: the cell that it replaces, or None.
        leaves: one for each device.
    """

    device_type: str
    chain: str
    cell: PhysicalCell
    leaves: tuple[Leaf, ...]
    home: Home | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The cells and types that result from an inventory.

    Attributes:
        parts: one for each device type; empty if the node has no device.
        new_types: cell types that the cluster does not have yet.
        extra: numbers of devices without a leaf in the fixed cell of their type, by its chain.
        warnings: descriptions of omitted or flattened parts.
    """

    parts: tuple[NodePart, ...]
    new_types: Mapping[str, CellType]
    extra: Mapping[str, tuple[int, ...]]
    warnings: tuple[str, ...]


def propose(
    *,
    node: str,
    inventory: Inventory,
    known: Mapping[str, CellType],
    homes: Sequence[Home] = (),
    kept: Collection[str] = (),
) -> Proposal:
    """Return the cells of a node, one for each device type, and the types that they need.

    A regular tree retains its levels. A tree whose cells of one level differ is flattened to node
    and devices. An existing chain of the same shape and device type is reused under any name.
    The first cell has the name of the node as its address; the others have their device type
    before it, so that all addresses are unique.

    Args:
        node: name of the node.
        inventory: the inventory of the node; each index is the number of a leaf.
        known: existing cell types of the cluster.
        homes: the existing cells of the node, which retain their addresses.
        kept: chains of existing cells that do not change.
    """
    if not inventory.devices:
        warning = f"Node {node} has no devices; nothing can be placed on it."
        return Proposal(parts=(), new_types={}, extra={}, warnings=(warning,))
    once = {device.index: device for device in reversed(inventory.devices)}
    devices = [once[index] for index in sorted(once)]
    division = divide(devices, reported_types(devices), homes, kept)
    taken = {home.address for home in homes}
    types: dict[str, CellType] = {}
    parts: list[NodePart] = []
    warnings: list[str] = []
    for group in division.groups:
        tree = _regular(group.devices, inventory.levels)
        leaf_type = _leaf_type(group.device_type, {**known, **types})
        chain_name, new_types = _chain(leaf_type, tree, {**known, **types})
        types.update(new_types)
        address = group.home.address if group.home else node
        if group.home is None and address in taken:
            address = f"{leaf_type}/{node}"
        taken.add(address)
        cell, leaves = _cell(address, chain_name, group.devices, tree)
        parts.append(
            NodePart(
                device_type=leaf_type,
                chain=chain_name,
                cell=cell,
                leaves=leaves,
                home=group.home,
            )
        )
        warnings += tree.warnings
    if division.omitted:
        warnings.append(
            f"{division.omitted} devices are not used: a node has at most {MAX_PARTS} types."
        )
    return Proposal(
        parts=tuple(parts), new_types=types, extra=division.extra, warnings=tuple(warnings)
    )


def level_words(types: Sequence[str], *, node_level: int) -> tuple[str, ...]:
    """Return the usual names of the levels of a chain, from the device up.

    Args:
        types: cell types by level, the device first.
        node_level: the chain's level of one machine, counted from 1.
    """
    between = _RUNG_WORDS.get(node_level - 2)
    words = []
    for level, name in enumerate(types, start=1):
        spoken = level_word(name)
        if level in {1, node_level}:
            words.append(NODE if level == node_level else DEVICE)
        elif set(spoken.split("+")) <= _SPOKEN:
            words.append(spoken)
        elif level < node_level:
            words.append(between[level - 2] if between else f"level {level}")
        else:
            words.append("rack" if level == node_level + 1 else f"level {level}")
    return tuple(words)


def _leaf_type(kind: str, known: Mapping[str, CellType]) -> str:
    return f"{kind}-device" if kind in known else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """Devices grouped by level.

    Attributes:
        paths: ordinals of each device's cells, from below the node downwards.
        fans: children of a cell by level, from the node to the one above the device.
        words: names of the rungs between node and device, the highest first.
    """

    paths: tuple[tuple[int, ...], ...]
    fans: tuple[int, ...]
    words: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _regular(devices: Sequence[Device], levels: Sequence[str]) -> _Tree:
    """Build the tree without redundant levels, and without levels whose cells differ in size.

    If not all levels are regular together, the largest number of them is retained; among equal
    numbers the upper levels first, then NVLink domains. If none is regular, the tree is flat.
    """
    depth = max(len(levels) - 2, 0)
    full = [tuple(device.path[:depth]) for device in devices]
    tried = min(depth, MOST_IRREGULAR)
    choices = chain(
        (tuple(range(depth)),) if depth > tried else (),
        (chosen for size in range(tried, 0, -1) for chosen in combinations(range(tried), size)),
    )
    same = len({len(path) for path in full}) == 1
    chosen, fans = next(
        (
            (chosen, found)
            for chosen in (choices if same else ())
            if (found := _fans([tuple(path[at] for at in chosen) for path in full]))
        ),
        ((), [len(devices)]),
    )
    kept = [position for position, fan in enumerate(fans[:-1]) if fan > 1]
    if fans[-1] == 1 and kept:
        # The lowest level has one device per cell, so the device itself is enough.
        fans[-1] = fans[kept.pop()]
    omitted = depth and len(chosen) < len(full[0])
    warning = "Levels between node and device are omitted: cells of one level differ."
    return _Tree(
        paths=tuple(tuple(path[chosen[position]] for position in kept) for path in full),
        fans=(*(fans[position] for position in kept), fans[-1]),
        words=tuple(clean_name(levels[chosen[position] + 1]) for position in kept),
        warnings=(warning,) if omitted else (),
    )


def _fans(paths: Sequence[tuple[int, ...]]) -> list[int] | None:
    """Return the children per cell at each level, or None if cells of a level differ."""
    depth = len(paths[0])
    fans = []
    for level in range(depth):
        children: dict[tuple[int, ...], set[int]] = {}
        for path in paths:
            children.setdefault(path[:level], set()).add(path[level])
        sizes = {len(below) for below in children.values()}
        if len(sizes) != 1:
            return None
        fans.append(sizes.pop())
    leaves = set(Counter(paths).values())
    return [*fans, leaves.pop()] if len(leaves) == 1 else None


def _chain(
    leaf: str, tree: _Tree, known: Mapping[str, CellType]
) -> tuple[str, Mapping[str, CellType]]:
    """Find a chain for nodes of this shape, or create new types under unused names."""
    for name, cell_type in known.items():
        if cell_type.node_level and _shape(name, known) == (leaf, tree.fans):
            return name, {}
    shaped = f"{leaf}-{'x'.join(str(fan) for fan in tree.fans)}"
    prefixes = chain([leaf, shaped], (f"{shaped}-{number}" for number in count(2)))
    return next(
        (f"{prefix}-{NODE}", types)
        for prefix in prefixes
        if not (types := _types(prefix, leaf, tree)).keys() & {*known, leaf}
    )


def _types(prefix: str, leaf: str, tree: _Tree) -> dict[str, CellType]:
    words = tree.words
    if len({*words, NODE, DEVICE}) < len(words) + 2 or not all(words):
        words = _RUNG_WORDS.get(len(words), tuple(f"level{n}" for n in range(len(words))))[::-1]
    types: dict[str, CellType] = {}
    child = leaf
    for word, fan in zip((*reversed(words), NODE), reversed(tree.fans), strict=True):
        types[f"{prefix}-{word}"] = CellType(child=child, count=fan, node_level=word == NODE)
        child = f"{prefix}-{word}"
    return types


def _shape(name: str, known: Mapping[str, CellType]) -> tuple[str, tuple[int, ...]]:
    fans: list[int] = []
    while name in known and len(fans) <= len(known):
        fans.append(known[name].count)
        name = known[name].child
    return name, tuple(fans)


def _cell(
    address: str, chain_name: str, devices: Sequence[Device], tree: _Tree
) -> tuple[PhysicalCell, tuple[Leaf, ...]]:
    """Build the node's cell, each leaf at its device's index, and the leaves with addresses."""
    segments = _segments(tree.paths)
    placed = sorted(
        ((segments[path], device) for path, device in zip(tree.paths, devices, strict=True)),
        key=lambda pair: (pair[0], pair[1].index),
    )
    leaves = tuple(
        Leaf(address="/".join([address, *map(str, path), str(device.index)]), device=device)
        for path, device in placed
    )
    children = _subtree(placed, len(tree.fans))
    return PhysicalCell(type=chain_name, address=address, children=children), leaves


def _segments(paths: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the address segments of each path; cells of a level are counted per node."""
    seen: list[dict[tuple[int, ...], int]] = [{} for _ in paths[0]]
    return {
        path: tuple(
            level.setdefault(path[: depth + 1], len(level)) for depth, level in enumerate(seen)
        )
        for path in sorted(set(paths))
    }


def _subtree(
    leaves: Sequence[tuple[tuple[int, ...], Device]], depth: int
) -> tuple[PhysicalCell, ...]:
    if depth == 1:
        return tuple(PhysicalCell(address=str(device.index)) for _, device in leaves)
    groups: dict[int, list[tuple[tuple[int, ...], Device]]] = {}
    for path, device in leaves:
        groups.setdefault(path[0], []).append((path[1:], device))
    return tuple(
        PhysicalCell(address=str(ordinal), children=_subtree(members, depth - 1))
        for ordinal, members in groups.items()
    )


def with_addresses(
    cells: Sequence[PhysicalCell], types: Mapping[str, CellType]
) -> tuple[PhysicalCell, ...]:
    """Return the cells with explicit default addresses, so that one can be removed.

    Default addresses depend on positions: without this, a removal would shift all later cells.
    """
    return tuple(
        _written_out(cell, cell.type, position, types) for position, cell in enumerate(cells)
    )


def _written_out(
    cell: PhysicalCell, name: str, index: int, types: Mapping[str, CellType]
) -> PhysicalCell:
    address = cell.address or str(index)
    cell_type = types.get(name)
    if cell_type is None or cell_type.node_level:
        # The indices restart in each node, independently of the node's address.
        return replace(cell, address=address)
    children = cell.children or (PhysicalCell(),) * cell_type.count
    return replace(
        cell,
        address=address,
        children=tuple(
            _written_out(child, cell_type.child, child_segment(cell_type, index, i), types)
            for i, child in enumerate(children)
        ),
    )
