"""Nodes whose CPU pools a job without devices may use: rules of nodes, health, and tenancy."""

from collections import defaultdict
from collections.abc import Collection

from scheduling.core import canaries
from scheduling.core.reasons import Reason
from scheduling.core.round.node_restrictions import is_plain
from scheduling.core.round.state import RoundState
from scheduling.core.values import QueuedJob


class PoolNodes:
    """Nodes with a pool, by the rules that also apply to jobs with devices.

    Attributes:
        users: tenants of the jobs without devices on each node, with those that this round starts.

    Args:
        deciding: the round after all other decisions.
        pools: names of the nodes with a pool.
    """

    def __init__(self, deciding: RoundState, pools: Collection[str]) -> None:
        self._deciding = deciding
        self._pools = frozenset(pools)
        self._tenants = {
            vc.tenant for vc in deciding.snapshot.vcs if vc.name != canaries.VIRTUAL_CLUSTER
        }
        self.users: dict[str, set[int]] = defaultdict(set)
        for held in deciding.snapshot.cpu_holding:
            for lease in held.leases:
                self.users[lease.node].add(held.job.tenant)

    def allowed(self, job: QueuedJob) -> frozenset[str]:
        """Return the nodes in service that the rules for nodes allow to a job."""
        allowed = self._deciding.restrictions.of(job).nodes
        return self._pools if allowed is None else allowed & self._pools

    def usable(self, job: QueuedJob) -> frozenset[str] | Reason:
        """Return the nodes that a job may use now, or the reason why it may use none."""
        deciding = self._deciding
        restriction = deciding.restrictions.of(job)
        if restriction.reason is not None:
            return restriction.reason
        barred = deciding.tenancies.barred.get(deciding.vcs[job.vc].name, frozenset())
        candidates = self.allowed(job) - barred
        found = frozenset(name for name in candidates if self._admits(name, job))
        if not found and any(self.is_open(name) for name in candidates):
            return deciding.tenancies.not_isolated(job)
        return found

    def is_open(self, name: str) -> bool:
        """Return whether a node is healthy, and neither cordoned nor draining."""
        node = self._deciding.tenancies.nodes.get(name)
        return node is not None and node.placeable and node.healthy

    def _admits(self, name: str, job: QueuedJob) -> bool:
        """Return whether a node accepts a job now.

        A node without isolation belongs to one tenant. A job without devices takes such a node
        only if no job with devices could need it: it has none, or there is no other tenant.
        """
        tenancies = self._deciding.tenancies
        if not self.is_open(name) or tenancies.clearing.get(name, job.tenant) != job.tenant:
            return False
        if name not in tenancies.owners:
            return True
        owner = tenancies.owners[name]
        if owner is not None:
            return owner == job.tenant
        if not self.users[name] <= {job.tenant}:
            return False
        if not self._deciding.engine.topology.nodes.get(name):
            return True
        # A job in a container would not take the node, and another tenant could come later.
        images_required = self._deciding.snapshot.images_required
        return self._tenants == {job.tenant} and is_plain(
            job.demand, images_required=images_required
        )
