"""Topology-aware search for the placement of a guaranteed gang on the quota of its pool.

The search packs instances into the bins of the pool, best fit first, and opens unbound quota cells
if necessary. This greedy pass is exact for instances of one size. If it fails for mixed sizes, an
exact packing follows. The last resort combines several cells of a node for one instance; since
that is more than the guarantee, it evicts no gang. The state of the virtual cluster alone decides
on the bin; opportunistic users only decide between equal bins and devices.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from scheduling.core.cells.avoiding import Choice, best_choice
from scheduling.core.cells.backtracking import BacktrackingSearch
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.packing import pack
from scheduling.core.cells.picking import SCAN, CellPicker, Cost, Item, Spot, choose_devices
from scheduling.core.cells.pool import Pool

EAGER_SIZE = 4  # up to 4 instances, a trial costs less than a count


class GuaranteedSearch:
    """Places a gang on the quota of one pool.

    Args:
        ledger: ledger of the chain; its log must be open.
        pool: the quota.
        allowed: bitmap of the nodes that may be used, or None for all.
        cost: the cost of evicting users.
        combining: whether one instance may use several small cells.
    """

    __slots__ = ("allowed", "caps", "closed", "combining", "cost", "ledger", "pool", "whole")

    def __init__(
        self,
        ledger: ChainLedger,
        pool: Pool,
        allowed: int | None,
        cost: Cost,
        *,
        combining: bool = True,
    ) -> None:
        self.ledger = ledger
        self.combining = combining
        self.pool = pool
        self.allowed = allowed
        self.cost = cost
        self.caps = ledger.topology.caps
        self.whole: dict[int, int] = {}  # level -> quota cells that cannot be opened whole
        self.closed: dict[int, int] = {}  # level -> smallest size for which none can be opened

    def run(self, items: list[Item]) -> list[Spot] | None:
        """Place all items, largest first; None (after a rollback) if they do not fit."""
        if len(items) > EAGER_SIZE and not self._may_fit(items):
            return None
        mark = self._mark()
        spots = self._greedy(items)
        if spots is not None:
            return spots
        self._rollback(mark)
        if len(items) <= EAGER_SIZE and not self._may_fit(items):
            return None
        if len({item.size for item in items}) > 1:
            spots = self._pack_completely(items, mark)
        if spots is None and self._is_damaged():
            self._rollback(mark)
            spots = self._backtrack(items)
        if spots is None and self.combining:
            self._rollback(mark)
            spots = self._combine(items)
        if spots is None:
            self._rollback(mark)
        return spots

    def _mark(self) -> int:
        assert self.ledger.log is not None  # noqa: S101 (opened by the engine)
        return len(self.ledger.log)

    def _rollback(self, mark: int) -> None:
        self.ledger.rollback(mark)
        self.closed = {}
        self.cost.reset()

    def _may_fit(self, items: list[Item]) -> bool:
        """Check device counts: a quick necessary condition of a placement."""
        size, smallest = items[0].size, items[-1].size
        wanted = sum(item.size for item in items)
        largest = sum(1 for item in items if item.size == size)
        small = 0
        for count, bins in self._capacities().items():
            wanted -= bins * count
            largest -= bins * (count // size)
            if count < self.ledger.topology.node_size:
                small += bins * count
        if wanted > 0 or not smallest:
            return False
        return largest <= 0 or (size > 1 and small >= size)

    def _capacities(self) -> Counter[int]:
        """Count the bins by their usable devices, with unbound quota cells."""
        pool, found = self.pool, Counter[int]()
        if self.allowed is None:
            for count, bits in enumerate(pool.used):
                if bits and count:
                    found[count] += bits.bit_count()
            for count, keys in enumerate(pool.empty):
                if keys.summary and count:
                    found[count] += len(keys)
        else:
            for count, bits in enumerate(pool.used):
                found[count] += sum(1 for _ in self._numbered(bits)) if count else 0
            for count, keys in enumerate(pool.empty):
                found[count] += sum(map(self._is_allowed, keys)) if count else 0
        sizes = self.ledger.topology.sizes
        for level, unbound in enumerate(pool.unbound):
            if unbound > self.whole.get(level, 0):
                cap = self.caps[level]
                found[cap] += (unbound - self.whole.get(level, 0)) * (sizes[level][1] // cap)
        return found

    def _is_allowed(self, key: int) -> bool:
        return self.allowed is None or bool(self.allowed >> self.ledger.node_of(key) & 1)

    def _numbered(self, bits: int) -> list[int]:
        """Return the allowed bins by virtual number."""
        keys = []
        while bits:
            key = self.pool.bins[(bits & -bits).bit_length() - 1]
            bits &= bits - 1
            if self._is_allowed(key):
                keys.append(key)
        return keys

    def _greedy(self, items: list[Item]) -> list[Spot] | None:
        spots = []
        for item in items:
            spot = self._place(item)
            if spot is None:
                return None
            spots.append(spot)
        return spots

    def _place(self, item: Item) -> Spot | None:
        """Place an item in the fullest used bin with room, otherwise in the smallest empty bin."""
        key, count = self._best_used(item)
        # An empty bin is never better than a used one with exactly the requested devices.
        if key < 0 or (count > item.size and count > self._least_empty(item.size)):
            empty = self._open_empty(item, count if key >= 0 else self.ledger.topology.node_size)
            if empty >= 0:
                key = empty
        return self._take(item, key) if key >= 0 else None

    def _take(self, item: Item, key: int) -> Spot | None:
        ledger, node = self.ledger, self.ledger.node_of(key)
        free = self.pool.masks[key] & ledger.healthy[node] & ~ledger.guaranteed[node]
        mask = choose_devices(ledger, self.cost, node, free, item)
        if not mask:
            return None
        ledger.occupy(node, mask)
        self.cost.take(node, mask)
        return Spot(item, node, mask)

    def _best_used(self, item: Item) -> tuple[int, int]:
        pool = self.pool
        easy = item.within >= self.ledger.topology.node_level and self.allowed is None
        sizes = pool.used_sizes >> item.size << item.size
        while sizes:
            count = (sizes & -sizes).bit_length() - 1
            sizes &= sizes - 1
            bits = pool.used[count]
            if easy:
                key = pool.bins[(bits & -bits).bit_length() - 1]
                return self._spared(key, bits, item), count
            for key in self._numbered(bits):
                if self._holds(key, item):
                    return self._spared(key, bits, item), count
        return -1, 0

    def _spared(self, key: int, bits: int, item: Item) -> int:
        """Return a bin, or an equal one of ``bits`` with fewer devices to avoid."""
        if not self.ledger.avoided:
            return key
        others = (other for other in self._numbered(bits) if other != key)
        best = best_choice(self.ledger, self._choices((key, *others), item))
        return best.key if best is not None else key

    def _choices(self, keys: Iterable[int], item: Item) -> Iterator[Choice]:
        """Yield the devices for an item in each bin in which it fits."""
        ledger = self.ledger
        for key in keys:
            node = ledger.node_of(key)
            free = self.pool.masks[key] & ledger.healthy[node] & ~ledger.guaranteed[node]
            mask = choose_devices(ledger, self.cost, node, free, item)
            if mask:
                yield Choice(key, node, mask, self.cost.price(node, mask))

    def _holds(self, key: int, item: Item) -> bool:
        ledger, node = self.ledger, self.ledger.node_of(key)
        free = self.pool.masks[key] & ledger.healthy[node] & ~ledger.guaranteed[node]
        return ledger.topology.shapes[node].choose(free, item.size, item.within) != 0

    def _least_empty(self, size: int) -> int:
        """Return the least sufficient size of an empty bin, owned or not; ``1 << 30`` if none."""
        sizes = self.pool.empty_sizes >> size << size
        best = (sizes & -sizes).bit_length() - 1 if sizes else 1 << 30
        for level, unbound in enumerate(self.pool.unbound):
            if unbound and size <= self.caps[level] < best:
                best = self.caps[level]
        return best

    def _open_empty(self, item: Item, below: int) -> int:
        """Return an empty bin of at most ``below`` devices, owned or newly opened, or -1."""
        pool = self.pool
        levels_of = self.ledger.topology.levels_of
        sizes = pool.empty_sizes | self.ledger.topology.bin_sizes
        sizes = (sizes & (2 << below) - 1) >> item.size << item.size
        while sizes:
            count = (sizes & -sizes).bit_length() - 1
            sizes &= sizes - 1
            key, price = self._cheapest_empty(count, item)
            if key >= 0 and not any(price):
                return key
            for level in levels_of.get(count, ()):
                if pool.unbound[level] and item.size < self.closed.get(level, item.size + 1):
                    opened = self._open(level, item, price if key >= 0 else None)
                    if opened >= 0:
                        return opened
            if key >= 0:
                return key
        return -1

    def _cheapest_empty(self, count: int, item: Item) -> tuple[int, tuple[float, ...]]:
        """Return the owned, empty bin of ``count`` devices with the cheapest users, or -1."""
        bins = self.pool.empty[count]
        if not bins.summary:
            return -1, ()
        return self._cheapest([key for key in islice(bins, SCAN) if self._is_allowed(key)], item)

    def _cheapest(self, keys: Sequence[int], item: Item) -> tuple[int, tuple[float, ...]]:
        """Return the cheapest bin for the item and its price; -1 if it fits in none."""
        best: Choice | None = None
        for choice in self._choices(keys, item):
            if best is None or choice.price < best.price:
                best = choice
            if not any(choice.price):
                break
        if best is not None and self.ledger.avoided:
            others = self._choices((key for key in keys if key != best.key), item)
            best = best_choice(self.ledger, chain((best,), others))
        return (best.key, best.price) if best else (-1, ())

    def _open(self, level: int, item: Item, under: tuple[float, ...] | None) -> int:
        """Bind an unbound quota cell cheaper than ``under``; return a bin for the item, or -1."""
        ledger, mark = self.ledger, self._mark()
        cell = CellPicker(ledger, self.allowed, self.cost, self.pool.reserved).pick(level, item)
        if cell < 0:
            self.closed[level] = item.size
            return -1
        ledger.own(self.pool, cell)
        topology = ledger.topology
        keys: Sequence[int] = (ledger.first_small + cell,)
        if level >= topology.node_level:
            keys = [key for key in topology.nodes_of(cell) if self._is_allowed(key)]
        key, price = self._cheapest(keys, item)
        if key < 0 or (under is not None and price >= under):
            ledger.rollback(mark)
            return -1
        return key

    def _pack_completely(self, items: list[Item], mark: int) -> list[Spot] | None:
        """Pack exactly; if a cell opens with fewer devices than counted, count and pack again."""
        self.whole = {}
        sizes = Counter(item.size for item in items)
        for _ in range(8):
            plan = pack(self._capacities(), sizes)
            if plan is None:
                break
            spots = self._apply_packing(plan, items)
            if spots is not None:
                self.whole = {}
                return spots
            self._rollback(mark)
        self.whole = {}
        return None

    def _apply_packing(
        self, plan: list[tuple[int, tuple[int, ...]]], items: list[Item]
    ) -> list[Spot] | None:
        waiting: dict[int, list[Item]] = {}
        for item in reversed(items):
            waiting.setdefault(item.size, []).append(item)
        spots = []
        touched: set[int] = set()
        for capacity, sizes in plan:
            key = self._bin_of(capacity, touched)
            if key < 0:
                return None
            touched.add(key)
            for size in sizes:
                spot = self._take(waiting[size].pop(), key)
                if spot is None:
                    return None
                spots.append(spot)
        return spots

    def _bin_of(self, capacity: int, touched: set[int]) -> int:
        """Return a bin of exactly ``capacity`` usable devices outside ``touched``, or -1."""
        for key in self._numbered(self.pool.used[capacity]):
            if key not in touched:
                return key
        whole = Item(capacity, self.ledger.topology.node_level, 0)
        key = self._open_empty(whole, capacity)
        if key < 0:
            for level, unbound in enumerate(self.pool.unbound):
                if self.caps[level] == capacity:
                    self.whole[level] = unbound
        return key

    def _is_damaged(self) -> bool:
        """Return whether unbound quota cells could get damaged cells, or cells with a limit."""
        buddy = self.ledger.buddy
        limited = self.allowed is not None or buddy.healthy_left != buddy.total_left
        return limited and any(self.pool.unbound)

    def _backtrack(self, items: list[Item]) -> list[Spot] | None:
        search = BacktrackingSearch(
            self.ledger,
            self.pool,
            CellPicker(self.ledger, self.allowed, self.cost, self.pool.reserved),
            bins=self._bins_for,
            take=self._take,
            rollback=self._rollback,
        )
        return search.run(items)

    def _bins_for(self, item: Item) -> list[int]:
        """Return one bin for each number of usable devices, of used and of empty bins."""
        found: list[int] = []
        for count in range(item.size, self.ledger.topology.node_size + 1):
            for keys in (self._numbered(self.pool.used[count]), self.pool.empty[count]):
                fit = (key for key in keys if self._is_allowed(key) and self._holds(key, item))
                found += islice(fit, 1)
        return found

    def _combine(self, items: list[Item]) -> list[Spot] | None:
        """Place instances on several idle quota cells of a node."""
        topology = self.ledger.topology
        small = any(self.pool.slots[level] for level in range(1, topology.node_level))
        if not small or items[0].size == 1:
            return None
        spots = []
        for item in items:
            spot = self._place(item) or self._gather(item)
            if spot is None or spot.mask & self.ledger.opportunistic[spot.node]:
                return None
            spots.append(spot)
        return spots

    def _gather(self, item: Item) -> Spot | None:
        ledger, topology = self.ledger, self.ledger.topology
        below = [
            level for level in range(topology.node_level - 1, 0, -1) if self.pool.unbound[level]
        ]
        nodes = {ledger.node_of(key) for key in self.pool.masks}
        for level in below:
            for high in range(level, topology.levels + 1):
                for cell in ledger.buddy.free_cells(high)[:SCAN]:
                    low = topology.node_of_leaf[topology.leaf_lo[cell]]
                    nodes.update(range(low, low + 1))
                    if high > topology.node_level:
                        nodes.update(list(topology.nodes_of(cell))[:SCAN])
        for node in sorted(nodes):
            if self.allowed is not None and not self.allowed >> node & 1:
                continue
            mark = self._mark()
            spot = self._gather_on(node, item, below)
            if spot is not None:
                return spot
            ledger.rollback(mark)
        return None

    def _gather_on(self, node: int, item: Item, below: list[int]) -> Spot | None:
        ledger = self.ledger
        picker = CellPicker(ledger, 1 << node, self.cost, self.pool.reserved)
        while True:
            free = self._free_on(node)
            if free.bit_count() >= item.size:
                mask = choose_devices(ledger, self.cost, node, free, item)
                if not mask:
                    return None
                ledger.occupy(node, mask)
                self.cost.take(node, mask)
                return Spot(item, node, mask)
            cells = (
                picker.pick(level, Item(1, 1, 0)) if self.pool.unbound[level] else -1
                for level in below
            )
            cell = next((cell for cell in cells if cell >= 0), -1)
            if cell < 0:
                return None
            ledger.own(self.pool, cell)

    def _free_on(self, node: int) -> int:
        """Return the idle devices of a node in all bins of the pool together."""
        ledger, owned = self.ledger, 0
        for number, key in ledger.bins[node]:
            if number == self.pool.number:
                owned |= self.pool.masks[key]
        taken = ledger.guaranteed[node] | ledger.opportunistic[node]
        return owned & ledger.healthy[node] & ~taken
