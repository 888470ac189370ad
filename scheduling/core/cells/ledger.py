"""Who owns and who uses what in one chain: pools of quota, node masks, and the buckets for search.

A virtual cell is bound to a physical cell with all its sub-cells in order, so the binding of a
whole tree is one entry. An unbound quota cell is empty and has no state beyond being counted;
children of one cell are interchangeable, so nothing is lost by that.
"""

from collections.abc import Callable, Iterator
from typing import Any

from scheduling.core.cells.buddy import BuddyAllocator
from scheduling.core.cells.topology import ChainTopology

Undo = list[tuple[Callable[..., None], tuple[Any, ...]]]


class Pool:
    """The share of one virtual cluster in one chain, or one pinned cell of it.

    Attributes:
        number: index in the ledger's list of pools.
        vc: virtual cluster.
        pinned: id of the pinned cell, or None for the ordinary quota.
        slots: numbers of the preassigned virtual cells by level.
        unbound: how many of them have no physical cell, by level.
        masks: node -> mask of the devices owned there.
        avail: avail[n] = bitmap of nodes with n owned, healthy devices free of guaranteed jobs.
        clean: the same for those free of opportunistic jobs too.
    """

    __slots__ = (
        "_free_slots",
        "_held",
        "avail",
        "clean",
        "masks",
        "number",
        "pinned",
        "slots",
        "unbound",
        "vc",
    )

    def __init__(
        self, number: int, vc: str, pinned: str | None, levels: int, node_size: int
    ) -> None:
        self.number = number
        self.vc = vc
        self.pinned = pinned
        self.slots: list[list[int]] = [[] for _ in range(levels + 1)]
        self.unbound = [0] * (levels + 1)
        self._free_slots = [0] * (levels + 1)
        self.masks: dict[int, int] = {}
        self.avail = [0] * (node_size + 1)
        self.clean = [0] * (node_size + 1)
        self._held: dict[int, tuple[int, int]] = {}

    def copy(self) -> "Pool":
        """An independent pool in the same state."""
        other = object.__new__(Pool)
        other.number, other.vc, other.pinned, other.slots = (
            self.number,
            self.vc,
            self.pinned,
            self.slots,
        )
        other.unbound = list(self.unbound)
        other._free_slots = list(self._free_slots)
        other.masks = dict(self.masks)
        other.avail = list(self.avail)
        other.clean = list(self.clean)
        other._held = dict(self._held)
        return other

    def add_slot(self, level: int, slot: int) -> None:
        """One more preassigned cell of the virtual cluster."""
        self._free_slots[level] |= 1 << len(self.slots[level])
        self.slots[level].append(slot)
        self.unbound[level] += 1

    def take_slot(self, level: int, position: int | None = None) -> int:
        """Bind the first (or a certain) unbound preassigned cell of a level; its position."""
        free = self._free_slots[level]
        if position is None:
            position = (free & -free).bit_length() - 1
        self._free_slots[level] = free & ~(1 << position)
        self.unbound[level] -= 1
        return position

    def return_slot(self, level: int, position: int) -> None:
        """The inverse of ``take_slot``."""
        self._free_slots[level] |= 1 << position
        self.unbound[level] += 1

    def count(self, node: int, avail: int, clean: int) -> None:
        """Move a node to the buckets of its new counts."""
        before = self._held.get(node)
        if before == (avail, clean):
            return
        bit = 1 << node
        if before is not None:
            self.avail[before[0]] ^= bit
            self.clean[before[1]] ^= bit
        self.avail[avail] |= bit
        self.clean[clean] |= bit
        self._held[node] = (avail, clean)

    def forget(self, node: int) -> None:
        """The pool owns nothing on a node any more."""
        avail, clean = self._held.pop(node)
        bit = 1 << node
        self.avail[avail] ^= bit
        self.clean[clean] ^= bit


class Owned:
    """A physical cell that is bound to a preassigned virtual cell.

    Attributes:
        pool: its pool's number.
        position: which of the pool's preassigned cells of that level.
        used: devices in it with guaranteed users or claims.
        counted: whether it was taken from the free list (an incomplete pinned cell is not).
    """

    __slots__ = ("counted", "pool", "position", "used")

    def __init__(self, pool: int, position: int, *, counted: bool) -> None:
        self.pool = pool
        self.position = position
        self.used = 0
        self.counted = counted


