"""Fragmentation of idle devices: how many of them a gang of each size can use.

A device is idle if it is healthy, its node is open, and no gang uses or has claimed it. An idle
device is stranded for a size if it belongs to no instance of that size: the instances up to a node
have devices of one node, and larger gangs have whole nodes. For a level, the instances are whole
idle cells.
"""

from collections.abc import Collection
from dataclasses import dataclass

from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.idle import idle_mask
from scheduling.core.cells.topology import ChainTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFragmentation:
    """The idle devices of one chain.

    Attributes:
        idle: number of idle devices.
        by_size: stranded devices by gang size in devices, ascending.
        by_level: stranded devices by level, from the device up.
    """

    chain: str
    leaf_type: str
    idle: int
    by_size: dict[int, int]
    by_level: tuple[int, ...]


def gang_sizes(chain: ChainTopology) -> tuple[int, ...]:
    """Return the powers of two up to the devices of a chain, and the size of its nodes."""
    sizes = {1 << power for power in range(chain.leaf_count.bit_length())} | {chain.node_size}
    return tuple(sorted(size for size in sizes if size <= chain.leaf_count))


def fragmentation(
    books: CellBooks, closed: Collection[str] = ()
) -> tuple[ChainFragmentation, ...]:
    """Return the fragmentation of each chain.

    Args:
        books: a cell engine.
        closed: names of nodes that accept no new work.
    """
    found = []
    for name, roster in books.rosters.items():
        chain = books.topology.chains[name]
        masks = [
            0 if chain.node_names[node] in closed else idle_mask(roster.ledger, node)
            for node in range(len(chain.node_names))
        ]
        idle = sum(mask.bit_count() for mask in masks)
        found.append(
            ChainFragmentation(
                chain=name,
                leaf_type=chain.leaf_type,
                idle=idle,
                by_size={size: idle - _usable(chain, masks, size) for size in gang_sizes(chain)},
                by_level=tuple(
                    idle - _in_whole_cells(chain, masks, level)
                    for level in range(1, chain.levels + 1)
                ),
            )
        )
    return tuple(found)


def _usable(chain: ChainTopology, masks: list[int], size: int) -> int:
    if size <= chain.node_size:
        return sum(mask.bit_count() // size * size for mask in masks)
    nodes = -(-size // chain.node_size)
    gangs = _whole_nodes(chain, masks, 0, len(masks)) // nodes
    return gangs * nodes * chain.node_size


def _in_whole_cells(chain: ChainTopology, masks: list[int], level: int) -> int:
    devices = chain.sizes[level][1]
    if level <= chain.node_level:
        return sum(
            devices
            for node, mask in enumerate(masks)
            if mask
            for cell in chain.shapes[node].cells[level - 1]
            if cell & mask == cell and cell.bit_count() == devices
        )
    count = 0
    for cell in range(chain.base[level], chain.base[level + 1]):
        nodes = chain.nodes_of(cell)
        whole = _whole_nodes(chain, masks, nodes.start, nodes.stop)
        count += chain.complete[cell] and whole * chain.node_size == devices
    return count * devices


def _whole_nodes(chain: ChainTopology, masks: list[int], start: int, stop: int) -> int:
    return sum(masks[node].bit_count() == chain.node_size for node in range(start, stop))
