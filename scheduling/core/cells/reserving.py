"""Reserving nodes for tenants that must not share them, so that all guarantees stay valid.

The buddy allocator proves that all quotas fit. It does not consider nodes that are exclusive to
one tenant at a time, dedicated to some tenants, or below the minimum isolation of a virtual
cluster. ``reserve`` searches for an assignment of all unbound quota cells under these rules: a
*witness*. A tenant that takes only its own nodes of the witness, or nodes that the witness gives
to no tenant, leaves it valid. So all guarantees hold in any order of arrival.

The search is greedy, from the highest level down, and exact for one level of nodes. If it misses
an existing witness, a tenant waits longer than necessary, but guarantees hold.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.pool import Pool

MIXED: Final = -1
"""Marks a node on which cells of several tenants are in use; replaces the tenant's ID."""

_NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """The rules on which tenants may use a node.

    Attributes:
        tenant_of: id of the tenant by virtual cluster.
        owners: current tenant of each exclusive node; None if it has no tenant.
        barred: virtual cluster -> nodes that it must not use: dedicated to other tenants, or below
            its minimum isolation.
        avoided: nodes without new work for now; reserved last.
        lent: nodes with opportunistic jobs of several tenants; reserved late.
    """

    tenant_of: Mapping[str, int]
    owners: Mapping[str, int | None]
    barred: Mapping[str, frozenset[str]] = field(default_factory=dict)
    avoided: frozenset[str] = _NOBODY
    lent: frozenset[str] = _NOBODY

    @property
    def bind(self) -> bool:
        """Whether any node is not open to all tenants."""
        return bool(self.owners) or any(self.barred.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Cells of a virtual cluster that cannot be reserved under the rules."""

    vc: str
    chain: str
    level: str
    cells: int
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedCells:
    """The witness, complete if ``short`` is empty.

    Attributes:
        holders: exclusive node -> the tenant that owns it, uses its guarantee on it, or has it
            reserved; ``MIXED`` where several do.
        cells: virtual cluster -> chain -> physical cells reserved for its quota.
        short: cells that could not be reserved.
    """

    holders: Mapping[str, int]
    cells: Mapping[str, Mapping[str, frozenset[int]]]
    short: tuple[Shortage, ...] = ()

    def missing(self) -> dict[str, int]:
        """Return the devices that could not be reserved, by virtual cluster."""
        found: dict[str, int] = defaultdict(int)
        for shortage in self.short:
            found[shortage.vc] += shortage.devices
        return dict(found)


def reserve(books: CellBooks, rules: NodeRules) -> ReservedCells:
    """Search for the reservation of all unbound quota cells; the books do not change."""
    holders = {node: tenant for node, tenant in rules.owners.items() if tenant is not None}
    chains = [
        _Chain(roster.ledger, rules, holders)
        for roster in books.rosters.values()
        if roster.ledger.pools
    ]
    for chain in chains:
        chain.mark_used()
    cells: dict[str, dict[str, frozenset[int]]] = defaultdict(dict)
    short: list[Shortage] = []
    for chain in chains:
        short += chain.run()
        for vc, reserved in chain.reserved.items():
            cells[vc][chain.topology.name] = frozenset(reserved)
    return ReservedCells(holders=holders, cells=cells, short=tuple(short))


class _Chain:
    """The search in one chain; ``holders`` is shared, since a node may be in two chains."""

    def __init__(self, ledger: ChainLedger, rules: NodeRules, holders: dict[str, int]) -> None:
        self.ledger, self.topology = ledger, ledger.topology
        self.rules, self.holders = rules, holders
        self.names = self.topology.node_names
        self.reserved: dict[str, set[int]] = defaultdict(set)
        self.free = [shape.full for shape in self.topology.shapes]
        for cell in ledger.owned:
            self._take(cell)

    def mark_used(self) -> None:
        """Record the tenants of bound cells as holders of their nodes."""
        for cell, owned in self.ledger.owned.items():
            tenant = self.rules.tenant_of.get(self.ledger.pools[owned.pool].vc, MIXED)
            for node in self._nodes(cell):
                self._hold(self.names[node], tenant)

    def run(self) -> list[Shortage]:
        """Reserve from the highest level down, and return the shortages."""
        short = self._inaccessible()
        for level in range(self.topology.levels, 0, -1):
            wanting = [pool for pool in self.ledger.pools if pool.unbound[level]]
            for pool in sorted(wanting, key=lambda pool: (self._usable_node_count(pool), pool.vc)):
                missing = self._reserve(pool, level)
                if missing:
                    short.append(self._shortage(pool, level, missing))
        return short

    def _inaccessible(self) -> list[Shortage]:
        """Return shortages of bound cells on nodes barred to their virtual clusters."""
        short = []
        for cell, owned in self.ledger.owned.items():
            pool = self.ledger.pools[owned.pool]
            tenant = self.rules.tenant_of.get(pool.vc, MIXED)
            barred = self.rules.barred.get(pool.vc, _NOBODY)
            lost = sum(
                self._mask(cell, node).bit_count()
                for node in self._nodes(cell)
                if self.names[node] in barred
                or self.rules.owners.get(self.names[node]) not in (None, tenant)
            )
            if lost:
                level = self.topology.types[self.topology.level[cell]]
                short.append(
                    Shortage(
                        vc=pool.vc, chain=self.topology.name, level=level, cells=1, devices=lost
                    )
                )
        return short

    def _reserve(self, pool: Pool, level: int) -> int:
        """Reserve the unbound cells of a pool and level; return the number without a place."""
        tenant = self.rules.tenant_of.get(pool.vc, MIXED)
        wanted = pool.unbound[level]
        if level >= self.topology.node_level:
            cells = sorted(self._open(pool, level), key=lambda cell: self._price(cell, tenant))
            for cell in cells[:wanted]:
                self._place(cell, pool, tenant)
            return max(wanted - len(cells), 0)
        return wanted - self._reserve_small(pool, self._open(pool, level), wanted, tenant)

    def _reserve_small(self, pool: Pool, cells: list[int], wanted: int, tenant: int) -> int:
        """Reserve up to ``wanted`` cells below node level; return the number of reserved cells."""
        on_node: dict[int, list[int]] = defaultdict(list)
        for cell in cells:
            on_node[self._nodes(cell)[0]].append(cell)
        heap = [(self._small_price(cell, tenant), cell) for cell in cells]
        heapify(heap)
        placed = 0
        while heap and placed < wanted:
            price, cell = heappop(heap)
            (node,) = self._nodes(cell)
            if not self._is_free(cell) or price != self._small_price(cell, tenant):
                continue  # a later entry has its current price
            self._place(cell, pool, tenant)
            placed += 1
            for other in on_node[node]:
                if self._is_free(other):
                    heappush(heap, (self._small_price(other, tenant), other))
        return placed

    def _is_free(self, cell: int) -> bool:
        return all(self._mask(cell, node) & ~self.free[node] == 0 for node in self._nodes(cell))

    def _usable_node_count(self, pool: Pool) -> int:
        """Return the number of nodes open to a pool."""
        barred = self.rules.barred.get(pool.vc, _NOBODY)
        return sum(name not in barred for name in self.names)

    def _open(self, pool: Pool, level: int) -> list[int]:
        """Free complete cells of a level whose nodes all take the pool's virtual cluster."""
        tenant = self.rules.tenant_of.get(pool.vc, MIXED)
        barred = self.rules.barred.get(pool.vc, _NOBODY)
        usable = [self._is_open(name, tenant, barred) for name in self.names]
        topology = self.topology
        return [
            cell
            for cell in range(topology.base[level], topology.base[level + 1])
            if topology.complete[cell]
            and all(usable[node] for node in self._nodes(cell))
            and self._is_free(cell)
        ]

    def _is_open(self, name: str, tenant: int, barred: frozenset[str]) -> bool:
        if name in barred:
            return False
        return name not in self.rules.owners or self.holders.get(name, tenant) == tenant

    def _price(self, cell: int, tenant: int) -> tuple[int, ...]:
        """Sort key: healthy nodes first, then the tenant's own, then unused; shared nodes last."""
        names = [self.names[node] for node in self._nodes(cell)]
        return (
            self.ledger.buddy.bad[cell],
            sum(name in self.rules.avoided for name in names),
            -sum(self.holders.get(name) == tenant for name in names),
            sum(name in self.rules.lent for name in names),
            sum(name not in self.rules.owners for name in names),
            cell,
        )

    def _small_price(self, cell: int, tenant: int) -> tuple[int, ...]:
        """Return the price of a small cell: parts of shared nodes precede exclusive nodes."""
        (node,) = self._nodes(cell)
        name = self.names[node]
        exclusive = name in self.rules.owners
        kind = 1 if not exclusive else 0 if self.holders.get(name) == tenant else 2
        return (
            self.ledger.buddy.bad[cell],
            int(name in self.rules.avoided),
            kind,
            int(name in self.rules.lent),
            self.free[node].bit_count(),
            cell,
        )

    def _place(self, cell: int, pool: Pool, tenant: int) -> None:
        self._take(cell)
        self.reserved[pool.vc].add(cell)
        for node in self._nodes(cell):
            self._hold(self.names[node], tenant)

    def _hold(self, name: str, tenant: int) -> None:
        if name in self.rules.owners and self.holders.setdefault(name, tenant) != tenant:
            self.holders[name] = MIXED

    def _take(self, cell: int) -> None:
        for node in self._nodes(cell):
            self.free[node] &= ~self._mask(cell, node)

    def _nodes(self, cell: int) -> range:
        if self.topology.level[cell] >= self.topology.node_level:
            return self.topology.nodes_of(cell)
        node = self.topology.node_of_leaf[self.topology.leaf_lo[cell]]
        return range(node, node + 1)

    def _mask(self, cell: int, node: int) -> int:
        if self.topology.level[cell] >= self.topology.node_level:
            return self.topology.shapes[node].full
        return self.topology.node_mask(cell)

    def _shortage(self, pool: Pool, level: int, cells: int) -> Shortage:
        return Shortage(
            vc=pool.vc,
            chain=self.topology.name,
            level=self.topology.types[level],
            cells=cells,
            devices=cells * self.topology.sizes[level][1],
        )
