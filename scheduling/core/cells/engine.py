"""The cell engine: decisions on the placement of gangs, and the operations that execute them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from scheduling.core.cells import explain, lifecycle, views
from scheduling.core.cells.admission import candidate_chains, never_fit_together
from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.decisions import (
    RefusalCache,
    claims_are_usable,
    repeat_decision,
    to_decision,
)
from scheduling.core.cells.doomed_cells import update_doomed_cells
from scheduling.core.cells.errors import RequestError, StaleDecisionError
from scheduling.core.cells.gangs import Gang
from scheduling.core.cells.preemption import PlacementPlan
from scheduling.core.cells.remedies import Remedies, remedies
from scheduling.core.cells.requests import (
    Bind,
    Decision,
    GangRequest,
    GroupState,
    GroupView,
    Phase,
    Placed,
    Preempt,
    Restored,
    Wait,
)
from scheduling.core.cells.restoring import renumber, restore_gang
from scheduling.core.cells.search import find, find_with_eviction
from scheduling.core.cells.spec import ClusterSpec


class CellEngine(CellBooks):
    """Places gangs so that no virtual cluster can break the guarantee of another.

    A decision changes nothing. ``commit`` executes a ``Bind``, ``begin`` a ``Preempt``. With
    ``Phase.PREEMPTING``, a ``Preempt`` is begun at once.

    Args:
        spec: the specification of the cluster.
        healthy: whether nodes are healthy until their health is reported.

    Raises:
        SpecError: the specification is invalid, or its quotas do not fit.
    """

    def __init__(self, spec: ClusterSpec, *, healthy: bool = True) -> None:
        super().__init__(spec)
        self._start_versions()
        if not healthy:
            for node in self.topology.nodes:
                self.set_node_health(node, healthy=False)

    def _start_versions(self) -> None:
        self.version = 0
        self._refusals = RefusalCache()
        self._chains: dict[tuple[object, ...], list[str]] = {}

    def fresh_copy(self) -> "CellEngine":
        """Copy an engine without gangs; cheaper than building one.

        Raises:
            RequestError: the engine has gangs.
        """
        if self.gangs:
            raise RequestError(
                "only an engine without gangs can be copied", field="engine", remedy="restore"
            )
        other = object.__new__(CellEngine)
        other._copy_from(self)
        other._start_versions()
        return other

    # Decisions

    def schedule(
        self,
        request: GangRequest,
        *,
        phase: Phase = Phase.FILTERING,
        suggested: Collection[str] | None = None,
    ) -> Decision:
        """Decide on a gang: its placement, the gangs to evict, or the reason for its wait.

        Args:
            request: the gang.
            phase: with PREEMPTING, the engine marks victims and claims their devices at once.
            suggested: names of the allowed nodes, unless the request ignores them.

        Raises:
            RequestError: the request can never be scheduled as written.
        """
        known = self.gangs.get(request.group)
        if known is not None:
            if phase is not Phase.PREEMPTING or claims_are_usable(self, known, suggested):
                return repeat_decision(known, self.version)
            self.release(known.name)
        nodes = None if request.ignore_suggested or suggested is None else frozenset(suggested)
        remembered = self._refusals.find(self, self.version, request, nodes)
        if remembered is not None:
            return remembered
        chains = self._candidate_chains(request)
        decision = self._decide(request, chains, nodes)
        if isinstance(decision, Preempt) and phase is Phase.PREEMPTING:
            self.begin(decision)
        return decision

    def place(self, request: GangRequest, *, suggested: Collection[str] | None = None) -> Decision:
        """Schedule a gang and commit it at once if it can start; faster than two calls.

        Returns:
            A ``Bind`` that is already committed (its placements have virtual addresses), or the
            decision of ``schedule``.
        """
        if request.group in self.gangs:
            decision = self.schedule(request, suggested=suggested)
        else:
            nodes = None if request.ignore_suggested or suggested is None else frozenset(suggested)
            remembered = self._refusals.find(self, self.version, request, nodes)
            if remembered is not None:
                return remembered
            chains = self._candidate_chains(request)
            for chain in chains:
                plan = find(self, request, chain, nodes, keep=True)
                if plan is not None and plan.applied:
                    gang = self.gangs[request.group] = lifecycle.start(plan, request)
                    self._changed(frees=False)
                    placed = views.placements(gang)
                    return Bind(
                        request=request, chain=chain, placements=placed, version=self.version
                    )
                if plan is not None:
                    return to_decision(plan, request, chain, self.version)
            decision = self._evict(request, chains, nodes)
        if isinstance(decision, Bind):
            return replace(decision, placements=self.commit(decision))
        return decision

    def remedies(self, wait: Wait, *, suggested: Collection[str] | None = None) -> Remedies:
        """Search for the smallest changes that let a refused gang start; each result was tried.

        Args:
            wait: the refusal; the engine must not have changed since.
            suggested: names of the nodes that it was restricted to.
        """
        return remedies(self, wait, suggested)

    def recounted(self, refusals: Iterable[Wait]) -> list[Wait]:
        """Update the device counts of refusals after further starts.

        ``blocked_by`` still names the gangs at the time of the refusal.
        """
        recount = explain.Recount(self)
        return [recount.update(one, self._candidate_chains(one.request)) for one in refusals]

    def never(self, request: GangRequest) -> Wait | None:
        """Return the refusal of a gang that never fits on an empty, healthy cluster, or None.

        Raises:
            RequestError: the request can never be scheduled as written.
        """
        return explain.never_fits(self, request, self._candidate_chains(request))

    def never_together(self, requests: Sequence[GangRequest]) -> Wait | None:
        """Return the refusal of roles that cannot run together even on an idle cluster, or None.

        Raises:
            RequestError: a request can never be scheduled as written.
        """
        return never_fit_together(self, [(r, self._candidate_chains(r)) for r in requests])

    def hindrance(self, wait: Wait, *, suggested: Collection[str] | None = None) -> Wait | None:
        """Return the refusal of a gang that would wait even without other gangs, or None.

        Args:
            wait: the refusal; the engine must not have changed since.
            suggested: names of the nodes to which it was restricted.
        """
        request = wait.request
        nodes = None if request.ignore_suggested or suggested is None else frozenset(suggested)
        return explain.lasting_refusal(self, request, self._candidate_chains(request), nodes)

    @contextmanager
    def reserved(self, vc: str, cells: Mapping[str, frozenset[int]]) -> Iterator[None]:
        """Restrict the cells that a virtual cluster may open inside the ``with`` block.

        Args:
            vc: the virtual cluster.
            cells: numbers of physical cells by chain. The cells of all virtual clusters together
                must have room for every quota.
        """
        pools = []
        for name in self.rosters:
            pool = self.pool(vc, name)
            if pool is not None:
                pool.reserved = cells.get(name, frozenset())
                pools.append(pool)
        self._refusals.clear()
        try:
            yield
        finally:
            for pool in pools:
                pool.reserved = None
            self._refusals.clear()

    def commit(self, bind: Bind) -> tuple[Placed, ...]:
        """Execute a ``Bind``: the gang uses its devices from now on.

        Returns:
            The placements, with the virtual addresses to be stored in the leases.

        Raises:
            StaleDecisionError: the engine has changed since the decision. Schedule again.
        """
        known = self.gangs.get(bind.request.group)
        if known is not None:
            if known.state is GroupState.PREEMPTING and not known.victims:
                lifecycle.promote(known)
                self._changed(frees=False)
            return views.placements(known)
        plan = self._fresh_plan(bind)
        gang = self.gangs[bind.request.group] = lifecycle.start(plan, bind.request)
        self._forget(plan.cancelled)
        self._changed(frees=bool(plan.lowered or plan.cancelled))
        return views.placements(gang)

    def begin(self, preempt: Preempt) -> tuple[Placed, ...]:
        """Execute a ``Preempt``: mark the victims and claim their devices.

        Raises:
            StaleDecisionError: the engine has changed since the decision. Schedule again.
        """
        known = self.gangs.get(preempt.request.group)
        if known is not None:
            return views.placements(known)
        plan = self._fresh_plan(preempt)
        gang = lifecycle.claim(plan, preempt.request)
        self.gangs[preempt.request.group] = gang
        self._forget(plan.cancelled)
        self._changed(frees=True)
        return views.placements(gang)

    def release(self, group: str) -> None:
        """Remove a gang that has ended, or cancel its preemption. Unknown names are ignored."""
        gang = self.gangs.pop(group, None)
        if gang is not None:
            waited = gang.state is GroupState.PREEMPTING
            lifecycle.end(gang)
            if waited:
                self._undo_lowering(gang)
            self._changed(frees=True)

    def _forget(self, cancelled: Sequence[Gang]) -> None:
        """Remove gangs with cancelled claims, and return the quota that they had taken."""
        for gang in cancelled:
            del self.gangs[gang.name]
            self._undo_lowering(gang)

    def _undo_lowering(self, gang: Gang) -> None:
        """Return the quota that a preemptor had taken before it could start."""
        for name in gang.lowered:
            lowered = self.gangs.get(name)
            if lowered is not None and lowered.lazy_by == gang.name:
                lifecycle.regain_quota(lowered)

    def restore(
        self,
        request: GangRequest,
        placements: Sequence[Placed],
        *,
        preempting: bool = False,
    ) -> Restored:
        """Take over a running gang from its leases, without evicting any gang.

        If its virtual cluster does not own its cells any more, the gang continues as
        opportunistic.
        With ``preempting`` the placements are the claims of a preemptor. Restore it after all
        running gangs.

        Raises:
            RequestError: the engine has a gang of this name.
        """
        restored = restore_gang(self, request, placements, preempting=preempting)
        self._refusals.clear()
        self._changed(frees=True)
        return restored

    def renumber(self, names: Iterable[str]) -> bool:
        """Number virtual cells as if the gangs of some names had been restored in their order.

        Numbers decide between equal cells. Therefore this engine decides like one that is restored
        in each round.

        Args:
            names: all gangs, the running ones before those with claims.

        Returns:
            False if nothing was changed, since unhealthy cells are bound to quotas; their numbers
            depend on the order of failures.
        """
        return renumber(self, names)

    def return_to_guaranteed(self) -> tuple[str, ...]:
        """Return free quota to gangs that had lost it, highest priority first.

        Returns:
            Names of the gangs that are guaranteed again.
        """
        lowered = [g for g in self.gangs.values() if g.lazy_by is not None and not g.guaranteed]
        lowered.sort(key=lambda g: -g.request.priority)
        regained = tuple(g.name for g in lowered if lifecycle.regain_quota(g))
        if regained:
            self._changed(frees=True)
        return regained

    def set_now(self, now: float) -> None:
        """Set the time up to which evictions lose the work of gangs (``Gang.stake``)."""
        for roster in self.rosters.values():
            roster.now = now

    # Health

    def set_node_health(self, node: str, *, healthy: bool) -> None:
        """Set the health of a node with all its devices. Unknown names are ignored."""
        if healthy == (node not in self.bad_nodes):
            return
        (self.bad_nodes.discard if healthy else self.bad_nodes.add)(node)
        self._apply_health(node)

    def set_device_health(self, node: str, device: int, *, healthy: bool) -> None:
        """Set the health of a device. Unknown devices are ignored."""
        key = (node, device)
        if key not in self.topology.devices or healthy == (key not in self.bad_devices):
            return
        (self.bad_devices.discard if healthy else self.bad_devices.add)(key)
        self._apply_health(node)

    def set_avoided(self, devices: Iterable[tuple[str, int]]) -> None:
        """Set the devices (node and index) that searches avoid between equal choices.

        Unknown devices are ignored.
        """
        for roster in self.rosters.values():
            roster.ledger.avoided = {}
        for key in devices:
            place = self.topology.devices.get(key)
            if place is None:
                continue
            chain, leaf = place
            ledger = self.rosters[chain].ledger
            node = ledger.topology.node_of_leaf[leaf]
            number = list(ledger.topology.devices_of(node)).index(key[1])
            ledger.avoided[node] = ledger.avoided.get(node, 0) | 1 << number
        self._changed(frees=False)

    def _apply_health(self, node: str) -> None:
        for chain, number in self.topology.nodes.get(node, ()):
            ledger = self.rosters[chain].ledger
            sound = [
                node not in self.bad_nodes and (node, device) not in self.bad_devices
                for device in ledger.topology.devices_of(number)
            ]
            ledger.set_healthy(number, sum(1 << i for i, well in enumerate(sound) if well))
            update_doomed_cells(ledger)
        self._refusals.clear()
        self._changed(frees=True)

    # Views

    def group(self, name: str) -> GroupView | None:
        """Return the view of a gang, or None if it is unknown."""
        gang = self.gangs.get(name)
        return views.group_view(gang) if gang is not None else None

    def free_view(self) -> dict[str, object]:
        """Free cells and largest gangs by chain, and the accounts of each virtual cluster."""
        return views.free_view(self)

    # Inside

    def _changed(self, *, frees: bool) -> None:
        self.version += 1
        if frees:
            self._refusals.freed()

    def _fresh_plan(self, decision: Bind | Preempt) -> PlacementPlan:
        plan = decision.plan
        if (
            not isinstance(plan, PlacementPlan)
            or decision.version != self.version
            or plan.roster is not self.rosters.get(decision.chain)
        ):
            raise StaleDecisionError(
                "the cluster has changed since this decision",
                field="version",
                value=decision.version,
                remedy="schedule again",
            )
        return plan

    def _candidate_chains(self, request: GangRequest) -> list[str]:
        key = (request.vc, request.leaf_types, request.pinned, request.priority >= 0)
        chains = self._chains.get(key)
        if chains is None:
            chains = self._chains[key] = candidate_chains(self, request)
        return chains

    def _decide(
        self, request: GangRequest, chains: list[str], nodes: frozenset[str] | None
    ) -> Decision:
        for chain in chains:
            plan = find(self, request, chain, nodes)
            if plan is not None:
                return to_decision(plan, request, chain, self.version)
        return self._evict(request, chains, nodes)

    def _evict(
        self, request: GangRequest, chains: list[str], nodes: frozenset[str] | None
    ) -> Decision:
        """Decide about a gang that fits only after evictions; refusals are cached."""
        for chain in chains:
            plan = find_with_eviction(self, request, chain, nodes)
            if plan is not None:
                return to_decision(plan, request, chain, self.version)
        refusal = explain.refusal_of(self, request, chains, nodes)
        self._refusals.store(self, self.version, refusal, chains, nodes)
        return refusal
