"""The books of a cluster: its chains, the quota of each virtual cluster, its gangs and its health.

Everything that searches, explains or changes placements takes the books; ``CellEngine`` adds the
operations on them. New books are built from a specification, if all quotas and pinned cells fit.
"""

from typing import NamedTuple

from scheduling.core.cells.errors import InfeasibleSpecError, SpecError
from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.spec import ClusterSpec, VcSpec
from scheduling.core.cells.topology import ChainTopology, ClusterTopology
from tessera.messages import Parameter


class PinnedLocation(NamedTuple):
    """A pinned cell of a virtual cluster and its location."""

    vc: str
    name: str
    cell: int
    address: str


def build_ledgers(spec: ClusterSpec, topology: ClusterTopology) -> dict[str, ChainLedger]:
    """Build the ledger of each chain, with all quotas counted and all pinned cells bound.

    Raises:
        InfeasibleSpecError: the quotas do not fit; the message is the witness.
        SpecError: a quota or a pinned cell names an unknown chain, level or address.
    """
    wanted = {address for vc in spec.virtual_clusters.values() for address in vc.pinned.values()}
    addresses = {
        address: (name, cell)
        for name, chain in topology.chains.items()
        for cell, address in enumerate(chain.address)
        if address in wanted
    }
    ledgers = {name: ChainLedger(chain) for name, chain in topology.chains.items()}
    pinned: list[tuple[ChainLedger, Pool, PinnedLocation]] = []
    for vc, shares in sorted(spec.virtual_clusters.items()):
        slot = _add_quotas(ledgers, vc, shares)
        for pin, address in shares.pinned.items():
            if address not in addresses:
                raise _no_such_cell(vc, pin, address)
            chain, cell = addresses[address]
            pinned.append(
                _add_pinned(ledgers[chain], PinnedLocation(vc, pin, cell, address), slot)
            )
            slot += 1
    for name, ledger in ledgers.items():
        witness = _shortage(topology.chains[name], ledger.buddy.free_count, ledger.buddy.claimed)
        if witness:
            raise _infeasible(witness)
    for ledger, pool, pinned_cell in pinned:
        _bind_pinned(ledger, pool, pinned_cell)
    for name, ledger in ledgers.items():
        witness = _shortage(topology.chains[name], ledger.buddy.free_count, ledger.buddy.claimed)
        if witness:
            raise _infeasible(f"{witness} in addition to the pinned cells")
    return ledgers


def _shortage(topology: ChainTopology, free: list[int], claimed: list[int]) -> str:
    """Return the highest level with fewer cells than claims, or an empty string."""
    left = 0
    for level in range(topology.levels, 0, -1):
        fan = topology.fan[level + 1] if level < topology.levels else 0
        have = left * fan + free[level]
        left = have - claimed[level]
        if left < 0:
            return (
                f"at level {topology.types[level]} chain {topology.name} needs"
                f" {claimed[level]}, has {have}"
            )
    return ""


def _infeasible(witness: str) -> InfeasibleSpecError:
    return InfeasibleSpecError(
        f"the quotas do not fit: {witness}",
        field="virtual_clusters",
        value=witness,
        remedy="lower a quota at or above that level, or add cells",
    )


def _add_quotas(ledgers: dict[str, ChainLedger], vc: str, shares: VcSpec) -> int:
    slot = 0
    pools: dict[str, Pool] = {}
    for i, quota in enumerate(shares.quotas):
        ledger = ledgers.get(quota.chain)
        level = ledger.topology.level_named(quota.level) if ledger else None
        if ledger is None or level is None:
            raise SpecError(
                f"virtual cluster {vc!r} has a quota of {quota.level!r} in chain {quota.chain!r},"
                f" which has no such {'level' if ledger else 'chain'}",
                field=f"virtual_clusters.{vc}.quotas[{i}]",
                value=f"{quota.chain}.{quota.level}",
                remedy=f"use one of the chains {sorted(ledgers)} and a level of it",
            )
        if quota.count > ledger.buddy.total_left[level]:
            raise _infeasible(
                f"at level {quota.level} chain {quota.chain} needs {quota.count},"
                f" has {ledger.buddy.total_left[level]}"
            )
        pool = pools.get(quota.chain)
        if pool is None:
            pool = pools[quota.chain] = ledger.add_pool(vc, None)
        for _ in range(quota.count):
            pool.add_slot(level, slot)
            slot += 1
        ledger.buddy.claimed[level] += quota.count
    return slot


