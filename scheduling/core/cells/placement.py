"""Topology-aware search for a guaranteed gang on the quota of its pool, on the undo log.

Gangs are packed into the nodes of the pool, best fit first, opening unbound quota cells on the
way. The greedy pass is complete for gangs of one size; for mixed sizes a complete packing follows
where it fails, and last several cells of a node are combined for one instance.
"""

from collections import Counter

from scheduling.core.cells.ledger import ChainLedger, Pool
from scheduling.core.cells.packing import pack
from scheduling.core.cells.picking import SCAN, CellPicker, Cost, Item, Spot


class GuaranteedSearch:
    """Places a gang on the quota of one pool.

    Args:
        ledger: the chain; its log must be open.
        pool: the quota.
        allowed: bitmap of the nodes that may be used, or None for all.
        cost: what taking devices costs; None when only devices without a user may be taken.
    """

    def __init__(
        self, ledger: ChainLedger, pool: Pool, allowed: int | None, cost: Cost | None
    ) -> None:
        self.ledger = ledger
        self.pool = pool
        self.allowed = allowed
        self.cost = cost
        topology = ledger.topology
        self.caps = [
            min(topology.sizes[level][1], topology.node_size) if level else 0
            for level in range(topology.levels + 1)
        ]
        self.limit: dict[int, int] = {}  # level -> quota cells that cannot be opened whole
        self.closed: dict[int, int] = {}  # level -> smallest size for which none can be opened

    def run(self, items: list[Item]) -> list[Spot] | None:
        """Place all items, largest first, or roll back and answer None."""
        if not self._may_fit(items):
            return None
        assert self.ledger.log is not None  # noqa: S101 (opened by the engine)
        self._start = mark = len(self.ledger.log)
        spots = self._greedy(items)
        if spots is not None:
            return spots
        self._rollback(mark)
        if len({item.size for item in items}) > 1:
            spots = self._complete(items, mark)
            if spots is not None:
                return spots
        return self._combine(items, mark)

    def _rollback(self, mark: int) -> None:
        self.ledger.rollback(mark)
        self.closed = {}
        if self.cost is not None and mark == self._start:
            self.cost.reset()

    def _buckets(self) -> list[int]:
        buckets = self.pool.clean if self.cost is None else self.pool.avail
        if self.allowed is None:
            return buckets
        return [bits & self.allowed for bits in buckets]

    def _may_fit(self, items: list[Item]) -> bool:
        """A quick necessary condition on counts, so that hopeless requests touch nothing."""
        size, smallest = items[0].size, items[-1].size
        wanted = sum(item.size for item in items)
        largest = sum(1 for item in items if item.size == size)
        for count, bits in enumerate(self._buckets()):
            if bits and count >= smallest:
                nodes = bits.bit_count()
                wanted -= nodes * count
                largest -= nodes * (count // size)
        sizes = self.ledger.topology.sizes
        combinable = 0
        for level, unbound in enumerate(self.pool.unbound):
            if unbound:
                leaves = sizes[level][1] * unbound
                wanted -= leaves
                cap = self.caps[level]
                largest -= (leaves // cap) * (cap // size)
                if cap < self.ledger.topology.node_size:
                    combinable += leaves
        if wanted > 0:
            return False
        return largest <= 0 or self._combinable(size, combinable)

    def _combinable(self, size: int, unbound: int) -> bool:
        return unbound > 0 and size > 1

    def _greedy(self, items: list[Item]) -> list[Spot] | None:
        spots = []
        for item in items:
            spot = self._place(item)
            if spot is None:
                return None
            spots.append(spot)
        return spots

    def _place(self, item: Item) -> Spot | None:
        """Best fit: the node with the fewest free devices that are enough, or a new cell."""
        if self.cost is not None:
            return self._place_cheaply(item)
        node, count = self._best_node(item)
        level = self._best_level(item)
        if level and (node < 0 or self.caps[level] < count) and self._open(item, None):
            node, count = self._best_node(item)
        return self._take(item, node) if node >= 0 else None

    def _place_cheaply(self, item: Item) -> Spot | None:
        """The node with the cheapest victims; a new cell without victims comes before any."""
        node, price = self._cheapest_node(item)
        if node < 0 or any(price):
            if self._open(item, None) or (self._open(item, self.cost) if node < 0 else False):
                node, price = self._cheapest_node(item)
            elif node >= 0:
                node = self._cheaper_cell(item, node, price)
        return self._take(item, node) if node >= 0 else None

    def _cheaper_cell(self, item: Item, node: int, price: tuple[float, ...]) -> int:
        ledger = self.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the engine)
        mark = len(ledger.log)
        self.closed = {}
        if self._open(item, self.cost):
            other, other_price = self._cheapest_node(item)
            if other_price < price:
                return other
            ledger.rollback(mark)
        return node

    def _take(self, item: Item, node: int) -> Spot | None:
        ledger = self.ledger
        mask = ledger.topology.shapes[node].choose(
            self._takeable(node, item), item.size, item.within
        )
        if not mask:
            return None
        ledger.occupy(node, mask)
        if self.cost is not None:
            self.cost.take(node, mask)
        return Spot(item, node, mask)

    def _takeable(self, node: int, item: Item) -> int:
        ledger = self.ledger
        free = self.pool.masks[node] & ledger.healthy[node] & ~ledger.guaranteed[node]
        clean = free & ~ledger.opportunistic[node]
        if self.cost is None or ledger.topology.shapes[node].choose(clean, item.size, item.within):
            return clean
        return free

    def _best_node(self, item: Item) -> tuple[int, int]:
        shapes = self.ledger.topology.shapes
        easy = item.within >= self.ledger.topology.node_level
        buckets = self._buckets()
        for count in range(item.size, len(buckets)):
            bits = buckets[count]
            while bits:
                node = (bits & -bits).bit_length() - 1
                if easy or shapes[node].choose(self._takeable(node, item), item.size, item.within):
                    return node, count
                bits &= bits - 1
        return -1, 0

    def _cheapest_node(self, item: Item) -> tuple[int, tuple[float, ...]]:
        assert self.cost is not None  # noqa: S101 (asked by the caller)
        best: tuple[tuple[float, ...], int] | None = None
        shapes = self.ledger.topology.shapes
        for bits in self._buckets()[item.size :]:
            nodes, seen = bits, 0
            while nodes and seen < SCAN:
                node = (nodes & -nodes).bit_length() - 1
                nodes &= nodes - 1
                mask = shapes[node].choose(self._takeable(node, item), item.size, item.within)
                if not mask:
                    continue
                seen += 1
                price = self.cost.price(node, mask)
                if best is None or price < best[0]:
                    best = (price, node)
                if not any(price):
                    return node, price
        return (best[1], best[0]) if best else (-1, ())

    def _best_level(self, item: Item) -> int:
        """The level of the smallest unbound quota cell that can hold the item; 0 for none."""
        best = 0
        for level, unbound in enumerate(self.pool.unbound):
            if (
                unbound
                and self.caps[level] >= item.size
                and item.size < self.closed.get(level, item.size + 1)
                and (not best or self.caps[level] < self.caps[best])
            ):
                best = level
        return best

    def _open(self, item: Item, cost: Cost | None) -> bool:
        """Bind an unbound quota cell in which the item fits; the smallest level that can."""
        levels = sorted(
            (self.caps[level], level)
            for level, unbound in enumerate(self.pool.unbound)
            if unbound
            and self.caps[level] >= item.size
            and item.size < self.closed.get(level, item.size + 1)
        )
        for _, level in levels:
            cell = CellPicker(self.ledger, self.allowed, cost).pick(level, item)
            if cell >= 0:
                self.ledger.own(self.pool, cell)
                return True
            if self.cost is None:
                self.closed[level] = item.size
        return False

    def _complete(self, items: list[Item], mark: int) -> list[Spot] | None:
        """Complete packing on counts; cells that open with less than expected count again."""
        topology = self.ledger.topology
        self.limit = {}
        for _ in range(8):
            capacities = Counter(
                {count: bits.bit_count() for count, bits in enumerate(self._buckets()) if bits}
            )
            for level, unbound in enumerate(self.pool.unbound):
                usable = unbound - self.limit.get(level, 0)
                if usable > 0:
                    capacities[self.caps[level]] += (
                        usable * topology.sizes[level][1] // self.caps[level]
                    )
            plan = pack(capacities, Counter(item.size for item in items))
            if plan is None:
                return None
            spots = self._follow(plan, items)
            if spots is not None:
                return spots
            self._rollback(mark)
        return None

    def _follow(
        self, plan: list[tuple[int, tuple[int, ...]]], items: list[Item]
    ) -> list[Spot] | None:
        waiting: dict[int, list[Item]] = {}
        for item in reversed(items):
            waiting.setdefault(item.size, []).append(item)
        spots = []
        used: set[int] = set()
        for capacity, sizes in plan:
            chosen = [waiting[size].pop() for size in sizes]
            node = self._node_of(capacity, used, chosen)
            if node < 0:
                return None
            used.add(node)
            for item in chosen:
                spot = self._take(item, node)
                if spot is None:
                    return None
                spots.append(spot)
        return spots

    def _node_of(self, capacity: int, used: set[int], chosen: list[Item]) -> int:
        node = self._unused(capacity, used)
        if node >= 0:
            return node
        for level, unbound in enumerate(self.pool.unbound):
            if self.caps[level] != capacity or unbound <= self.limit.get(level, 0):
                continue
            need = Item(capacity, self.ledger.topology.node_level, chosen[0].member)
            picker = CellPicker(self.ledger, self.allowed, self.cost)
            cell = picker.pick(level, need)
            if cell >= 0:
                self.ledger.own(self.pool, cell)
                return self._unused(capacity, used)
            self.limit[level] = unbound
        return -1

    def _unused(self, capacity: int, used: set[int]) -> int:
        bits = self._buckets()[capacity]
        while bits:
            node = (bits & -bits).bit_length() - 1
            if node not in used:
                return node
            bits &= bits - 1
        return -1

    def _combine(self, items: list[Item], mark: int) -> list[Spot] | None:
        """Serve instances larger than any one quota cell by several cells on one node."""
        topology = self.ledger.topology
        below = [
            level for level in range(topology.node_level - 1, 0, -1) if self.pool.unbound[level]
        ]
        if not below or items[0].size == 1:
            return None
        spots = []
        for item in items:
            spot = self._place(item) or self._gather(item, below)
            if spot is None:
                self._rollback(mark)
                return None
            spots.append(spot)
        return spots

    def _gather(self, item: Item, below: list[int]) -> Spot | None:
        ledger, topology = self.ledger, self.ledger.topology
        assert ledger.log is not None  # noqa: S101 (opened by the engine)
        nodes = set(self.pool.masks)
        for level in below:
            for high in range(level, topology.levels + 1):
                for cell in ledger.buddy.free_cells(high)[:SCAN]:
                    if high >= topology.node_level:
                        nodes.update(list(topology.nodes_of(cell))[:SCAN])
                    else:
                        nodes.add(topology.node_of_leaf[topology.leaf_lo[cell]])
        for node in sorted(nodes):
            if self.allowed is not None and not self.allowed >> node & 1:
                continue
            mark = len(ledger.log)
            if self._gather_on(node, item, below):
                spot = self._take(item, node)
                if spot is not None:
                    return spot
            ledger.rollback(mark)
        return None

    def _gather_on(self, node: int, item: Item, below: list[int]) -> bool:
        pool, ledger = self.pool, self.ledger
        while node not in pool.masks or self._takeable(node, item).bit_count() < item.size:
            picker = CellPicker(ledger, 1 << node, self.cost)
            for level in below:
                cell = picker.pick(level, Item(1, 1, 0)) if pool.unbound[level] else -1
                if cell >= 0:
                    ledger.own(pool, cell)
                    break
            else:
                return False
        return True
