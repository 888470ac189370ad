"""Answers of the engine as values: a plan that was found, and a gang that is known already."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from scheduling.core.cells import views
from scheduling.core.cells.gangs import Gang
from scheduling.core.cells.preemption import Plan
from scheduling.core.cells.requests import Bind, GangRequest, GroupState, Preempt
from scheduling.core.cells.search import allowed_nodes

if TYPE_CHECKING:
    from scheduling.core.cells.engine import CellEngine


def of_plan(plan: Plan, request: GangRequest, chain: str, version: int) -> Bind | Preempt:
    """The decision that a plan stands for; without victims the gang starts at once.

    Claims that the plan overrides hold nobody's work: they are cancelled with the commit.
    """
    answer = _preempt if plan.victims else _bind
    return answer(plan, request, chain, version)


def _bind(plan: Plan, request: GangRequest, chain: str, version: int) -> Bind:
    """A plan without victims; its commit may cancel claims."""
    return Bind(
        request=request,
        chain=chain,
        placements=views.planned(plan),
        downgraded=tuple(g.name for g in plan.lowered),
        version=version,
        plan=plan,
    )


def _preempt(plan: Plan, request: GangRequest, chain: str, version: int) -> Preempt:
    """A plan with victims."""
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


def again(gang: Gang, version: int) -> Bind | Preempt:
    """What a gang is told that is there already: where it is, or whom it still waits for."""
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


def still_good(engine: "CellEngine", gang: Gang, suggested: Collection[str] | None) -> bool:
    """Whether what a gang has claimed is healthy and may be used; what it uses, it keeps."""
    if gang.state is not GroupState.PREEMPTING:
        return True
    assert gang.roster is not None  # noqa: S101 (it has claims)
    ledger = gang.roster.ledger
    nodes = None if gang.request.ignore_suggested else suggested
    allowed = allowed_nodes(engine.topology, ledger.topology.name, nodes)
    return all(
        spot.mask & ~ledger.healthy[spot.node] == 0
        and (allowed is None or allowed >> spot.node & 1)
        for spot in gang.spots
    )
