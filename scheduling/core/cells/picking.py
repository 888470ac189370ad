"""Choosing devices for an instance, and physical cells for unbound quota cells."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from scheduling.core.cells import avoiding
from scheduling.core.cells.ledger import ChainLedger

SCAN = 64  # maximum number of compared candidates if each has victims


class Item(NamedTuple):
    """An instance to place.

    Attributes:
        size: number of devices.
        within: highest level of their common ancestor.
        member: index of the member it comes from.
    """

    size: int
    within: int
    member: int


class Spot(NamedTuple):
    """The placement of an instance: the devices in ``mask`` on ``node``."""

    item: Item
    node: int
    mask: int


class Cost(Protocol):
    """The cost of taking devices from their users; zero for devices without users."""

    def occupied(self, node: int, mask: int) -> int:
        """Return the devices of a mask whose users would be evicted."""

    def by_user(self, node: int, mask: int) -> list[int]:
        """Split the mask by user, the cheapest first."""

    def price(self, node: int, mask: int) -> tuple[float, ...]:
        """Return the additional price of devices after those already taken; 0 if free."""

    def take(self, node: int, mask: int) -> None:
        """Take devices: further devices of their users cost nothing."""

    def reset(self) -> None:
        """Reset to no taken devices."""


def choose_devices(ledger: ChainLedger, cost: Cost, node: int, free: int, item: Item) -> int:
    """Choose devices for an item from ``free`` on a node, with as few users as possible.

    Returns:
        Their mask, or 0 if no cell of the item's level has enough.
    """
    shape = ledger.topology.shapes[node]
    if not free & ledger.opportunistic[node]:
        return avoiding.choose(ledger, node, free, item.size, item.within)
    clean = free & ~cost.occupied(node, free)
    mask = avoiding.choose(ledger, node, clean, item.size, item.within)
    if mask:
        return mask
    parts = cost.by_user(node, free & ~clean)
    for part in parts:
        mask = shape.choose(clean | part, item.size, item.within)
        if mask:
            return mask
    for part in parts:
        clean |= part
        mask = shape.choose(clean, item.size, item.within)
        if mask:
            return mask
    return 0


class CellPicker:
    """Chooses the physical cell for an unbound quota cell, never one that another quota needs.

    A free cell of the lowest such level is always safe to split. One of a higher level is safe
    while every level in between has a spare cell (``BuddyAllocator.reach``). Sound cells (fully
    healthy and allowed) come first, so that opportunistic users never reduce the capacity of a
    virtual cluster. Among equal cells the picker takes the one with the cheapest users.
    """

    __slots__ = ("allowed", "cost", "ledger", "reserved")

    def __init__(
        self,
        ledger: ChainLedger,
        allowed: int | None,
        cost: Cost,
        reserved: frozenset[int] | None = None,
    ) -> None:
        self.ledger = ledger
        self.allowed = allowed
        self.cost = cost
        self.reserved = reserved

    def pick(self, level: int, item: Item) -> int:
        """Pick a cell of ``level`` in which the item fits, or -1."""
        if self.reserved is not None:
            return self._reserved(self.reserved, level, item)
        cell = self._pick(level, item)
        return self._spared(cell, item) if cell >= 0 and self.ledger.avoided else cell

    def _spared(self, cell: int, item: Item) -> int:
        """Return ``cell``, or an equal one with fewer devices to avoid.

        A cell is equal if it is sound, costs no more, and is in an equally used free cell of the
        same level.
        """
        buddy, topology = self.ledger.buddy, self.ledger.topology
        left, price = self._avoided_in(cell), self._price(cell, item)
        if not left or price is None or not self._is_sound(cell):
            return cell
        holder, level = buddy.free_holder(cell), topology.level[cell]
        others = (
            other
            for equal in buddy.free_cells(topology.level[holder], buddy.opportunistic[holder])
            for other in self._descend(equal, level)
        )
        for other in islice(others, SCAN):
            number = self._avoided_in(other)
            if number < left and self._is_sound(other):
                cost = self._price(other, item)
                if cost is not None and cost <= price:
                    cell, left, self.ledger.has_swerved = other, number, True
                    if not left:
                        break
        return cell

    def _avoided_in(self, cell: int) -> int:
        avoided = self.ledger.avoided
        return sum((mask & avoided.get(node, 0)).bit_count() for node, mask in self.usable(cell))

    def _pick(self, level: int, item: Item) -> int:
        buddy = self.ledger.buddy
        sound = self.allowed is None and buddy.healthy_left == buddy.total_left
        if sound:
            cell = buddy.first(level, 0)
            if cell >= 0:
                return cell
        high = buddy.reach(level)
        if sound:
            for holder_level in range(level + 1, high + 1):
                holder = buddy.first(holder_level, 0)
                if holder >= 0:
                    return self._leftmost(holder, level)
            return self._cheapest(range(level, high + 1), level, item)
        # Large healthy cells are scarce: do not split more of them than in an empty chain.
        for holder_level in range(level, high + 1):
            cell = self._cheapest(range(holder_level, holder_level + 1), level, item)
            if cell >= 0:
                return cell
        return self._least_damaged(range(level, high + 1), level, item)

    def candidates(self, level: int, item: Item) -> Iterator[int]:
        """Yield the cells of a level that may be picked for an item, damaged ones included."""
        if self.reserved is None:
            cells = self._below(range(level, self.ledger.buddy.reach(level) + 1), level)
        else:
            free, levels = self.ledger.buddy.free_holder, self.ledger.topology.level
            cells = (
                cell for cell in sorted(self.reserved) if levels[cell] == level and free(cell) >= 0
            )
        return (cell for cell in cells if self._price(cell, item) is not None)

    def _reserved(self, cells: frozenset[int], level: int, item: Item) -> int:
        """Return the reserved cell of a level with the cheapest users, or -1."""
        best: tuple[tuple[float, ...], int] | None = None
        for cell in sorted(cells):
            if self.ledger.topology.level[cell] != level:
                continue
            price = self._price(cell, item) if self.ledger.buddy.free_holder(cell) >= 0 else None
            if price is not None and (best is None or price < best[0]):
                best = (price, cell)
        return best[1] if best else -1

    def _leftmost(self, holder: int, level: int) -> int:
        topology = self.ledger.topology
        while topology.level[holder] > level:
            holder = topology.child_lo[holder]
        return holder

    def _cheapest(self, holders: range, level: int, item: Item) -> int:
        """Return the sound cell with the cheapest users, or -1; less used branches come first."""
        best: tuple[tuple[float, ...], int] | None = None
        seen = 0
        for cell in self._below(holders, level):
            if not self._is_sound(cell):
                continue
            price = self._price(cell, item)
            if price is None:
                continue
            if best is None or price < best[0]:
                best = (price, cell)
            seen += 1
            if seen > SCAN or not any(price):
                break
        return best[1] if best else -1

    def _least_damaged(self, holders: range, level: int, item: Item) -> int:
        """Return the cell with the most usable devices, then in the largest pieces, or -1."""
        best: tuple[int, list[int], tuple[float, ...], int] | None = None
        for cell in self._below(holders, level):
            price = self._price(cell, item)
            if price is None:
                continue
            pieces = sorted(-mask.bit_count() for _, mask in self.usable(cell))
            worth = (sum(pieces), pieces, price, cell)
            if best is None or worth < best:
                best = worth
        return best[3] if best else -1

    def _below(self, holders: range, level: int) -> Iterator[int]:
        """Yield the cells of a level in free cells of these levels, least used branches first."""
        buddy = self.ledger.buddy
        for holder_level in holders:
            for key in buddy.keys(holder_level):
                for holder in buddy.free_cells(holder_level, key):
                    yield from self._descend(holder, level)

    def _descend(self, cell: int, level: int) -> Iterator[int]:
        topology, buddy = self.ledger.topology, self.ledger.buddy
        if topology.level[cell] == level:
            yield cell
            return
        children = range(topology.child_lo[cell], topology.child_hi[cell])
        for child in sorted(children, key=lambda c: (buddy.bad[c] > 0, buddy.opportunistic[c], c)):
            yield from self._descend(child, level)

    def _is_sound(self, cell: int) -> bool:
        if self.ledger.buddy.bad[cell]:
            return False
        if self.allowed is None:
            return True
        nodes = self._nodes(cell)
        wanted = (1 << len(nodes)) - 1
        return self.allowed >> nodes.start & wanted == wanted

    def _nodes(self, cell: int) -> range:
        topology = self.ledger.topology
        if topology.level[cell] >= topology.node_level:
            return topology.nodes_of(cell)
        node = topology.node_of_leaf[topology.leaf_lo[cell]]
        return range(node, node + 1)

    def usable(self, cell: int) -> Iterator[tuple[int, int]]:
        """Yield (node, usable devices of the cell) for the nodes of a cell."""
        ledger, topology = self.ledger, self.ledger.topology
        small = topology.level[cell] < topology.node_level
        for node in self._nodes(cell):
            if self.allowed is None or self.allowed >> node & 1:
                free = ledger.healthy[node]
                yield node, free & topology.node_mask(cell) if small else free

    def _price(self, cell: int, item: Item) -> tuple[float, ...] | None:
        """Return the lowest price of the item inside an unowned cell; None if it does not fit."""
        best: tuple[float, ...] | None = None
        for node, free in self.usable(cell):
            mask = choose_devices(self.ledger, self.cost, node, free, item)
            if mask:
                price = self.cost.price(node, mask)
                if best is None or price < best:
                    best = price
                if not any(price):
                    break
        return best
