"""The cell engine: one object that holds the books of a cluster and decides where gangs go."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from scheduling.core.cells import explain, lifecycle, views
from scheduling.core.cells.admission import candidate_chains
from scheduling.core.cells.books import Books
from scheduling.core.cells.decisions import (
    RefusalCache,
    claims_are_usable,
    repeat_decision,
    to_decision,
)
from scheduling.core.cells.doomed_cells import update_doomed_cells
from scheduling.core.cells.errors import RequestError, StaleDecisionError
from scheduling.core.cells.gangs import Gang
from scheduling.core.cells.multi_role_fit import never_fit_together
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
from scheduling.core.cells.restoring import restore_gang
from scheduling.core.cells.search import find, find_with_eviction
from scheduling.core.cells.spec import ClusterSpec


class CellEngine(Books):
    """Decides where gangs go so that no virtual cluster can break another's guarantee.

    Decisions change nothing; ``commit`` carries out a ``Bind`` and ``begin`` a ``Preempt``. With
    ``Phase.PREEMPTING`` a ``Preempt`` is begun at once.

    Args:
        spec: the cluster.
        healthy: whether nodes count as healthy before their health is reported.

    Raises:
        SpecError: the specification cannot be built, or its quotas do not fit.
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
        """An independent engine of the same specification; this one must have no gangs."""
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
        """Where the gang goes, whom it would have to evict, or why it waits.

        Args:
            request: the gang.
            phase: with PREEMPTING, victims are marked and their devices claimed at once.
            suggested: names of the nodes that may be used, unless the request ignores them.

        Raises:
            RequestError: the request can never be scheduled as written; nothing has changed.
        """
        known = self.gangs.get(request.group)
        if known is not None:
            if phase is not Phase.PREEMPTING or claims_are_usable(self, known, suggested):
                return repeat_decision(known, self.version)
            self.release(known.name)
        nodes = None if request.ignore_suggested or suggested is None else frozenset(suggested)
        remembered = self._refusals.find(request, nodes)
        if remembered is not None:
            return remembered
        chains = self._candidate_chains(request)
        decision = self._decide(request, chains, nodes)
        if isinstance(decision, Preempt) and phase is Phase.PREEMPTING:
            self.begin(decision)
        return decision

    def place(self, request: GangRequest, *, suggested: Collection[str] | None = None) -> Decision:
        """Schedule, and commit at once what can start: one pass over the books instead of three.

        Returns:
            A ``Bind`` that is carried out (its placements have virtual addresses), or what
            ``schedule`` answers.
        """
        if request.group in self.gangs:
            decision = self.schedule(request, suggested=suggested)
        else:
            nodes = None if request.ignore_suggested or suggested is None else frozenset(suggested)
            remembered = self._refusals.find(request, nodes)
            if remembered is not None:
                return remembered
            chains = self._candidate_chains(request)
            for chain in chains:
                plan = find(self, request, chain, nodes, keep=True)
                if plan is not None and plan.applied:
                    return self._placed(request, chain, plan)
                if plan is not None:
                    return to_decision(plan, request, chain, self.version)
            decision = self._evict(request, chains, nodes)
        if isinstance(decision, Bind):
            return replace(decision, placements=self.commit(decision))
        return decision

    def remedies(self, wait: Wait, *, suggested: Collection[str] | None = None) -> Remedies:
        """The smallest changes found that would let a refused gang start; each has been tried.

        Args:
            wait: the refusal; the engine must not have changed since.
            suggested: the nodes that it was restricted to.
        """
        return remedies(self, wait, suggested)

    def recounted(self, refusals: Iterable[Wait]) -> list[Wait]:
        """Refusals with the numbers of the books as they are now, after further starts.

        ``blocked_by`` names who was in the way at the trial.
        """
        count = explain.Recount(self)
        return [count.of(one, self._candidate_chains(one.request)) for one in refusals]

    def never(self, request: GangRequest) -> Wait | None:
        """Why no end of others and no repair would let a gang start; None if one might.

        Raises:
            RequestError: the request can never be scheduled as written.
        """
        return explain.never_fits(self, request, self._candidate_chains(request))

    def never_together(self, requests: Sequence[GangRequest]) -> Wait | None:
        """Why the parts of a job would not be there at once whatever others did; else None.

        Raises:
            RequestError: one of them can never be scheduled as written.
        """
        return never_fit_together(self, [(r, self._candidate_chains(r)) for r in requests])

    def hindrance(self, wait: Wait, *, suggested: Collection[str] | None = None) -> Wait | None:
        """Why a refused gang would not start by the end of others alone; None if it might.

        Args:
            wait: the refusal; the engine must not have changed since.
            suggested: the nodes that it was restricted to.
        """
        request = wait.request
        nodes = None if request.ignore_suggested or suggested is None else frozenset(suggested)
        return explain.lasting_refusal(self, request, self._candidate_chains(request), nodes)

    @contextmanager
    def reserved(self, vc: str, cells: Mapping[str, frozenset[int]]) -> Iterator[None]:
        """Meanwhile a virtual cluster opens no other cells than these.

        Args:
            vc: the virtual cluster.
            cells: numbers of physical cells by chain; together with those of all other virtual
                clusters they must have room for every quota.
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

    def _placed(self, request: GangRequest, chain: str, plan: PlacementPlan) -> Bind:
        gang = self.gangs[request.group] = lifecycle.start(plan, request)
        self._changed(frees=False)
        return Bind(
            request=request, chain=chain, placements=views.placements(gang), version=self.version
        )

    def commit(self, bind: Bind) -> tuple[Placed, ...]:
        """Carry out a decision: the gang uses its devices from now on.

        Returns:
            The placements, with the virtual addresses that a lease has to keep.

        Raises:
            StaleDecisionError: the engine has changed since the decision; decide again.
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
        """Mark the victims and claim their devices; the gang is Preempting from now on."""
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
        """The gang is gone (or gives up waiting for its victims). Unknown names do nothing."""
        gang = self.gangs.pop(group, None)
        if gang is not None:
            waited = gang.state is GroupState.PREEMPTING
            lifecycle.end(gang)
            if waited:
                self._undo_lowering(gang)
            self._changed(frees=True)

    def _forget(self, cancelled: Sequence[Gang]) -> None:
        """Remove gangs whose claims were cancelled, and return the quota that they had taken."""
        for gang in cancelled:
            del self.gangs[gang.name]
            self._undo_lowering(gang)

    def _undo_lowering(self, gang: Gang) -> None:
        """A preemptor that never started costs nobody the quota."""
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
        """Take over a running gang from its leases; it is never evicted by this.

        A gang whose virtual cluster does not own its cells any more goes on as opportunistic.
        With ``preempting`` the placements are a preemptor's claims instead; restore it last.
        """
        restored = restore_gang(self, request, placements, preempting=preempting)
        self._changed(frees=True)
        return restored

    def return_to_guaranteed(self) -> tuple[str, ...]:
        """Give gangs that lost their quota theirs back where free; highest priority first."""
        lowered = [g for g in self.gangs.values() if g.lazy_by is not None and not g.guaranteed]
        lowered.sort(key=lambda g: -g.request.priority)
        regained = tuple(g.name for g in lowered if lifecycle.regain_quota(g))
        if regained:
            self._changed(frees=True)
        return regained

    # Health

    def set_node_health(self, node: str, *, healthy: bool) -> None:
        """All devices of a node are usable, or none is. Unknown names do nothing."""
        if healthy == (node not in self.bad_nodes):
            return
        (self.bad_nodes.discard if healthy else self.bad_nodes.add)(node)
        self._apply_health(node)

    def set_device_health(self, node: str, device: int, *, healthy: bool) -> None:
        """One device of a node is usable, or not. Unknown devices do nothing."""
        key = (node, device)
        if key not in self.topology.devices or healthy == (key not in self.bad_devices):
            return
        (self.bad_devices.discard if healthy else self.bad_devices.add)(key)
        self._apply_health(node)

    def _apply_health(self, node: str) -> None:
        for chain, number in self.topology.nodes.get(node, ()):
            ledger = self.rosters[chain].ledger
            sound = [
                node not in self.bad_nodes and (node, device) not in self.bad_devices
                for device in ledger.topology.devices_of(number)
            ]
            ledger.set_healthy(number, sum(1 << i for i, well in enumerate(sound) if well))
            update_doomed_cells(ledger)
        self._changed(frees=True)

    # Views

    def group(self, name: str) -> GroupView | None:
        """A gang, or None."""
        gang = self.gangs.get(name)
        return views.group_view(gang) if gang is not None else None

    def free_view(self) -> dict[str, object]:
        """Free cells and largest gangs by chain, and the books of every virtual cluster."""
        return views.free_view(self)

    # Inside

    def _changed(self, *, frees: bool) -> None:
        self.version += 1
        if frees:
            self._refusals.clear()

    def _fresh_plan(self, decision: Bind | Preempt) -> PlacementPlan:
        plan = decision.plan
        if (
            not isinstance(plan, PlacementPlan)
            or decision.version != self.version
            or plan.roster is not self.rosters.get(decision.chain)
        ):
            raise StaleDecisionError(
                "the cluster has changed since this was decided",
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
        """The answer for a gang that fits nowhere as it is; a refusal is remembered."""
        for chain in chains:
            plan = find_with_eviction(self, request, chain, nodes)
            if plan is not None:
                return to_decision(plan, request, chain, self.version)
        refusal = explain.refusal_of(self, request, chains, nodes)
        self._refusals.store(refusal, nodes)
        return refusal
