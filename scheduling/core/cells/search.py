"""Searching one chain for a gang: the instances to place, where they may go, and the plan found.

The books stay as they are, unless a caller keeps what was found.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scheduling.core.cells.affinity import cheapest, scopes
from scheduling.core.cells.idle import place_opportunistic
from scheduling.core.cells.picking import Item
from scheduling.core.cells.preemption import Plan, PreemptionSearch
from scheduling.core.cells.requests import GangRequest
from scheduling.core.cells.topology import ChainTopology, ClusterTopology

if TYPE_CHECKING:
    from scheduling.core.cells.engine import CellEngine


def find(
    engine: "CellEngine",
    request: GangRequest,
    chain: str,
    nodes: frozenset[str] | None,
    *,
    keep: bool = False,
) -> Plan | None:
    """A placement that takes no quota from anyone, or None.

    With ``keep`` a placement without victims stays in the books: then the plan says that it is
    applied, and its gang must be started.
    """
    items = items_of(engine.topology.chains[chain], request)
    if items is None:
        return None
    if request.within is None:
        allowed = None if nodes is None else allowed_nodes(engine.topology, chain, nodes)
        return _find_among(engine, request, chain, items, allowed, keep=keep)
    return cheapest(
        scopes_in(engine, chain, request, nodes),
        lambda allowed: _find_among(engine, request, chain, items, allowed, keep=keep),
    )


def _find_among(
    engine: "CellEngine",
    request: GangRequest,
    chain: str,
    items: list[Item],
    allowed: int | None,
    *,
    keep: bool,
) -> Plan | None:
    roster, pool = engine.rosters[chain], engine.pool(request.vc, chain, request.pinned)
    plan = None
    with roster.ledger.trial() as trial:
        if not request.guaranteed:
            spots = place_opportunistic(roster.ledger, items, allowed)
            plan = Plan(roster, None, spots) if spots is not None else None
        elif pool is not None:
            search = PreemptionSearch(roster, pool, request.priority, items, allowed)
            plan = search.without_eviction()
        if keep and plan is not None and not plan.victims and not plan.cancelled:
            plan.applied = True
            trial.clear()
    return plan


def find_with_eviction(
    engine: "CellEngine", request: GangRequest, chain: str, nodes: frozenset[str] | None
) -> Plan | None:
    """A placement that takes quota from lower priorities, or None."""
    roster = engine.rosters[chain]
    items = items_of(engine.topology.chains[chain], request)
    pool = engine.pool(request.vc, chain, request.pinned)
    if items is None or pool is None or not request.guaranteed:
        return None

    def search(allowed: int | None) -> Plan | None:
        with roster.ledger.trial():
            seeking = PreemptionSearch(roster, pool, request.priority, items, allowed)
            return seeking.with_eviction()

    return cheapest(scopes_in(engine, chain, request, nodes), search)


def scopes_in(
    engine: "CellEngine", chain: str, request: GangRequest, nodes: frozenset[str] | None
) -> list[int | None]:
    """Bitmaps of nodes, each to be tried alone, with the nodes given by name."""
    allowed = allowed_nodes(engine.topology, chain, nodes)
    return scopes(engine.rosters[chain].ledger, request, allowed)


def allowed_nodes(
    topology: ClusterTopology, chain: str, nodes: Iterable[str] | None
) -> int | None:
    """Bitmap of the named nodes in a chain; None for all."""
    if nodes is None:
        return None
    bits = 0
    for node in nodes:
        for name, number in topology.nodes.get(node, ()):
            if name == chain:
                bits |= 1 << number
    return bits


def items_of(topology: ChainTopology, request: GangRequest) -> list[Item] | None:
    """The instances to place in a chain, largest first; None when a level is not there."""
    if request.within is not None and topology.level_named(request.within) is None:
        return None
    items = []
    for number, member in enumerate(request.members):
        within = topology.node_level
        if member.within_level is not None:
            level = topology.level_named(member.within_level)
            if level is None:
                return None
            within = min(level, within)
        items += [Item(member.leaf_count, within, number)] * member.count
    if len(request.members) > 1:
        items.sort(key=lambda item: (-item.size, item.within, item.member))
    return items
