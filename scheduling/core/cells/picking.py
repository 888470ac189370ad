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

    def price(self, node: int, mask: int) -> tuple[float, ...]:
        """Price of the devices on top of what was taken before; all zero for free ones."""

    def take(self, node: int, mask: int) -> None:
        """The devices are taken: their users cost nothing any more."""

    def reset(self) -> None:
        """Nothing is taken any more."""


class CellPicker:
    """Chooses the physical cell for an unbound quota cell, never one that another quota may need.

    The lowest level with a free cell is always safe to split; a higher one while cells are left
    over at every level between (``BuddyAllocator.reach``).
    """

    def __init__(self, ledger: ChainLedger, allowed: int | None, cost: Cost | None) -> None:
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
        if self.cost is None:
            return -1
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
            return cell if self._spot(cell, item, clean=True) is not None else -1
        children = range(topology.child_lo[cell], topology.child_hi[cell])
        for child in sorted(children, key=lambda c: (buddy.bad[c] > 0, buddy.opportunistic[c], c)):
            found = self._descend(child, level, item)
            if found >= 0:
                return found
        return -1

    def _cheapest(self, level: int, high: int, item: Item) -> int:
        assert self.cost is not None  # noqa: S101 (asked by the caller)
        topology, buddy = self.ledger.topology, self.ledger.buddy
        best: tuple[tuple[float, ...], int] | None = None
        seen = 0
        for holder_level in range(level, high + 1):
            for key in buddy.keys(holder_level):
                for holder in buddy.free_cells(holder_level, key):
                    for cell in self._at_level(holder, level):
                        spot = self._spot(cell, item, clean=False)
                        if spot is None:
                            continue
                        price = self.cost.price(*spot)
                        if best is None or price < best[0]:
                            best = (price, cell)
                        seen += 1
                    if seen > SCAN * topology.levels:
                        break
        return best[1] if best else -1

    def _at_level(self, cell: int, level: int) -> range:
        topology = self.ledger.topology
        low, high = cell, cell + 1
        for _ in range(topology.level[cell] - level):
            low, high = topology.child_lo[low], topology.child_hi[high - 1]
        return range(low, high)

    def _spot(self, cell: int, item: Item, *, clean: bool) -> tuple[int, int] | None:
        """(node, mask) for the item inside an unowned cell, or None."""
        ledger, topology = self.ledger, self.ledger.topology
        at_or_above = topology.level[cell] >= topology.node_level
        nodes = (
            topology.nodes_of(cell)
            if at_or_above
            else range(
                topology.node_of_leaf[topology.leaf_lo[cell]],
                topology.node_of_leaf[topology.leaf_lo[cell]] + 1,
            )
        )
        for node in nodes:
            if self.allowed is not None and not self.allowed >> node & 1:
                continue
            free = ledger.healthy[node]
            if not at_or_above:
                free &= topology.node_mask(cell)
            if clean:
                free &= ~ledger.opportunistic[node]
            mask = topology.shapes[node].choose(free, item.size, item.within)
            if mask:
                return node, mask
        return None
