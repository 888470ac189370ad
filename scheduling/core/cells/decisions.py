"""Decisions as values: from a plan, for an existing gang, and cached refusals."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from scheduling.core.cells import views
from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.gangs import Gang
from scheduling.core.cells.preemption import PlacementPlan
from scheduling.core.cells.requests import Bind, GangRequest, GroupState, Preempt, Wait
from scheduling.core.cells.search import allowed_nodes


def to_decision(
    plan: PlacementPlan, request: GangRequest, chain: str, version: int
) -> Bind | Preempt:
    """Build the decision for a plan: a ``Preempt`` if it has victims, else a ``Bind``.

    Claims that the plan overrides have no running work: the commit cancels them.
    """
    if not plan.victims:
        return Bind(
            request=request,
            chain=chain,
            placements=views.planned(plan),
            downgraded=tuple(g.name for g in plan.lowered),
            version=version,
            plan=plan,
        )
    return Preempt(
        request=request,
        chain=chain,
        placements=views.planned(plan),
        victims=tuple(g.name for g in plan.victims),
        victim_nodes=views.victim_nodes(plan.roster, plan.spots),
        downgraded=tuple(g.name for g in plan.lowered),
        version=version,
        plan=plan,
    )


def repeat_decision(gang: Gang, version: int) -> Bind | Preempt:
    """Repeat the decision for an existing gang: its placements, or its remaining victims."""
    placements = views.placements(gang)
    chain = placements[0].chain if placements else ""
    if gang.state is not GroupState.PREEMPTING or not gang.victims:
        return Bind(request=gang.request, chain=chain, placements=placements, version=version)
    return Preempt(
        request=gang.request,
        chain=chain,
        placements=placements,
        victims=tuple(sorted(gang.victims)),
        victim_nodes=views.victim_nodes(gang.roster, gang.spots),
        version=version,
    )


def claims_are_usable(books: CellBooks, gang: Gang, suggested: Collection[str] | None) -> bool:
    """Return whether all claims of a gang are on healthy, allowed devices; True if it runs."""
    if gang.state is not GroupState.PREEMPTING:
        return True
    assert gang.roster is not None  # noqa: S101 (it has claims)
    ledger = gang.roster.ledger
    nodes = None if gang.request.ignore_suggested else suggested
    allowed = allowed_nodes(books.topology, ledger.topology.name, nodes)
    return all(
        spot.mask & ~ledger.healthy[spot.node] == 0
        and (allowed is None or allowed >> spot.node & 1)
        for spot in gang.spots
    )


MOST_REFUSALS: Final = 4096


class _Refusal(NamedTuple):
    """A cached refusal.

    Attributes:
        chains: the candidate chains.
        version: version of the engine.
        frees: number of frees before it.
        state: the only state that it depends on (``_own_state``).
    """

    wait: Wait
    chains: Sequence[str]
    version: int
    frees: int
    state: tuple[int, ...] | None


class RefusalCache:
    """Refusals by request shape, valid until devices that they depend on are freed.

    Starting further gangs cannot make a refused request fit, so only ``clear`` and ``freed``
    invalidate them. Opportunistic requests of all virtual clusters share a refusal until any
    change, since its numbers are from one trial.
    """

    __slots__ = ("_frees", "_waits")

    def __init__(self) -> None:
        self._frees = 0
        self._waits: dict[tuple[object, ...], _Refusal] = {}

    def find(
        self, books: CellBooks, version: int, request: GangRequest, nodes: frozenset[str] | None
    ) -> Wait | None:
        """Return the cached refusal of a request of equal shape, for this request."""
        if not self._waits:
            return None
        shape = _shape(request, nodes)
        found = self._waits.get(shape)
        if found is not None and found.frees != self._frees:
            state = found.state
            if state is not None and state == _own_state(books, request, found.chains, nodes):
                self._waits[shape] = found._replace(frees=self._frees)
            else:
                found = None
        if found is None:
            found = self._shared(books, version, request, nodes)
            if found is None:
                return None
            self._waits[shape] = found
        known = found.wait
        others = known.blocked_by
        if request.group in others:
            others = tuple(name for name in others if name != request.group)
        # ``replace`` takes five times as long, and a round does this for hundreds of gangs.
        return Wait(
            request=request,
            code=known.code,
            message=known.message,
            reason=known.reason,
            blocked_by=others,
            unblock=known.unblock,
            chain=known.chain,
            level=known.level,
            quota=known.quota,
            nodes=known.nodes,
            counts=known.counts,
            free=known.free,
        )

    def _shared(
        self, books: CellBooks, version: int, request: GangRequest, nodes: frozenset[str] | None
    ) -> _Refusal | None:
        """Return the refusal of an equal opportunistic request of any virtual cluster."""
        if request.guaranteed or request.vc not in books.spec.virtual_clusters:
            return None
        found = self._waits.get(_shape(request, nodes, of_any=True))
        return found if found is not None and found.version == version else None

    def store(
        self,
        books: CellBooks,
        version: int,
        wait: Wait,
        chains: Sequence[str],
        nodes: frozenset[str] | None,
    ) -> None:
        """Cache a refusal for requests of the same shape on the same nodes."""
        if len(self._waits) >= MOST_REFUSALS:
            self._waits.clear()
        request = wait.request
        state = _own_state(books, request, chains, nodes)
        found = _Refusal(wait, chains, version, self._frees, state)
        self._waits[_shape(request, nodes)] = found
        if not request.guaranteed:
            self._waits[_shape(request, nodes, of_any=True)] = found

    def freed(self) -> None:
        """Invalidate the refusals that depend on freed devices."""
        self._frees += 1

    def clear(self) -> None:
        """Invalidate all refusals."""
        self._waits.clear()


def _own_state(
    books: CellBooks, request: GangRequest, chains: Sequence[str], nodes: frozenset[str] | None
) -> tuple[int, ...] | None:
    """Return the versions of a request's pools, if its refusal depends only on their gangs.

    On healthy devices, other gangs never prevent a quota from getting its cells (HiveD, OSDI '20).
    Cells
    below node level may be combined on one node, and allowed nodes or one rack may lack cells:
    these depend on other gangs. Opportunistic gangs depend on all others.
    """
    if not request.guaranteed or nodes is not None or request.within or not books.is_sound:
        return None
    found = []
    for chain in chains:
        roster, pool = books.rosters[chain], books.pool(request.vc, chain, request.pinned)
        if pool is None or any(pool.slots[1 : roster.ledger.topology.node_level]):
            return None
        found.append(roster.versions.get(pool.number, 0))
    return tuple(found)


def _shape(
    request: GangRequest, nodes: frozenset[str] | None, *, of_any: bool = False
) -> tuple[object, ...]:
    return (
        "" if of_any else request.vc,
        request.priority,
        request.members,
        request.leaf_types,
        request.pinned,
        request.within,
        nodes,
    )
