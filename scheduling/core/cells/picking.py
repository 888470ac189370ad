"""Which physical cell an unbound quota cell gets, and the small values that searches share."""

from typing import NamedTuple, Protocol

from scheduling.core.cells.ledger import ChainLedger

SCAN = 64  # candidates compared where every one of them has victims


class Item(NamedTuple):
    """One instance to place.

    Attributes:
        size: devices.
        within: highest level of their common ancestor.
        member: index of the member it comes from.
    """

    size: int
    within: int
    member: int


class Spot(NamedTuple):
    """Where one instance goes: ``mask`` on ``node``."""

    item: Item
    node: int
    mask: int


class Cost(Protocol):
    """What taking devices would cost; nothing, if they have no user."""

    def occupied(self, node: int, mask: int) -> int:
        """The devices of a mask that have users who would have to go."""

    def by_user(self, node: int, mask: int) -> list[int]:
        """The mask split by user, the cheapest first."""

    def price(self, node: int, mask: int) -> tuple[float, ...]:
        """Price of the devices on top of what was taken before; all zero for free ones."""

    def take(self, node: int, mask: int) -> None:
        """The devices are taken: their users cost nothing any more."""

    def reset(self) -> None:
        """Nothing is taken any more."""


def choose_devices(ledger: ChainLedger, cost: Cost, node: int, free: int, item: Item) -> int:
    """Devices for an item out of ``free`` on a node: without users if possible, else few users.

    Returns:
        Their mask, or 0 when there are not enough within the item's level.
    """
    shape = ledger.topology.shapes[node]
    clean = free & ~cost.occupied(node, free)
    mask = shape.choose(clean, item.size, item.within)
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
    """Chooses the physical cell for an unbound quota cell, never one that another quota may need.

    The lowest level with a free cell is always safe to split; a higher one while cells are left
    over at every level between (``BuddyAllocator.reach``). Cells without users come first, then
    those in which the item finds devices without users, then those with the cheapest users.
    """

    def __init__(self, ledger: ChainLedger, allowed: int | None, cost: Cost) -> None:
        self.ledger = ledger
        self.allowed = allowed
        self.cost = cost

    def pick(self, level: int, item: Item) -> int:
        """A cell of ``level`` in which the item fits, or -1."""
        buddy = self.ledger.buddy
        high = buddy.reach(level)
        for holder_level in range(level, high + 1):
            if self.allowed is None:
                holder = buddy.first(holder_level, 0)
                if holder >= 0:
                    return self._leftmost(holder, level)
            else:
                cell = self._first_fit(level, holder_level, item, [0])
                if cell >= 0:
                    return cell
        for holder_level in range(level, high + 1):
            keys = [key for key in buddy.keys(holder_level) if key]
            cell = self._first_fit(level, holder_level, item, keys)
            if cell >= 0:
                return cell
        return self._cheapest(level, high, item)

    def _leftmost(self, holder: int, level: int) -> int:
        topology = self.ledger.topology
        while topology.level[holder] > level:
            holder = topology.child_lo[holder]
        return holder

    def _first_fit(self, level: int, holder_level: int, item: Item, keys: list[int]) -> int:
        buddy = self.ledger.buddy
        for key in keys:
            for holder in buddy.free_cells(holder_level, key):
                cell = self._descend(holder, level, item)
                if cell >= 0:
                    return cell
        return -1

    def _descend(self, cell: int, level: int, item: Item) -> int:
        """The first sub-cell with devices that cost nothing, least disturbed branches first."""
        topology, buddy = self.ledger.topology, self.ledger.buddy
        if topology.level[cell] == level:
            price = self._price(cell, item)
            return cell if price is not None and not any(price) else -1
        children = range(topology.child_lo[cell], topology.child_hi[cell])
        for child in sorted(children, key=lambda c: (buddy.bad[c] > 0, buddy.opportunistic[c], c)):
            found = self._descend(child, level, item)
            if found >= 0:
                return found
        return -1

    def _cheapest(self, level: int, high: int, item: Item) -> int:
        buddy = self.ledger.buddy
        best: tuple[tuple[float, ...], int] | None = None
        for holder_level in range(level, high + 1):
            seen = 0
            for key in buddy.keys(holder_level):
                for holder in buddy.free_cells(holder_level, key):
                    if seen > SCAN:
                        break
                    for cell in self._at_level(holder, level):
                        price = self._price(cell, item)
                        if price is not None:
                            seen += 1
                            if best is None or price < best[0]:
                                best = (price, cell)
        return best[1] if best else -1

    def _at_level(self, cell: int, level: int) -> range:
        topology = self.ledger.topology
        low, high = cell, cell + 1
        for _ in range(topology.level[cell] - level):
            low, high = topology.child_lo[low], topology.child_hi[high - 1]
        return range(low, high)

    def _price(self, cell: int, item: Item) -> tuple[float, ...] | None:
        """The least that the item costs inside an unowned cell; None when it does not fit."""
        ledger, topology = self.ledger, self.ledger.topology
        small = topology.level[cell] < topology.node_level
        best: tuple[float, ...] | None = None
        first = topology.node_of_leaf[topology.leaf_lo[cell]]
        for node in range(first, first + 1) if small else topology.nodes_of(cell):
            if self.allowed is not None and not self.allowed >> node & 1:
                continue
            free = ledger.healthy[node]
            if small:
                free &= topology.node_mask(cell)
            mask = choose_devices(ledger, self.cost, node, free, item)
            if mask:
                price = self.cost.price(node, mask)
                if best is None or price < best:
                    best = price
        return best