class ChainLedger:
    """The moving side of one chain.

    Attributes:
        healthy: mask of healthy devices by node.
        guaranteed: mask of devices that a guaranteed gang uses or has claimed, by node.
        opportunistic: mask of devices with an opportunistic user and no claim, by node.
        owned: physical cell -> who owns it.
        doomed: owned, unused cells with bad devices that a quota cannot avoid.
        idle: (opportunistic devices, idle healthy devices) -> bitmap of nodes.
        log: undo log of a search, or None outside of one.
    """

    __slots__ = (
        "_idle_held",
        "bins",
        "buddy",
        "doomed",
        "guaranteed",
        "healthy",
        "idle",
        "log",
        "opportunistic",
        "owned",
        "pools",
        "topology",
    )

    def __init__(self, topology: ChainTopology) -> None:
        self.topology = topology
        self.buddy = BuddyAllocator(topology)
        nodes = len(topology.node_names)
        self.healthy = [shape.full for shape in topology.shapes]
        self.guaranteed = [0] * nodes
        self.opportunistic = [0] * nodes
        self.pools: list[Pool] = []
        self.bins: list[tuple[int, ...]] = [()] * nodes
        self.owned: dict[int, Owned] = {}
        self.doomed: set[int] = set()
        self.idle: dict[tuple[int, int], int] = {}
        self._idle_held = [(0, shape.size) for shape in topology.shapes]
        for node, held in enumerate(self._idle_held):
            self.idle[held] = self.idle.get(held, 0) | 1 << node
        self.log: Undo | None = None

    def copy(self) -> "ChainLedger":
        """An independent ledger in the same state."""
        other = object.__new__(ChainLedger)
        other.topology = self.topology
        other.buddy = self.buddy.copy()
        other.healthy = list(self.healthy)
        other.guaranteed = list(self.guaranteed)
        other.opportunistic = list(self.opportunistic)
        other.pools = [pool.copy() for pool in self.pools]
        other.bins = list(self.bins)
        other.owned = {}
        for cell, owned in self.owned.items():
            twin = Owned(owned.pool, owned.position, counted=owned.counted)
            twin.used = owned.used
            other.owned[cell] = twin
        other.doomed = set(self.doomed)
        other.idle = dict(self.idle)
        other._idle_held = list(self._idle_held)
        other.log = None
        return other

    # Ownership of cells

    def add_pool(self, vc: str, pinned: str | None) -> Pool:
        """A new, empty pool."""
        topology = self.topology
        size = max((shape.size for shape in topology.shapes), default=0)
        pool = Pool(len(self.pools), vc, pinned, topology.levels, max(size, topology.node_size))
        self.pools.append(pool)
        return pool

    def own(self, pool: Pool, cell: int, position: int | None = None) -> None:
        """Bind ``cell``, which is in free cells, to a preassigned cell of ``pool``."""
        level = self.topology.level[cell]
        self.buddy.allocate(cell)
        self.buddy.claimed[level] -= 1
        self.adopt(pool, cell, counted=True, position=position)
        if self.log is not None:
            self.log.append((self._disown, (cell,)))

    def adopt(self, pool: Pool, cell: int, *, counted: bool, position: int | None = None) -> None:
        """Bind without touching the free list (start-up of incomplete pinned cells)."""
        level = self.topology.level[cell]
        position = pool.take_slot(level, position)
        self.owned[cell] = Owned(pool.number, position, counted=counted)
        self._spread(pool, cell, owning=True)

    def disown(self, cell: int) -> None:
        """Unbind ``cell`` and give it back to the free list."""
        owned = self.owned[cell]
        self._disown(cell)
        if self.log is not None:
            self.log.append((self._own_again, (owned.pool, cell, owned.position)))

    def _own_again(self, pool: int, cell: int, position: int) -> None:
        log, self.log = self.log, None
        self.own(self.pools[pool], cell, position)
        self.log = log

    def _disown(self, cell: int) -> None:
        owned = self.owned.pop(cell)
        pool = self.pools[owned.pool]
        level = self.topology.level[cell]
        pool.return_slot(level, owned.position)
        self.buddy.claimed[level] += 1
        self.buddy.release(cell)
        self._spread(pool, cell, owning=False)

    def _spread(self, pool: Pool, cell: int, *, owning: bool) -> None:
        topology, masks = self.topology, pool.masks
        if topology.level[cell] < topology.node_level:
            node = topology.node_of_leaf[topology.leaf_lo[cell]]
            mask = topology.node_mask(cell)
            self._set_mask(
                pool, node, masks.get(node, 0) | mask if owning else masks[node] & ~mask
            )
            return
        for node in topology.nodes_of(cell):
            self._set_mask(pool, node, topology.shapes[node].full if owning else 0)

    def _set_mask(self, pool: Pool, node: int, mask: int) -> None:
        if mask:
            if node not in pool.masks:
                self.bins[node] = (*self.bins[node], pool.number)
            pool.masks[node] = mask
        else:
            del pool.masks[node]
            self.bins[node] = tuple(n for n in self.bins[node] if n != pool.number)
            pool.forget(node)
        self.refresh(node)

    def holders(self, node: int, mask: int) -> Iterator[tuple[int, int]]:
        """Owned cells under a mask of devices: (cell, how many of the devices are in it)."""
        topology = self.topology
        first = topology.leaf_lo[topology.node_base + node]
        while mask:
            leaf = first + (mask & -mask).bit_length() - 1
            cell = self.buddy.allocated_holder(leaf)
            if cell not in self.owned:
                cell = self._incomplete_holder(leaf)
            if topology.level[cell] >= topology.node_level:
                yield cell, mask.bit_count()
                return
            part = mask & topology.node_mask(cell)
            yield cell, part.bit_count()
            mask ^= part

    def _incomplete_holder(self, leaf: int) -> int:
        cell = leaf
        while cell not in self.owned:
            cell = self.topology.parent[cell]
        return cell

    # Use of devices

    def occupy(self, node: int, mask: int) -> None:
        """A guaranteed gang uses or claims devices of cells that its pool owns."""
        for cell, count in self.holders(node, mask):
            self.owned[cell].used += count
        self.guaranteed[node] |= mask
        self.refresh(node)
        if self.log is not None:
            self.log.append((self._vacate, (node, mask)))

    def vacate(self, node: int, mask: int) -> None:
        """The inverse of ``occupy``; the cells stay owned."""
        self._vacate(node, mask)
        if self.log is not None:
            self.log.append((self._occupy_again, (node, mask)))

    def _vacate(self, node: int, mask: int) -> None:
        for cell, count in self.holders(node, mask):
            self.owned[cell].used -= count
        self.guaranteed[node] &= ~mask
        self.refresh(node)

    def _occupy_again(self, node: int, mask: int) -> None:
        log, self.log = self.log, None
        self.occupy(node, mask)
        self.log = log

    def lend(self, node: int, mask: int) -> None:
        """An opportunistic gang uses devices."""
        self._count_lent(node, mask, 1)
        self.opportunistic[node] |= mask
        self.refresh(node)
        if self.log is not None:
            self.log.append((self._reclaim, (node, mask)))

    def reclaim(self, node: int, mask: int) -> None:
        """The inverse of ``lend``."""
        self._reclaim(node, mask)
        if self.log is not None:
            self.log.append((self._lend_again, (node, mask)))

    def _reclaim(self, node: int, mask: int) -> None:
        self._count_lent(node, mask, -1)
        self.opportunistic[node] &= ~mask
        self.refresh(node)

    def _lend_again(self, node: int, mask: int) -> None:
        log, self.log = self.log, None
        self.lend(node, mask)
        self.log = log

    def _count_lent(self, node: int, mask: int, change: int) -> None:
        first = self.topology.leaf_lo[self.topology.node_base + node]
        while mask:
            low = mask & -mask
            self.buddy.count_opportunistic(first + low.bit_length() - 1, change)
            mask ^= low

    def set_healthy(self, node: int, mask: int) -> None:
        """Devices in ``mask`` are healthy, the others of the node are not."""
        first = self.topology.leaf_lo[self.topology.node_base + node]
        changed = self.healthy[node] ^ mask
        self.healthy[node] = mask
        while changed:
            low = changed & -changed
            self.buddy.count_bad(first + low.bit_length() - 1, -1 if mask & low else 1)
            changed ^= low
        self.refresh(node)

    def refresh(self, node: int) -> None:
        """Bring the buckets of one node up to date with its masks."""
        healthy, guaranteed = self.healthy[node], self.guaranteed[node]
        opportunistic = self.opportunistic[node]
        for number in self.bins[node]:
            pool = self.pools[number]
            mask = pool.masks[node] & healthy & ~guaranteed
            pool.count(node, mask.bit_count(), (mask & ~opportunistic).bit_count())
        held = (
            opportunistic.bit_count(),
            (healthy & ~(guaranteed | opportunistic)).bit_count(),
        )
        before = self._idle_held[node]
        if held != before:
            bit = 1 << node
            left = self.idle[before] ^ bit
            if left:
                self.idle[before] = left
            else:
                del self.idle[before]
            self.idle[held] = self.idle.get(held, 0) | bit
            self._idle_held[node] = held

    def opened_since(self, mark: int) -> list[int]:
        """Cells that were bound after ``mark`` entries of the log and still are."""
        assert self.log is not None  # noqa: S101 (a search owns the log)
        return [args[0] for undo, args in self.log[mark:] if undo == self._disown]

    def rollback(self, mark: int) -> None:
        """Undo everything after ``mark`` entries of the log."""
        log = self.log
        assert log is not None  # noqa: S101 (a search owns the log)
        self.log = None
        while len(log) > mark:
            undo, arguments = log.pop()
            undo(*arguments)
        self.log = log

    def virtual_address(self, leaf: int, cell: int) -> str:
        """Address of the virtual leaf that physical ``leaf`` of owned ``cell`` is bound to."""
        topology, owned = self.topology, self.owned[cell]
        pool = self.pools[owned.pool]
        positions = []
        here = leaf
        while here != cell:
            parent = topology.parent[here]
            positions.append((here - topology.child_lo[parent], topology.level[parent]))
            here = parent
        slot = pool.slots[topology.level[cell]][owned.position]
        parts = [pool.vc, str(slot)]
        index = 0
        for position, level in reversed(positions):
            index = index * topology.fan[level] + position
            parts.append(str(index))
        return "/".join(parts)
