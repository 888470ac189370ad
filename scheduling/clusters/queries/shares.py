"""Free devices and cells of a chain."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduling.core.cells.topology import ChainTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeLevel:
    """Free cells of one level that are not part of a larger free cell."""

    level: str
    type: str
    devices: int
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeChain:
    """Free devices and cells of one chain.

    Attributes:
        idle: devices available to a job now.
        levels: whole free cells, from the device up.
        largest_cell: number of devices of the largest free cell.
        largest_cell_level: display name of its level.
        largest_in_node: maximum number of idle devices on one node.
        nodes_with_idle: number of nodes with idle devices.
        nodes_whole: number of nodes without jobs.
    """

    chain: str
    device_type: str
    idle: int
    levels: tuple[FreeLevel, ...]
    largest_cell: int
    largest_cell_level: str
    largest_in_node: int
    nodes_with_idle: int
    nodes_whole: int


def free_chain(
    chain: ChainTopology, words: Sequence[str], idle_leaves: Iterable[int]
) -> FreeChain:
    """Return the free cells of a chain and the largest of them.

    Args:
        chain: the numbered cells.
        words: display names of its levels, from the device up.
        idle_leaves: numbers of the leaves available to a job now.
    """
    before = [0] * (chain.leaf_count + 1)
    for leaf in idle_leaves:
        before[leaf + 1] = 1
    for leaf in range(chain.leaf_count):
        before[leaf + 1] += before[leaf]
    counts = _whole_cells(chain, before)
    in_nodes = [
        before[chain.leaf_hi[cell]] - before[chain.leaf_lo[cell]]
        for cell in range(chain.node_base, chain.base[chain.node_level + 1])
    ]
    largest = max((level for level in counts if counts[level]), default=0)
    return FreeChain(
        chain=chain.name,
        device_type=chain.leaf_type,
        idle=before[-1],
        levels=tuple(
            FreeLevel(
                level=word,
                type=chain.types[level],
                devices=chain.sizes[level][1],
                cells=counts[level],
            )
            for level, word in enumerate(words, start=1)
        ),
        largest_cell=chain.sizes[largest][1] if largest else 0,
        largest_cell_level=words[largest - 1] if largest else "",
        largest_in_node=max(in_nodes, default=0),
        nodes_with_idle=sum(count > 0 for count in in_nodes),
        nodes_whole=sum(count == chain.node_size for count in in_nodes),
    )


def _whole_cells(chain: ChainTopology, before: Sequence[int]) -> dict[int, int]:
    """Return the number of free cells by level that are not part of a larger free cell."""
    counts: dict[int, int] = defaultdict(int)
    is_free = [False] * len(chain)
    for cell in range(len(chain) - 1, -1, -1):
        parent = chain.parent[cell]
        low, high = chain.leaf_lo[cell], chain.leaf_hi[cell]
        is_free[cell] = chain.complete[cell] and before[high] - before[low] == high - low
        if is_free[cell] and (parent < 0 or not is_free[parent]):
            counts[chain.level[cell]] += 1
    return counts
