"""The books of a cluster: its chains, the quota of each virtual cluster, its gangs and its health.

Everything that searches, explains or changes placements takes the books; ``CellEngine`` adds the
operations on them.
"""

from typing import NamedTuple

from scheduling.core.cells.build import build_ledgers
from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.spec import ClusterSpec
from scheduling.core.cells.topology import ClusterTopology
from tessera.messages import Parameter


class Guarantee(NamedTuple):
    """The guaranteed cells of a virtual cluster in several chains.

    Attributes:
        chain: the first chain in which the guarantee is larger than in those before it.
        total: devices in all chains.
        cells: the cells as a message parameter, for example ``2 × node, 1 × socket``.
    """

    chain: str
    total: int
    cells: Parameter


class Books:
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

    def _copy_from(self, other: "Books") -> None:
        """Take over specification, ledgers and health of books without gangs."""
        self.spec, self.topology = other.spec, other.topology
        self.guarantees = other.guarantees
        self.rosters = {name: Roster(r.ledger.copy()) for name, r in other.rosters.items()}
        self.gangs = {}
        self.bad_nodes, self.bad_devices = set(other.bad_nodes), set(other.bad_devices)
        self._index_pools()

    @property
    def is_sound(self) -> bool:
        """Whether all nodes and devices are healthy."""
        return not self.bad_nodes and not self.bad_devices

    def pool(self, vc: str, chain: str, pinned: str | None = None) -> Pool | None:
        """The quota of a virtual cluster in a chain, or its pinned cell if it is in that chain."""
        if pinned is not None and self.pinned_chain(vc, pinned) != chain:
            return None
        return self._pools.get((vc, chain if pinned is None else "", pinned))

    def pinned_chain(self, vc: str, pinned: str) -> str | None:
        """The chain of a pinned cell of a virtual cluster."""
        return self._pinned_chain.get((vc, pinned))
