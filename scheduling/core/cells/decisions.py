"""Decisions as values: from a plan, for an existing gang, and cached refusals."""

from collections.abc import Collection

from scheduling.core.cells import views
from scheduling.core.cells.books import Books
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


def claims_are_usable(books: Books, gang: Gang, suggested: Collection[str] | None) -> bool:
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


class RefusalCache:
    """Refusals by request shape, valid until devices are freed.

    Starting further gangs cannot make a refused request fit, so only ``clear`` invalidates them.
    """

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: dict[tuple[object, ...], Wait] = {}

    def find(self, request: GangRequest, nodes: frozenset[str] | None) -> Wait | None:
        """Return the cached refusal for a request of equal shape, with this request in it."""
        if not self._waits:
            return None
        known = self._waits.get(_shape(request, nodes))
        if known is None:
            return None
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

    def store(self, wait: Wait, nodes: frozenset[str] | None) -> None:
        """Cache a refusal for requests of the same shape on the same nodes."""
        self._waits[_shape(wait.request, nodes)] = wait

    def clear(self) -> None:
        """Invalidate all refusals."""
        self._waits.clear()


def _shape(request: GangRequest, nodes: frozenset[str] | None) -> tuple[object, ...]:
    return (
        request.vc,
        request.priority,
        request.members,
        request.leaf_types,
        request.pinned,
        request.within,
        nodes,
    )
