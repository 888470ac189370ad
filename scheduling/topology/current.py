"""The current topology, parsed once per version, with cell trees for drawings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from scheduling.core.cells.spec import ClusterSpec
from scheduling.core.cells.topology import ChainTopology, ClusterTopology
from scheduling.core.inventory import level_words
from scheduling.core.jobspec import Within
from scheduling.topology.stored import StoredTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """A cell and its children.

    Attributes:
        level: display name of its level: device, pcie, socket, node, rack.
        type: its cell type.
        address: its full address.
        children: the cells inside; empty for a device.
        device: index of the device on its node; None for larger cells.
    """

    level: str
    type: str
    address: str
    children: tuple["CellView", ...] = ()
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLevel:
    """One level of a chain.

    Attributes:
        level: its display name.
        type: its cell type, which quotas refer to.
        number: counted from 1, the device.
        devices: in one complete cell.
        cells: complete cells in the cluster.
    """

    level: str
    type: str
    number: int
    devices: int
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """A chain: all cells whose top has one type.

    Attributes:
        levels: from the device up.
        node_level: number of the level that is one machine.
        devices: number of devices of the chain.
    """

    name: str
    device_type: str
    levels: tuple[ChainLevel, ...]
    node_level: int
    devices: int

    def level_of_type(self, type_name: str) -> ChainLevel | None:
        """Return the level with this cell type, or None."""
        return next((level for level in self.levels if level.type == type_name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlace:
    """Chain, level and devices of the cell at an address."""

    chain: str
    level: ChainLevel
    devices: int
    complete: bool


class TopologyNow:
    """One version of the topology and the data derived from it; treat it as frozen.

    Attributes:
        version: 0 before the first version.
        spec: cell types and physical cells, without virtual clusters.
        cells: the numbered cells.
    """

    def __init__(self, version: int, spec: ClusterSpec) -> None:
        self.version = version
        self.spec = spec
        self.cells = ClusterTopology(spec)

    @cached_property
    def chains(self) -> Mapping[str, ChainView]:
        """The chains by name, in the order of first appearance."""
        return {name: _chain_view(chain) for name, chain in self.cells.chains.items()}

    @cached_property
    def trees(self) -> Mapping[str, CellView]:
        """The cell tree of each node by name."""
        return {
            name: _node_tree(
                name, [_tree(self.cells.chains[chain], number) for chain, number in places]
            )
            for name, places in self.cells.nodes.items()
        }

    @cached_property
    def racks(self) -> Mapping[str, str]:
        """Address of the cell above each node; missing for a node without one."""
        above = {}
        for name, places in self.cells.nodes.items():
            for chain_name, number in places:
                chain = self.cells.chains[chain_name]
                parent = chain.parent[chain.node_base + number]
                if parent >= 0:
                    above[name] = chain.address[parent]
        return above

    @cached_property
    def has_racks(self) -> bool:
        """Whether any cell or rack contains several nodes, and thus can hold whole roles."""
        return bool(self.spec.groups.get("rack")) or any(
            chain.node_level < len(chain.levels) for chain in self.chains.values()
        )

    @cached_property
    def has_pools(self) -> bool:
        """Whether nodes are in pools: groups of racks."""
        return bool(self.spec.groups.get("pool")) or any(
            chain.node_level + 1 < len(chain.levels) for chain in self.chains.values()
        )

    @cached_property
    def levels_of_nodes(self) -> frozenset[Within]:
        """The levels of several nodes that jobs can name."""
        there = {Within.RACK: self.has_racks, Within.POOL: self.has_pools}
        return frozenset(within for within, has in there.items() if has)

    @cached_property
    def _places(self) -> Mapping[str, tuple[ChainTopology, int]]:
        return {
            address: (chain, cell)
            for chain in self.cells.chains.values()
            for cell, address in enumerate(chain.address)
        }

    def cell_at(self, address: str) -> CellPlace | None:
        """Return the cell at a full address, or None."""
        chain, cell = self._places.get(address, (None, 0))
        if chain is None:
            return None
        return CellPlace(
            chain=chain.name,
            level=self.chains[chain.name].levels[chain.level[cell] - 1],
            devices=chain.leaf_hi[cell] - chain.leaf_lo[cell],
            complete=chain.complete[cell],
        )

    def tree_of(self, node: str) -> CellView:
        """Return the cell tree of a node, or a single node cell if the topology lacks the node."""
        return self.trees.get(node) or CellView(level="node", type="", address=node)


def current_topology(using: str = "default") -> TopologyNow:
    """Load the newest version in one query."""
    return _with_views(StoredTopology.newest(using))


@lru_cache(maxsize=4)
def _with_views(stored: StoredTopology) -> TopologyNow:
    return TopologyNow(stored.version, stored.spec)


def _words(chain: ChainTopology) -> tuple[str, ...]:
    return level_words(chain.types[1:], node_level=chain.node_level)


def _chain_view(chain: ChainTopology) -> ChainView:
    complete = [0] * (chain.levels + 1)
    for cell, is_complete in enumerate(chain.complete):
        complete[chain.level[cell]] += is_complete
    return ChainView(
        name=chain.name,
        device_type=chain.leaf_type,
        levels=tuple(
            ChainLevel(
                level=word,
                type=chain.types[number],
                number=number,
                devices=chain.sizes[number][1],
                cells=complete[number],
            )
            for number, word in enumerate(_words(chain), start=1)
        ),
        node_level=chain.node_level,
        devices=chain.leaf_count,
    )


def _tree(chain: ChainTopology, number: int) -> CellView:
    words = _words(chain)

    def view(cell: int) -> CellView:
        level = chain.level[cell]
        below = range(chain.child_lo[cell], chain.child_hi[cell]) if level > 1 else range(0)
        return CellView(
            level=words[level - 1],
            type=chain.types[level],
            address=chain.address[cell],
            children=tuple(view(child) for child in below),
            device=chain.devices[cell] if level == 1 else None,
        )

    return view(chain.node_base + number)


def _node_tree(name: str, trees: list[CellView]) -> CellView:
    if len(trees) == 1:
        return trees[0]
    children = tuple(child for tree in trees for child in tree.children)
    return CellView(level="node", type="", address=name, children=children)
