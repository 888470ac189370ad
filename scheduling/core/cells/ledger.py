"""The ledger of one chain: owned cells, used devices by node, and the indices for searches.

Binding a virtual cell to a physical cell binds all sub-cells in order, so a complete tree needs
one entry. An unbound quota cell is empty, and the children of a cell are interchangeable. So the
ledger only counts unbound cells.
"""

from collections.abc import Callable, Sequence
from typing import Any

from scheduling.core.cells.buddy import BuddyAllocator
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.topology import ChainTopology

Undo = list[tuple[Callable[..., None], tuple[Any, ...]]]


class Owned:
    """A physical cell bound to a preassigned virtual cell.

    Attributes:
        pool: number of its pool.
        position: index among the pool's preassigned cells of its level.
        used: devices in it with guaranteed users or claims.
        counted: whether it was taken from the free list (an incomplete pinned cell is not).
    """

    __slots__ = ("counted", "pool", "position", "used")

    def __init__(self, pool: int, position: int, *, counted: bool) -> None:
        self.pool = pool
        self.position = position
        self.used = 0
        self.counted = counted


class Trial:
    """A search on a ledger; its changes are undone at its end."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: "ChainLedger") -> None:
        self._ledger = ledger

    def __enter__(self) -> Undo:
        """Open the log."""
        log = self._ledger.log = []
        return log

    def __exit__(self, *_: object) -> None:
        """Undo all changes on the log, and close it."""
        if self._ledger.log:
            self._ledger.rollback(0)
        self._ledger.log = None


class ChainLedger:
    """Ownership, use and health of the cells and devices of one chain.

    Attributes:
        bins: by node, (pool number, bin) pairs; a bin is a node, or ``first_small`` + cell.
        healthy: by node, the mask of healthy devices.
        guaranteed: by node, the mask of devices that a guaranteed gang uses or has claimed.
        opportunistic: by node, the mask of devices with an opportunistic user and no claim.
        owned: physical cell -> its owner.
        doomed: owned, unused cells with unhealthy devices that a quota cannot avoid.
        homes: by node, the owned cell that contains the complete node, else -1.
        idle: (opportunistic devices, idle healthy devices) -> bitmap of nodes.
        log: undo log of a search; None if no search runs.
        avoided: by node, the mask of devices to avoid between equal choices; usually empty.
        has_swerved: whether a search has avoided a device since it was last set to false.
    """

    __slots__ = (
        "_idle_held",
        "avoided",
        "bins",
        "buddy",
        "doomed",
        "first_small",
        "guaranteed",
        "has_swerved",
        "healthy",
        "homes",
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
        nodes = self.first_small = len(topology.node_names)
        self.healthy = [shape.full for shape in topology.shapes]
        self.guaranteed = [0] * nodes
        self.opportunistic = [0] * nodes
        self.pools: list[Pool] = []
        self.bins: list[tuple[tuple[int, int], ...]] = [()] * nodes
        self.homes = [-1] * nodes
        self.owned: dict[int, Owned] = {}
        self.doomed: set[int] = set()
        self.idle: dict[tuple[int, int], int] = {}
        self._idle_held = [(0, shape.size) for shape in topology.shapes]
        for node, held in enumerate(self._idle_held):
            self.idle[held] = self.idle.get(held, 0) | 1 << node
        self.log: Undo | None = None
        self.avoided: dict[int, int] = {}
        self.has_swerved = False

    def copy(self) -> "ChainLedger":
        """Return an independent ledger with an equal state."""
        other = object.__new__(ChainLedger)
        other.topology = self.topology
        other.buddy = self.buddy.copy()
        other.first_small = self.first_small
        other.healthy = list(self.healthy)
        other.guaranteed = list(self.guaranteed)
        other.opportunistic = list(self.opportunistic)
        other.pools = [pool.copy() for pool in self.pools]
        other.bins = list(self.bins)
        other.homes = list(self.homes)
        other.owned = {}
        for cell, owned in self.owned.items():
            twin = Owned(owned.pool, owned.position, counted=owned.counted)
            twin.used = owned.used
            other.owned[cell] = twin
        other.doomed = set(self.doomed)
        other.idle = dict(self.idle)
        other._idle_held = list(self._idle_held)
        other.log = None
        other.avoided = dict(self.avoided)
        other.has_swerved = False
        return other

    # Ownership of cells

    def add_pool(self, vc: str, pinned: str | None) -> Pool:
        """Add a pool without cells."""
        topology = self.topology
        size = max((shape.size for shape in topology.shapes), default=0)
        pool = Pool(
            len(self.pools),
            vc,
            pinned,
            levels=topology.levels,
            node_size=max(size, topology.node_size),
        )
        self.pools.append(pool)
        return pool

    def own(self, pool: Pool, cell: int, position: int | None = None) -> None:
        """Bind ``cell``, which is or is inside a free cell, to a preassigned cell of ``pool``."""
        level = self.topology.level[cell]
        self.buddy.allocate(cell)
        self.buddy.claimed[level] -= 1
        self.adopt(pool, cell, counted=True, position=position)
        if self.log is not None:
            self.log.append((self._disown, (cell,)))

    def adopt(self, pool: Pool, cell: int, *, counted: bool, position: int | None = None) -> None:
        """Bind ``cell`` without allocating it, for incomplete pinned cells at start-up."""
        level = self.topology.level[cell]
        position = pool.take_slot(level, position)
        self.owned[cell] = Owned(pool.number, position, counted=counted)
        self._spread(pool, cell, owning=True)

    def disown(self, cell: int) -> None:
        """Unbind ``cell`` and release it."""
        owned = self.owned[cell]
        self._disown(cell)
        if self.log is not None:
            self.log.append((self._own_again, (owned.pool, cell, owned.position)))

    def reposition(self, pool: Pool, cells: Sequence[int]) -> bool:
        """Bind the owned cells of a pool to its first preassigned cells, in the given order.

        Returns:
            Whether a position has changed.
        """
        counts = [0] * (self.topology.levels + 1)
        changed = False
        for cell in cells:
            owned, level = self.owned[cell], self.topology.level[cell]
            changed = changed or owned.position != counts[level]
            owned.position = counts[level]
            counts[level] += 1
        if changed:
            for level, count in enumerate(counts):
                pool.take_first_slots(level, count)
        return changed

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
        topology = self.topology
        if topology.level[cell] < topology.node_level:
            node = topology.node_of_leaf[topology.leaf_lo[cell]]
            self._set_bin(
                pool, node, self.first_small + cell, topology.node_mask(cell) if owning else 0
            )
            return
        for node in topology.nodes_of(cell):
            self.homes[node] = cell if owning else -1
            self._set_bin(pool, node, node, topology.shapes[node].full if owning else 0)

    def _set_bin(self, pool: Pool, node: int, key: int, mask: int) -> None:
        entry = (pool.number, key)
        if mask:
            self.bins[node] = (*self.bins[node], entry)
            pool.masks[key] = mask
            self._count_bin(pool, node, key)
        else:
            del pool.masks[key]
            self.bins[node] = tuple(other for other in self.bins[node] if other != entry)
            pool.forget(key)

    def _count_bin(self, pool: Pool, node: int, key: int) -> None:
        mask, guaranteed = pool.masks[key], self.guaranteed[node]
        avail = (mask & self.healthy[node] & ~guaranteed).bit_count()
        pool.count(key, avail, in_use=bool(mask & guaranteed))

    def node_of(self, key: int) -> int:
        """Return the node of a bin."""
        if key < self.first_small:
            return key
        return self.topology.node_of_leaf[self.topology.leaf_lo[key - self.first_small]]

    def holders(self, node: int, mask: int) -> list[tuple[int, int]]:
        """Return the owned cells of the devices in a mask, as (cell, number of devices)."""
        home = self.homes[node]
        if home >= 0:
            return [(home, mask.bit_count())] if mask else []
        topology = self.topology
        first = topology.leaf_lo[topology.node_base + node]
        found = []
        while mask:
            leaf = first + (mask & -mask).bit_length() - 1
            cell = self.buddy.allocated_holder(leaf)
            if cell not in self.owned:
                cell = self._incomplete_holder(leaf)
            part = mask & topology.node_mask(cell)
            found.append((cell, part.bit_count()))
            mask ^= part
        return found

    def _incomplete_holder(self, leaf: int) -> int:
        cell = self.owner_of(leaf)
        if cell < 0:
            raise AssertionError(f"device {self.topology.address[leaf]} is not in an owned cell")
        return cell

    def owner_of(self, leaf: int) -> int:
        """Return the owned cell of a device, else -1."""
        cell = leaf
        while cell >= 0 and cell not in self.owned:
            cell = self.topology.parent[cell]
        return cell

    # Use of devices

    def occupy(self, node: int, mask: int) -> None:
        """Count devices as used or claimed by a guaranteed gang; its pool owns their cells."""
        for cell, count in self.holders(node, mask):
            self.owned[cell].used += count
        self.guaranteed[node] |= mask
        self.refresh(node)
        if self.log is not None:
            self.log.append((self._vacate, (node, mask)))

    def vacate(self, node: int, mask: int) -> None:
        """Undo ``occupy``; the cells remain owned."""
        if self.log is not None:
            numbers = tuple(
                (pool, key, self.pools[pool].number_of(key)) for pool, key in self.bins[node]
            )
            self.log.append((self._occupy_again, (node, mask, numbers)))
        self._vacate(node, mask)

    def _vacate(self, node: int, mask: int) -> None:
        for cell, count in self.holders(node, mask):
            self.owned[cell].used -= count
        self.guaranteed[node] &= ~mask
        self.refresh(node)

    def _occupy_again(
        self, node: int, mask: int, numbers: tuple[tuple[int, int, int], ...]
    ) -> None:
        log, self.log = self.log, None
        self.occupy(node, mask)
        for pool in {pool for pool, _, _ in numbers}:
            self.pools[pool].renumber([(k, n) for p, k, n in numbers if p == pool and n >= 0])
        self.log = log

    def lend(self, node: int, mask: int) -> None:
        """Count devices as used by an opportunistic gang."""
        self._count_lent(node, mask, 1)
        self.opportunistic[node] |= mask
        self.refresh(node)
        if self.log is not None:
            self.log.append((self._reclaim, (node, mask)))

    def reclaim(self, node: int, mask: int) -> None:
        """Undo ``lend``."""
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
        """Set the healthy devices of a node; all others are unhealthy."""
        first = self.topology.leaf_lo[self.topology.node_base + node]
        changed = self.healthy[node] ^ mask
        self.healthy[node] = mask
        while changed:
            low = changed & -changed
            self.buddy.count_bad(first + low.bit_length() - 1, -1 if mask & low else 1)
            changed ^= low
        self.refresh(node)

    def refresh(self, node: int) -> None:
        """Update the indices of a node from its masks."""
        for number, key in self.bins[node]:
            self._count_bin(self.pools[number], node, key)
        opportunistic = self.opportunistic[node]
        held = (
            opportunistic.bit_count(),
            (self.healthy[node] & ~(self.guaranteed[node] | opportunistic)).bit_count(),
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

    def trial(self) -> "Trial":
        """Open a search whose changes are undone at its end, unless the log is cleared."""
        return Trial(self)

    def opened_since(self, mark: int) -> list[int]:
        """Return the cells bound after the first ``mark`` entries of the log."""
        assert self.log is not None  # noqa: S101 (a search owns the log)
        opening = self._disown
        return [args[0] for undo, args in self.log[mark:] if undo == opening]

    def rollback(self, mark: int) -> None:
        """Undo all changes after the first ``mark`` entries of the log."""
        log = self.log
        assert log is not None  # noqa: S101 (a search owns the log)
        self.log = None
        while len(log) > mark:
            undo, arguments = log.pop()
            undo(*arguments)
        self.log = log

    def virtual_addresses(self, leaves: Sequence[int], cell: int) -> tuple[str, ...]:
        """Return the virtual addresses of devices in the owned ``cell``."""
        topology, owned = self.topology, self.owned[cell]
        pool = self.pools[owned.pool]
        level, first = topology.level[cell], topology.leaf_lo[cell]
        root = f"{pool.vc}/{pool.slots[level][owned.position]}"
        if not topology.complete[cell]:
            return tuple([root + self._path(leaf, cell) for leaf in leaves])
        paths = topology.paths.get(level)
        if paths is None:
            # Cells of a level are interchangeable, so the paths in the first one apply to all.
            low, high = topology.leaf_lo[cell], topology.leaf_hi[cell]
            paths = topology.paths[level] = [self._path(leaf, cell) for leaf in range(low, high)]
        if isinstance(leaves, range):
            here = paths[leaves.start - first : leaves.stop - first]
            return tuple([root + path for path in here])
        return tuple([root + paths[leaf - first] for leaf in leaves])

    def _path(self, leaf: int, cell: int) -> str:
        topology = self.topology
        positions = []
        here = leaf
        while here != cell:
            parent = topology.parent[here]
            positions.append((here - topology.child_lo[parent], topology.level[parent]))
            here = parent
        path, index = "", 0
        for position, level in reversed(positions):
            index = index * topology.fan[level] + position
            path += f"/{index}"
        return path
