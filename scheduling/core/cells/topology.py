"""The fixed side of a chain: numbered cells, addresses, and the shapes of nodes.

Cells of a chain are numbered level by level, leaves first, so that cell ``c`` of level 1 is leaf
``c`` and the children of any cell are a range. Nothing in here changes while the engine runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scheduling.core.cells.errors import SpecError
from scheduling.core.cells.spec import CellType, ClusterSpec, PhysicalCell

MAX_LEAVES = 2_000_000
_BY_CELL = (
    *("address", "child_hi", "child_lo", "complete", "devices", "leaf_hi", "leaf_lo"),
    *("level", "node_of_leaf", "parent"),
)


def child_segment(parent_type: CellType, parent_index: int, position: int) -> int:
    """Default address segment of a child; the count restarts inside every node."""
    base = 0 if parent_type.node_level else parent_index
    return base * parent_type.count + position


class NodeShape:
    """Which leaves to take inside a node: the tightest sub-cell that has enough of them.

    Masks have bit ``i`` for the ``i``-th leaf of the node. Answers are remembered, so the worst
    case (a fragmented node) costs one walk over the sub-cells and one dictionary look-up after.
    """

    __slots__ = ("_memo", "cells", "full", "size")

    def __init__(self, cells: tuple[tuple[int, ...], ...]) -> None:
        self.cells = cells  # cells[level - 1] = masks of the sub-cells at that level
        self.full = cells[-1][0]
        self.size = self.full.bit_count()
        self._memo: dict[tuple[int, int], tuple[int, int]] = {}

    def choose(self, free: int, count: int, highest: int) -> int:
        """``count`` of the ``free`` leaves with the lowest common ancestor; 0 if there are none.

        Among equally tight sub-cells the one with the fewest free leaves wins, then its parents',
        then the first in the order of the configuration.

        Args:
            free: mask of the leaves that may be taken.
            count: how many leaves, at least 1.
            highest: the highest level the common ancestor may have.
        """
        found = self._memo.get((free, count))
        if found is None:
            found = self._memo[free, count] = self._search(free, count)
        level, mask = found
        return mask if level <= highest else 0

    def level_of(self, mask: int) -> int:
        """Level of the lowest common ancestor of the leaves in ``mask``."""
        for level, masks in enumerate(self.cells, start=1):
            if any(mask & cell == mask for cell in masks):
                return level
        return len(self.cells)

    def _search(self, free: int, count: int) -> tuple[int, int]:
        for level, masks in enumerate(self.cells, start=1):
            best: tuple[int, ...] | None = None
            chosen = 0
            for cell in masks:
                have = (free & cell).bit_count()
                if have < count or (best is not None and have > best[0]):
                    continue
                key = (have, *self._crowding(cell, free, level))
                if best is None or key < best:
                    best, chosen = key, free & cell
            if best is not None:
                return level, _lowest_bits(chosen, count)
        return len(self.cells) + 1, 0

    def _crowding(self, cell: int, free: int, level: int) -> Iterator[int]:
        for masks in self.cells[level:]:
            for parent in masks:
                if parent & cell == cell:
                    yield (free & parent).bit_count()


def _lowest_bits(mask: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken


@dataclass(slots=True)
class _Draft:
    """A cell while the levels are being built."""

    type: str
    address: str
    index: int
    children: tuple[PhysicalCell, ...]
    parent: int


class ChainTopology:
    """One chain: all physical trees whose top cell has the same type.

    Attributes:
        name: type of the top cells.
        types: type names by level, ``types[0]`` unused, ``types[1]`` the leaf type.
        fan: children of a complete cell by level; ``fan[1]`` is 0.
        sizes: ``sizes[k][l]`` cells of level ``l`` in a complete cell of level ``k``.
        caps: devices of a bin of a quota cell by level: the cell's, at most a node's.
        levels_of: devices of a bin -> levels whose quota cells have such bins, ascending.
        base: first cell number of a level; ``base[levels + 1]`` is the number of cells.
        roots: the maximal complete cells; all that quotas can ever be made of.
        paths: level -> offset of a device -> path of its virtual address; filled on demand.
    """

    __slots__ = (
        "address",
        "base",
        "caps",
        "child_hi",
        "child_lo",
        "complete",
        "devices",
        "fan",
        "leaf_hi",
        "leaf_lo",
        "level",
        "levels",
        "levels_of",
        "name",
        "node_base",
        "node_level",
        "node_names",
        "node_of_leaf",
        "node_size",
        "parent",
        "paths",
        "roots",
        "shapes",
        "sizes",
        "types",
    )

    def __init__(
        self,
        name: str,
        cell_types: Mapping[str, CellType],
        tops: list[tuple[int, PhysicalCell]],
    ) -> None:
        self.name = name
        self.paths: dict[int, dict[int, str]] = {}
        self._read_types(cell_types)
        drafts = self._expand(cell_types, tops)
        self._number(drafts)
        self._measure()
        self._name_nodes(drafts)
        self._freeze()

    def _freeze(self) -> None:
        """Tuples of numbers and names cost the garbage collector nothing; lists are walked."""
        for name in _BY_CELL:
            setattr(self, name, tuple(getattr(self, name)))

    def __len__(self) -> int:
        """How many cells there are, all levels together."""
        return self.base[self.levels + 1]

    @property
    def leaf_count(self) -> int:
        """How many devices there are."""
        return self.base[2]

    @property
    def leaf_type(self) -> str:
        """Type of the devices."""
        return self.types[1]

    def level_named(self, type_name: str) -> int | None:
        """Level of a type in this chain, or None.

        ``within:socket`` and its like name a level by structure, whatever its type is called: the
        device, the lowest and the highest level between device and node, the node, the level
        above it. One below the node that is missing means the next larger one.
        """
        if type_name in self.types[1:]:
            return self.types.index(type_name)
        return {
            "within:device": 1,
            "within:pcie": min(2, self.node_level),
            "within:socket": min(max(self.node_level - 1, 2), self.node_level),
            "within:node": self.node_level,
            "within:rack": self.node_level + 1 if self.node_level < self.levels else None,
        }.get(type_name)

    def nodes_of(self, cell: int) -> range:
        """Numbers of the nodes at or below a cell of node level or higher."""
        return range(
            self.node_of_leaf[self.leaf_lo[cell]], self.node_of_leaf[self.leaf_hi[cell] - 1] + 1
        )

    def node_mask(self, cell: int) -> int:
        """Mask of a cell at or below node level, inside its node."""
        low = self.leaf_lo[cell]
        first = self.leaf_lo[self.node_base + self.node_of_leaf[low]]
        return ((1 << (self.leaf_hi[cell] - low)) - 1) << (low - first)

    def _read_types(self, cell_types: Mapping[str, CellType]) -> None:
        path = [self.name]
        while path[-1] in cell_types:
            child = cell_types[path[-1]].child
            if child in path:
                raise SpecError(
                    f"cell types run in a circle: {' > '.join([*path, child])}",
                    field=f"cell_types.{path[-1]}.child",
                    value=child,
                    remedy="let the types end in a device type",
                )
            path.append(child)
        marked = [t for t in path[:-1] if cell_types[t].node_level]
        if len(marked) != 1:
            raise SpecError(
                f"chain {self.name!r} has {len(marked)} node levels; a top cell must be at or"
                " above exactly one",
                field=f"cell_types.{self.name}",
                value=marked,
                remedy="set node_level (isNodeLevel) on the type that is one machine",
            )
        self.types = ["", *reversed(path)]
        self.levels = len(path)
        self.fan = [0, 0] + [cell_types[t].count for t in self.types[2:]]
        self.node_level = self.types.index(marked[0])
        self.sizes = [[0] * (self.levels + 1) for _ in range(self.levels + 1)]
        for high in range(1, self.levels + 1):
            self.sizes[high][high] = 1
            for low in range(high - 1, 0, -1):
                self.sizes[high][low] = self.sizes[high][low + 1] * self.fan[low + 1]
        self.node_size = self.sizes[self.node_level][1]
        self.caps = [0] + [min(size[1], self.node_size) for size in self.sizes[1:]]
        self.levels_of: dict[int, tuple[int, ...]] = {}
        for level in range(1, self.levels + 1):
            cap = self.caps[level]
            self.levels_of[cap] = (*self.levels_of.get(cap, ()), level)

    def _expand(
        self, cell_types: Mapping[str, CellType], tops: list[tuple[int, PhysicalCell]]
    ) -> list[list[_Draft]]:
        drafts: list[list[_Draft]] = [[] for _ in range(self.levels + 1)]
        drafts[self.levels] = [
            _Draft(self.name, cell.address or str(i), i, cell.children, -1) for i, cell in tops
        ]
        for level in range(self.levels, 1, -1):
            cell_type = cell_types[self.types[level]]
            for number, draft in enumerate(drafts[level]):
                _check_children(draft, cell_type)
                explicit = draft.children or (PhysicalCell(),) * cell_type.count
                if len(drafts[level - 1]) + len(explicit) > MAX_LEAVES:
                    raise SpecError(
                        f"chain {self.name!r} has more than {MAX_LEAVES} cells at one level",
                        field="physical",
                        value=cell_type.child,
                        remedy="split the cluster",
                    )
                for i, child in enumerate(explicit):
                    index = child_segment(cell_type, draft.index, i)
                    address = f"{draft.address}/{child.address or index}"
                    drafts[level - 1].append(
                        _Draft(cell_type.child, address, index, child.children, number)
                    )
        for draft in drafts[1]:
            if draft.children:
                raise SpecError(
                    f"device {draft.address!r} has children",
                    field="physical",
                    value=draft.address,
                    remedy="remove them, or define the device's type",
                )
        return drafts

    def _number(self, drafts: list[list[_Draft]]) -> None:
        self.base = [0, 0]
        for level in range(1, self.levels + 1):
            self.base.append(self.base[level] + len(drafts[level]))
        total = self.base[-1]
        self.parent = [-1] * total
        self.child_lo = [0] * total
        self.child_hi = [0] * total
        self.level = [0] * total
        self.address = [""] * total
        for level in range(1, self.levels + 1):
            base, above = self.base[level], self.base[level + 1]
            for i, draft in enumerate(drafts[level]):
                cell = base + i
                self.level[cell] = level
                self.address[cell] = draft.address
                if draft.parent >= 0:
                    parent = above + draft.parent
                    self.parent[cell] = parent
                    if self.child_hi[parent] == 0:
                        self.child_lo[parent] = cell
                    self.child_hi[parent] = cell + 1

    def _measure(self) -> None:
        total = len(self)
        self.leaf_lo = list(range(total))
        self.leaf_hi = [cell + 1 for cell in range(total)]
        self.complete = [True] * total
        for cell in range(self.base[2], total):
            low, high = self.child_lo[cell], self.child_hi[cell]
            self.leaf_lo[cell] = self.leaf_lo[low]
            self.leaf_hi[cell] = self.leaf_hi[high - 1]
            self.complete[cell] = high - low == self.fan[self.level[cell]] and all(
                self.complete[low:high]
            )
        self.roots = [
            cell
            for cell in range(total)
            if self.complete[cell]
            and (self.parent[cell] < 0 or not self.complete[self.parent[cell]])
        ]

    def _name_nodes(self, drafts: list[list[_Draft]]) -> None:
        self.node_base = self.base[self.node_level]
        nodes = range(self.node_base, self.base[self.node_level + 1])
        self.node_names = [self.address[cell].rpartition("/")[2] for cell in nodes]
        self.node_of_leaf = [0] * self.leaf_count
        self.shapes: list[NodeShape] = []
        shapes: dict[tuple[tuple[int, ...], ...], NodeShape] = {}
        for i, cell in enumerate(nodes):
            for leaf in range(self.leaf_lo[cell], self.leaf_hi[cell]):
                self.node_of_leaf[leaf] = i
            masks = self._masks_below(cell)
            self.shapes.append(shapes.setdefault(masks, NodeShape(masks)))
        self.devices = [_device_index(draft.address) for draft in drafts[1]]

    def _masks_below(self, node: int) -> tuple[tuple[int, ...], ...]:
        first = self.leaf_lo[node]
        levels = []
        low, high = node, node + 1
        while True:
            levels.append(
                tuple(
                    ((1 << (self.leaf_hi[c] - self.leaf_lo[c])) - 1) << (self.leaf_lo[c] - first)
                    for c in range(low, high)
                )
            )
            if self.level[low] == 1:
                return tuple(reversed(levels))
            low, high = self.child_lo[low], self.child_hi[high - 1]


def _check_children(draft: _Draft, cell_type: CellType) -> None:
    if len(draft.children) > cell_type.count:
        raise SpecError(
            f"cell {draft.address!r} lists {len(draft.children)} children; a {draft.type} has at"
            f" most {cell_type.count}",
            field="physical",
            value=draft.address,
            remedy="list fewer children, or raise the count of the type",
        )
    for child in draft.children:
        if child.type not in ("", cell_type.child):
            raise SpecError(
                f"cell {draft.address!r} has a child of type {child.type!r}; children of"
                f" {draft.type} are {cell_type.child}",
                field="physical",
                value=child.type,
                remedy=f"use {cell_type.child}, or leave the type out",
            )
        if "/" in child.address:
            raise SpecError(
                f"address {child.address!r} has a slash",
                field="physical",
                value=child.address,
                remedy="use one path segment without '/'",
            )


def _device_index(address: str) -> int:
    segment = address.rpartition("/")[2]
    if not (segment.isascii() and segment.isdigit()) or len(segment) > 9:
        raise SpecError(
            f"device {address!r}: the last segment {segment!r} is not a device index",
            field="physical",
            value=address,
            remedy="give devices whole numbers as addresses",
        )
    return int(segment)


class ClusterTopology:
    """All chains of a cluster, and where a node, a device or an address is found.

    Attributes:
        chains: chain by name, in the order of first appearance.
        leaf_types: device type -> names of its chains, descending by name.
        nodes: node name -> (chain, node number) pairs; a machine may hold devices of two chains.
        leaves: full leaf address -> (chain, leaf number).
        devices: (node name, device index) -> (chain, leaf number).
    """

    __slots__ = ("chains", "devices", "leaf_types", "leaves", "nodes")

    def __init__(self, spec: ClusterSpec) -> None:
        tops: dict[str, list[tuple[int, PhysicalCell]]] = {}
        for i, cell in enumerate(spec.physical):
            if cell.type not in spec.cell_types:
                raise SpecError(
                    f"top cell {i} has the unknown type {cell.type!r}",
                    field=f"physical[{i}].type",
                    value=cell.type,
                    remedy="define it in cell_types",
                )
            tops.setdefault(cell.type, []).append((i, cell))
        self.chains = {
            name: ChainTopology(name, spec.cell_types, cells) for name, cells in tops.items()
        }
        self.leaf_types: dict[str, tuple[str, ...]] = {}
        for name in sorted(self.chains, reverse=True):
            leaf = self.chains[name].leaf_type
            self.leaf_types[leaf] = (*self.leaf_types.get(leaf, ()), name)
        self._index()

    def _index(self) -> None:
        self.nodes: dict[str, list[tuple[str, int]]] = {}
        self.leaves: dict[str, tuple[str, int]] = {}
        self.devices: dict[tuple[str, int], tuple[str, int]] = {}
        for name, chain in self.chains.items():
            seen: dict[str, int] = {}
            for i, node in enumerate(chain.node_names):
                if seen.setdefault(node, i) != i:
                    raise _twice("node", node)
                self.nodes.setdefault(node, []).append((name, i))
            for leaf in range(chain.leaf_count):
                address = chain.address[leaf]
                if address in self.leaves:
                    raise _twice("address", address)
                self.leaves[address] = (name, leaf)
                key = (chain.node_names[chain.node_of_leaf[leaf]], chain.devices[leaf])
                if key in self.devices:
                    raise _twice("device", f"{key[0]}:{key[1]}")
                self.devices[key] = (name, leaf)


def _twice(what: str, value: str) -> SpecError:
    return SpecError(
        f"{what} {value!r} is used by two cells",
        field="physical",
        value=value,
        remedy="give every cell an address of its own",
    )
