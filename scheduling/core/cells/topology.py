"""The immutable topology of a cluster: numbered cells, addresses, nodes and devices.

Cells of a chain are numbered level by level, leaves first, so that cell ``c`` of level 1 is leaf
``c`` and the children of a cell are a range. Values by cell are tuples: the garbage collector
traverses lists even if they have numbers only.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from scheduling.core.cells.cell_tree import (
    TreeCell,
    build_levels,
    device_index,
    level_word,
    type_path,
)
from scheduling.core.cells.errors import SpecError
from scheduling.core.cells.spec import CellType, ClusterSpec, PhysicalCell

_NAMED = frozenset({"nvlink", "numa"})
_SWITCHES = frozenset({"pcie", "switch"})


class ChainTopology:
    """One chain: all physical trees whose top cell has the same type.

    Attributes:
        name: type of the top cells.
        types: type names by level, ``types[0]`` unused, ``types[1]`` the leaf type.
        fan: children of a complete cell by level; ``fan[1]`` is 0.
        sizes: ``sizes[k][l]`` cells of level ``l`` in a complete cell of level ``k``.
        caps: devices of a bin of a quota cell by level: the cell's, at most a node's.
        levels_of: devices of a bin -> levels whose quota cells have such bins, ascending.
        bin_sizes: bitmap of the devices of bins of quota cells.
        named: levels by names such as ``within:socket``.
        groups: bitmaps of nodes by names such as ``within:rack``, for levels that the chain lacks;
            a node without a group is alone.
        base: first cell number of a level; ``base[levels + 1]`` is the number of cells.
        roots: the maximal complete cells; quota cells are always inside one.
        paths: level -> paths of the virtual addresses of a complete cell's devices, in order;
            filled on demand.
    """

    __slots__ = (
        "address",
        "base",
        "bin_sizes",
        "caps",
        "child_hi",
        "child_lo",
        "complete",
        "devices",
        "fan",
        "groups",
        "leaf_hi",
        "leaf_lo",
        "level",
        "levels",
        "levels_of",
        "name",
        "named",
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
        self.paths: dict[int, list[str]] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        self._measure_types(cell_types)
        self.named = self._levels_by_name()
        cells = build_levels(self.types, cell_types, tops)
        self._number(cells)
        self._measure()
        self._name_nodes(cells)

    def __len__(self) -> int:
        """Return the number of cells of all levels."""
        return self.base[self.levels + 1]

    @property
    def leaf_count(self) -> int:
        """Number of devices."""
        return self.base[2]

    @property
    def leaf_type(self) -> str:
        """The device type."""
        return self.types[1]

    def level_named(self, type_name: str) -> int | None:
        """Return the level of a cell type in this chain, or None.

        Names such as ``within:socket`` select a level by structure, since levels have no agreed
        names: the device, the lowest and the highest level between device and node, the node, and
        the level above it. Only NVLink domains and NUMA nodes are known by name, and a PCIe switch
        is not a socket. A missing level below the node means the next larger one.
        """
        if type_name in self.types[1:]:
            return self.types.index(type_name)
        return self.named.get(type_name)

    def group_nodes(self, kind: str, members: Mapping[str, str]) -> None:
        """Note the groups of the nodes, unless the chain has cells of this kind."""
        if self.level_named(f"within:{kind}") is not None:
            return
        bits: dict[tuple[bool, str], int] = {}
        for number, node in enumerate(self.node_names):
            key = (node in members, members.get(node, node))
            bits[key] = bits.get(key, 0) | 1 << number
        self.groups[f"within:{kind}"] = tuple(bits.values())

    def widest(self, within: str) -> int | None:
        """Return the devices of the largest cell or group of a level at or above the node.

        None: the chain has neither.
        """
        level = self.level_named(within)
        if level is not None:
            return self.sizes[max(level, self.node_level)][1]
        found = self.groups.get(within)
        if found is None:
            return None
        sizes = [shape.size for shape in self.shapes]
        return max(
            sum(size for number, size in enumerate(sizes) if bits >> number & 1) for bits in found
        )

    def has_level(self, word: str) -> bool:
        """Return whether a level between device and node has this name."""
        return any(word in words for words in self._words_inside().values())

    def _levels_by_name(self) -> dict[str, int]:
        """Return the levels of the names ``within:...``, without that of a missing rack."""
        inside = self._words_inside()
        plain = [level for level, words in inside.items() if not words <= _NAMED]
        sockets = [n for n in plain if "socket" in inside[n] or not inside[n] & _SWITCHES]
        socket = sockets[-1] if sockets else self.node_level
        found = {
            "within:device": 1,
            "within:pcie": plain[0] if plain else self.node_level,
            "within:socket": socket,
            "within:node": self.node_level,
        }
        for word, missing in (("nvlink", self.node_level), ("numa", socket)):
            found[f"within:{word}"] = next((n for n in inside if word in inside[n]), missing)
        if self.node_level < self.levels:
            found["within:rack"] = self.node_level + 1
        if self.node_level + 1 < self.levels:
            found["within:pool"] = self.node_level + 2
        return found

    def _words_inside(self) -> dict[int, set[str]]:
        return {
            level: set(level_word(self.types[level]).split("+"))
            for level in range(2, self.node_level)
        }

    def nodes_of(self, cell: int) -> range:
        """Return the numbers of the nodes at or below a cell of node level or higher."""
        return range(
            self.node_of_leaf[self.leaf_lo[cell]], self.node_of_leaf[self.leaf_hi[cell] - 1] + 1
        )

    def devices_of(self, node: int) -> tuple[int, ...]:
        """Return the indices of the devices of a node, in the order of its masks."""
        cell = self.node_base + node
        return self.devices[self.leaf_lo[cell] : self.leaf_hi[cell]]

    def node_mask(self, cell: int) -> int:
        """Return the mask of a cell at or below node level, inside its node."""
        low = self.leaf_lo[cell]
        first = self.leaf_lo[self.node_base + self.node_of_leaf[low]]
        return ((1 << (self.leaf_hi[cell] - low)) - 1) << (low - first)

    def _measure_types(self, cell_types: Mapping[str, CellType]) -> None:
        path, node = type_path(self.name, cell_types)
        self.types = ["", *reversed(path)]
        self.levels = len(path)
        self.fan = [0, 0] + [cell_types[t].count for t in self.types[2:]]
        self.node_level = self.types.index(node)
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
        self.bin_sizes = sum(1 << cap for cap in self.levels_of)

    def _number(self, cells: list[list[TreeCell]]) -> None:
        self.base = [0, 0]
        for level in range(1, self.levels + 1):
            self.base.append(self.base[level] + len(cells[level]))
        total = self.base[-1]
        child_lo, child_hi = [0] * total, [0] * total
        parents: list[int] = []
        for level in range(1, self.levels + 1):
            above = self.base[level + 1]
            for tree_cell in cells[level]:
                cell, parent = (
                    len(parents),
                    above + tree_cell.parent if tree_cell.parent >= 0 else -1,
                )
                parents.append(parent)
                if parent >= 0:
                    if child_hi[parent] == 0:
                        child_lo[parent] = cell
                    child_hi[parent] = cell + 1
        self.parent = tuple(parents)
        self.child_lo, self.child_hi = tuple(child_lo), tuple(child_hi)
        self.level = tuple(n for n in range(1, self.levels + 1) for _ in cells[n])
        self.address = tuple(tree_cell.address for level in cells[1:] for tree_cell in level)

    def _measure(self) -> None:
        total = len(self)
        leaf_lo, leaf_hi = list(range(total)), list(range(1, total + 1))
        complete = [True] * total
        for cell in range(self.base[2], total):
            low, high = self.child_lo[cell], self.child_hi[cell]
            leaf_lo[cell], leaf_hi[cell] = leaf_lo[low], leaf_hi[high - 1]
            whole = high - low == self.fan[self.level[cell]]
            complete[cell] = whole and all(complete[low:high])
        self.leaf_lo, self.leaf_hi = tuple(leaf_lo), tuple(leaf_hi)
        self.complete = tuple(complete)
        self.roots = [
            cell
            for cell in range(total)
            if self.complete[cell]
            and (self.parent[cell] < 0 or not self.complete[self.parent[cell]])
        ]

    def _name_nodes(self, cells: list[list[TreeCell]]) -> None:
        self.node_base = self.base[self.node_level]
        nodes = range(self.node_base, self.base[self.node_level + 1])
        self.node_names = [self.address[cell].rpartition("/")[2] for cell in nodes]
        node_of_leaf = [0] * self.leaf_count
        self.shapes: list[NodeShape] = []
        shapes: dict[tuple[tuple[int, ...], ...], NodeShape] = {}
        for i, cell in enumerate(nodes):
            for leaf in range(self.leaf_lo[cell], self.leaf_hi[cell]):
                node_of_leaf[leaf] = i
            masks = self._masks_below(cell)
            self.shapes.append(shapes.setdefault(masks, NodeShape(masks)))
        self.node_of_leaf = tuple(node_of_leaf)
        self.devices = tuple(device_index(tree_cell.address) for tree_cell in cells[1])

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


class ClusterTopology:
    """The chains of a cluster, with look-ups by node, device and address.

    Attributes:
        chains: chain by name, in the order of first appearance.
        leaf_types: device type -> names of its chains, descending by name.
        nodes: node name -> (chain, node number) pairs; a machine may hold devices of two chains.
        leaves: full leaf address -> (chain, leaf number).
        devices: (node name, device index) -> (chain, leaf number).
        located: cache of ``restoring``: placements by identity, with their locations.
    """

    __slots__ = ("chains", "devices", "leaf_types", "leaves", "located", "nodes")

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
        for kind, members in spec.groups.items():
            for chain in self.chains.values():
                chain.group_nodes(kind, members)
        self.leaf_types: dict[str, tuple[str, ...]] = {}
        for name in sorted(self.chains, reverse=True):
            leaf = self.chains[name].leaf_type
            self.leaf_types[leaf] = (*self.leaf_types.get(leaf, ()), name)
        self.located: dict[int, Any] = {}
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
        remedy="give each cell a unique address",
    )


class NodeShape:
    """The cells inside a node; chooses leaves in the tightest cell that has enough of them.

    Masks have bit ``i`` for the ``i``-th leaf of the node. Results are cached, so a fragmented
    node costs one walk over its cells, then one dictionary look-up.
    """

    __slots__ = ("_memo", "cells", "full", "size")

    def __init__(self, cells: tuple[tuple[int, ...], ...]) -> None:
        self.cells = cells  # cells[level - 1] = masks of the sub-cells at that level
        self.full = cells[-1][0]
        self.size = self.full.bit_count()
        self._memo: dict[tuple[int, int], tuple[int, int]] = {}

    def choose(self, free: int, count: int, highest: int) -> int:
        """Choose ``count`` of the ``free`` leaves with the lowest common ancestor; 0 if too few.

        Among equally tight sub-cells the one with the fewest free leaves wins, then its parents',
        then the first in the order of the configuration.

        Args:
            free: mask of the free leaves.
            count: number of leaves, at least 1.
            highest: highest level of the common ancestor.
        """
        found = self._memo.get((free, count))
        if found is None:
            found = self._memo[free, count] = self._search(free, count)
        level, mask = found
        return mask if level <= highest else 0

    def level_of(self, mask: int) -> int:
        """Return the level of the lowest common ancestor of the leaves in ``mask``."""
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