def _add_pinned(
    ledger: ChainLedger, pin: PinnedLocation, slot: int
) -> tuple[ChainLedger, Pool, PinnedLocation]:
    level = ledger.topology.level[pin.cell]
    pool = ledger.add_pool(pin.vc, pin.name)
    pool.add_slot(level, slot)
    if ledger.topology.complete[pin.cell]:
        ledger.buddy.claimed[level] += 1
    return ledger, pool, pin


def _no_such_cell(vc: str, pin: str, address: str) -> SpecError:
    return SpecError(
        f"virtual cluster {vc!r}: pinned cell {pin!r} is at {address!r}, which is not the "
        f"address of a cell",
        field=f"virtual_clusters.{vc}.pinned.{pin}",
        value=address,
        remedy="give the full address of a physical cell",
    )


def _bind_pinned(ledger: ChainLedger, pool: Pool, pin: PinnedLocation) -> None:
    topology, cell, address = ledger.topology, pin.cell, pin.address
    below = (c for c in ledger.owned if _overlap(topology, c, cell))
    if any(True for _ in below):
        raise SpecError(
            f"the pinned cell at {address!r} overlaps another pinned cell",
            field="virtual_clusters",
            value=address,
            remedy="pin cells that do not overlap",
        )
    if topology.complete[cell]:
        ledger.own(pool, cell)
        return
    for root in topology.roots:
        if _overlap(topology, root, cell):
            ledger.buddy.allocate(root)
    ledger.adopt(pool, cell, counted=False)


def _overlap(topology: ChainTopology, one: int, other: int) -> bool:
    low, high = topology.leaf_lo, topology.leaf_hi
    return low[one] < high[other] and low[other] < high[one]


class Guarantee(NamedTuple):
    """The guaranteed cells of a virtual cluster in several chains.

    Attributes:
        chain: the chain with the largest guarantee; the first one in a tie.
        total: devices in all chains.
        cells: the cells as a message parameter, for example ``2 × node, 1 × socket``.
    """

    chain: str
    total: int
    cells: Parameter


class CellBooks:
    """The state of a cluster of cells.

    Attributes:
        spec: the specification.
        topology: the numbered cells of each chain.
        rosters: chain name -> users and claims of its devices; ``roster.ledger`` counts them.
        guarantees: cached guarantees by virtual cluster, pinned cell and chains. They depend on
            the specification only, so copies share them.
        gangs: gang name -> gang with devices or claims.
        bad_nodes: names of the unhealthy nodes.
        bad_devices: unhealthy devices as (node name, device index).

    Raises:
        SpecError: the specification is invalid, or its quotas do not fit.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.topology = ClusterTopology(spec)
        self.rosters = {
            name: Roster(ledger) for name, ledger in build_ledgers(spec, self.topology).items()
        }
        self.guarantees: dict[tuple[object, ...], Guarantee] = {}
        self.gangs: dict[str, Gang] = {}
        self.bad_nodes: set[str] = set()
        self.bad_devices: set[tuple[str, int]] = set()
        self._index_pools()

    def _index_pools(self) -> None:
        self._pools: dict[tuple[str, str, str | None], Pool] = {}
        for name, roster in self.rosters.items():
            for pool in roster.ledger.pools:
                self._pools[pool.vc, name if pool.pinned is None else "", pool.pinned] = pool
        self._pinned_chain = {
            (pool.vc, pool.pinned): name
            for name, roster in self.rosters.items()
            for pool in roster.ledger.pools
            if pool.pinned is not None
        }

    def _copy_from(self, other: "CellBooks") -> None:
        """Copy specification, ledgers and health of books without gangs."""
        self.spec, self.topology = other.spec, other.topology
        self.guarantees = other.guarantees
        self.rosters = {name: Roster(r.ledger.copy()) for name, r in other.rosters.items()}
        self.gangs = {}
        self.bad_nodes, self.bad_devices = set(other.bad_nodes), set(other.bad_devices)
        self._index_pools()

    @property
    def is_sound(self) -> bool:
        """Return whether all nodes and devices are healthy."""
        return not self.bad_nodes and not self.bad_devices

    @property
    def quota_changes(self) -> int:
        """Number of gangs that lost or regained their quota."""
        return sum([roster.quota_changes for roster in self.rosters.values()])

    def pool(self, vc: str, chain: str, pinned: str | None = None) -> Pool | None:
        """Return the quota of a virtual cluster in a chain, or its pinned cell in that chain."""
        if pinned is not None and self.pinned_chain(vc, pinned) != chain:
            return None
        return self._pools.get((vc, chain if pinned is None else "", pinned))

    def pinned_chain(self, vc: str, pinned: str) -> str | None:
        """Return the chain of a pinned cell of a virtual cluster."""
        return self._pinned_chain.get((vc, pinned))
