"""Tenancy during a round of nodes that do not isolate jobs from each other.

A node whose best level for plain jobs is ``none`` belongs to one tenant. The first plain job takes
it, and only an admin releases it, since a job can leave harmful files or processes behind.
``docs/isolation.md`` has the rules, and the proof that guarantees hold:

1. Plain jobs of two tenants never meet on such a node.
2. A node with an owner takes no other tenant, even with an image: a plain job on a node with
   an engine can be root there.
3. A plain job takes an unowned node only if every guarantee still has its nodes afterwards.
4. Opportunistic jobs with an image share unowned nodes, and leave when a guarantee needs one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from scheduling.core.cells import CellEngine
from scheduling.core.cells.reserving import NodeRules, ReservedCells, reserve
from scheduling.core.jobspec import JobClass
from scheduling.core.messages import message
from scheduling.core.reasons import Reason
from scheduling.core.round.engine_setup import borrowed_devices
from scheduling.core.round.node_restrictions import barred_nodes, is_plain
from scheduling.core.round_result import PlacedMember
from scheduling.core.values import ClusterSnapshot, QueuedJob
from tessera.isolation import CONTAINER, LEVELS, NAMESPACE, NONE
from tessera.messages import Listing
from tessera.reasons import ReasonCode

Nodes = frozenset[str] | None
"""Names of usable nodes; None for all."""


class Tier(NamedTuple):
    """A set of nodes to try.

    Attributes:
        nodes: their names.
        cells: physical cells that may be opened, by chain; None for any.
    """

    nodes: Nodes
    cells: Mapping[str, frozenset[int]] | None = None


SHOWN: Final = 3
_OPPORTUNISTIC: Final = JobClass.OPPORTUNISTIC


class Tenancies:
    """Owners and users of nodes, updated with the decisions of the round.

    Args:
        snapshot: snapshot of the round.
        engine: contains all devices of ``snapshot``.
        barred: barred nodes of each virtual cluster; None if not known yet.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        engine: CellEngine,
        barred: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self.snapshot, self.engine = snapshot, engine
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.vcs = {vc.id: vc for vc in snapshot.vcs}
        self.owners = {
            node.name: node.owner
            for node in snapshot.nodes
            if node.isolation == NONE or node.owner is not None
        }
        self.barred = barred_nodes(snapshot.nodes, snapshot.vcs) if barred is None else barred
        self.bind = bool(self.owners or self.barred)
        self.version = 0
        self.clearing: dict[str, int] = {}
        self._users: dict[str, dict[int, tuple[int, bool]]] = defaultdict(dict)
        self._known: tuple[object, ReservedCells] | None = None
        if self.owners:
            self._note_users()

    def tiers(self, job: QueuedJob, nodes: Nodes) -> list[Tier]:
        """Return the tiers of nodes to try for a job, in order.

        A guaranteed job first tries all nodes, if no virtual cluster would lose a guarantee.
        Otherwise it uses only the cells that are reserved for it.

        Args:
            job: the job to place.
            nodes: suitable nodes, independently of their tenants.
        """
        if not self.bind:
            return [Tier(nodes)]
        base = frozenset(self.nodes) if nodes is None else nodes
        if job.job_class is _OPPORTUNISTIC:
            return [Tier(self._for_borrowing(job, base))]
        held = self.reservation.holders
        cells = self.reservation.cells.get(self.vcs[job.vc].name, {})
        may = frozenset(name for name in base if held.get(name, job.tenant) == job.tenant)
        if not self._is_plain(job):
            unowned = frozenset(
                name for name in base if self.owners.get(name) in (None, job.tenant)
            )
            return [Tier(may), Tier(may, cells), Tier(unowned)]
        alone = frozenset(name for name in may if not self._others(job, name))
        cleared = alone | {name for name in may if self._is_clearable(job, name)}
        tiers = [Tier(alone), Tier(alone, cells)]
        return tiers if cleared == alone else [*tiers, Tier(cleared), Tier(cleared, cells)]

    def in_the_way(self, job: QueuedJob, nodes: Iterable[str]) -> list[int]:
        """Return jobs of other tenants that must leave before a plain job starts on ``nodes``."""
        if not self.owners or not self._is_plain(job):
            return []
        return sorted({other for name in nodes for other in self._others(job, name)})

    def clear(self, job: QueuedJob, nodes: Iterable[str]) -> None:
        """Exclude other tenants from these nodes for the rest of the round."""
        self.clearing.update(dict.fromkeys(nodes, job.tenant))
        self.version += 1

    def started(self, job: QueuedJob, members: Collection[PlacedMember]) -> None:
        """Record the start of a job: it uses its nodes, and its tenant may take them."""
        if not self.owners:
            return
        for member in members:
            self._users[member.node][job.id] = job.tenant, False
            if member.isolation == NONE and self.owners.get(member.node) is None:
                self.owners[member.node] = job.tenant
                self.version += 1

    def level(self, job: QueuedJob, role: str, node: str) -> str:
        """Return the minimum isolation level at which an instance must run for a valid round."""
        facts = self.nodes.get(node)
        (has_image,) = {member.image for member in job.demand.roles if member.role == role}
        if has_image and (self.snapshot.images_required or (facts and facts.has_docker)):
            return CONTAINER
        relied_on = NONE if facts is not None and facts.isolation == NONE else NAMESPACE
        return stricter(relied_on, self.vcs[job.vc].least_isolation)

    @property
    def reservation(self) -> ReservedCells:
        """The nodes that guarantees need, by the current books."""
        stamp = (
            self.version,
            tuple(tuple(roster.ledger.owned) for roster in self.engine.rosters.values()),
        )
        if self._known is None or self._known[0] != stamp:
            self._known = stamp, reserve(self.engine, self._rules())
        return self._known[1]

    def keeps_promises(self, before: Mapping[str, int]) -> bool:
        """Return whether no virtual cluster lacks more devices than ``before``."""
        now = self.reservation.missing()
        return all(devices <= before.get(vc, 0) for vc, devices in now.items())

    def not_isolated(self, job: QueuedJob) -> Reason:
        """Build the reason of a job that only nodes of other tenants could take."""
        owned = sorted(
            name for name, owner in self.owners.items() if owner not in (None, job.tenant)
        )
        unblock = [message("ask-to-enable-namespaces")]
        if len(owned) == 1:
            found = message("node-of-other-tenant", node=owned[0])
        elif owned:
            found = message("nodes-of-other-tenants", n=len(owned))
        else:
            found = message("nodes-needed-by-guarantees")
        if owned:
            unblock.insert(0, message("ask-to-reset", nodes=Listing(tuple(owned[:SHOWN]))))
        if self._is_plain(job) and self.owners:
            unblock.append(message("give-images-and-engine"))
        return Reason(code=ReasonCode.NODE_NOT_ISOLATED, message=found, unblock=tuple(unblock))

    def _rules(self) -> NodeRules:
        return NodeRules(
            tenant_of={vc.name: vc.tenant for vc in self.snapshot.vcs},
            owners=self.owners,
            barred=self.barred,
            avoided=frozenset(name for name, node in self.nodes.items() if not node.placeable),
            lent=frozenset(
                name for name, users in self._users.items() if any(b for _, b in users.values())
            ),
        )

    def _for_borrowing(self, job: QueuedJob, base: frozenset[str]) -> frozenset[str]:
        """Return the nodes for an opportunistic job, without those that a guarantee needs."""
        if not self._is_plain(job):
            return frozenset(
                name
                for name in base
                if self.owners.get(name) in (None, job.tenant)
                and self.clearing.get(name, job.tenant) == job.tenant
            )
        exclusive = base & self.owners.keys()
        if not exclusive:
            return base
        held = self.reservation.holders
        return frozenset(
            name
            for name in base
            if name not in exclusive
            or (held.get(name, job.tenant) == job.tenant and not self._others(job, name))
        )

    def _is_plain(self, job: QueuedJob) -> bool:
        return is_plain(job.demand, images_required=self.snapshot.images_required)

    def _others(self, job: QueuedJob, node: str) -> list[int]:
        """Return the jobs of other tenants on an exclusive node."""
        if node not in self.owners:
            return []
        return [
            other
            for other, (tenant, _) in self._users.get(node, {}).items()
            if tenant != job.tenant
        ]

    def _is_clearable(self, job: QueuedJob, node: str) -> bool:
        """Return whether all jobs of other tenants on a node are opportunistic."""
        users = self._users.get(node, {})
        return all(users[other][1] for other in self._others(job, node))

    def _note_users(self) -> None:
        topology = self.engine.topology
        for job in self.snapshot.holding:
            borrows = borrowed_devices(self.engine, job) > 0
            for leaf in {leaf.address for leaves in job.members for leaf in leaves}:
                place = topology.leaves.get(leaf)
                if place is not None:
                    chain = topology.chains[place[0]]
                    name = chain.node_names[chain.node_of_leaf[place[1]]]
                    self._users[name][job.id] = job.tenant, borrows


def stricter(one: str, other: str) -> str:
    """Return the stronger of two isolation levels."""
    return max(one, other, key=LEVELS.index)
