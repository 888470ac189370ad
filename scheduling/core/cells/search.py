"""Searching one chain for the placement of a gang.

The books do not change, unless the caller passes ``keep``.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.idle import idle_mask, place_opportunistic
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.picking import Item
from scheduling.core.cells.preemption import PlacementPlan, PreemptionSearch
from scheduling.core.cells.requests import GangRequest
from scheduling.core.cells.topology import ChainTopology, ClusterTopology


def find(
    books: CellBooks,
    request: GangRequest,
    chain: str,
    nodes: frozenset[str] | None,
    *,
    keep: bool = False,
) -> PlacementPlan | None:
    """Find a plan that takes no quota from other gangs, or None.

    With ``keep``, a placement without victims remains in the books. Its plan is ``applied``, and
    the caller must start the gang.
    """
    items = items_of(books.topology.chains[chain], request)
    if items is None:
        return None
    if request.within is None:
        allowed = None if nodes is None else allowed_nodes(books.topology, chain, nodes)
        return _find_among(books, request, chain, items, allowed, keep=keep)
    return _cheapest(
        scopes_in(books, chain, request, nodes),
        lambda allowed: _find_among(books, request, chain, items, allowed, keep=keep),
    )


def _find_among(
    books: CellBooks,
    request: GangRequest,
    chain: str,
    items: list[Item],
    allowed: int | None,
    *,
    keep: bool,
) -> PlacementPlan | None:
    ledger = books.rosters[chain].ledger
    ledger.has_swerved = False
    plan = _try_among(books, request, chain, items, allowed, keep=keep)
    is_clean = plan is not None and not (plan.victims or plan.cancelled or plan.lowered)
    if is_clean or not ledger.has_swerved:
        return plan
    # Avoidance must never refuse a start or cost another gang its devices.
    with _avoiding_none(ledger):
        return _try_among(books, request, chain, items, allowed, keep=keep)


@contextmanager
def _avoiding_none(ledger: ChainLedger) -> Iterator[None]:
    avoided, ledger.avoided = ledger.avoided, {}
    try:
        yield
    finally:
        ledger.avoided = avoided


def _try_among(
    books: CellBooks,
    request: GangRequest,
    chain: str,
    items: list[Item],
    allowed: int | None,
    *,
    keep: bool,
) -> PlacementPlan | None:
    roster, pool = books.rosters[chain], books.pool(request.vc, chain, request.pinned)
    plan = None
    with roster.ledger.trial() as trial:
        if not request.guaranteed:
            spots = place_opportunistic(roster.ledger, items, allowed)
            plan = PlacementPlan(roster, None, spots) if spots is not None else None
        elif pool is not None:
            search = PreemptionSearch(roster, pool, request.priority, items, allowed)
            plan = search.without_eviction()
        if keep and plan is not None and not plan.victims and not plan.cancelled:
            plan.applied = True
            trial.clear()
    return plan


def find_with_eviction(
    books: CellBooks, request: GangRequest, chain: str, nodes: frozenset[str] | None
) -> PlacementPlan | None:
    """Find a plan that takes quota from gangs of lower priority, or None."""
    roster = books.rosters[chain]
    items = items_of(books.topology.chains[chain], request)
    pool = books.pool(request.vc, chain, request.pinned)
    if items is None or pool is None or not request.guaranteed:
        return None

    def search(allowed: int | None) -> PlacementPlan | None:
        with roster.ledger.trial(), _avoiding_none(roster.ledger):
            seeking = PreemptionSearch(roster, pool, request.priority, items, allowed)
            return seeking.with_eviction()

    return _cheapest(scopes_in(books, chain, request, nodes), search)


def scopes_in(
    books: CellBooks, chain: str, request: GangRequest, nodes: frozenset[str] | None
) -> list[int | None]:
    """Return bitmaps of nodes to try one by one, selected from the named nodes."""
    allowed = allowed_nodes(books.topology, chain, nodes)
    return _scopes(books.rosters[chain].ledger, request, allowed)


def allowed_nodes(
    topology: ClusterTopology, chain: str, nodes: Iterable[str] | None
) -> int | None:
    """Build the bitmap of the named nodes in a chain; None for all nodes."""
    if nodes is None:
        return None
    bits = 0
    for node in nodes:
        for name, number in topology.nodes.get(node, ()):
            if name == chain:
                bits |= 1 << number
    return bits


def items_of(topology: ChainTopology, request: GangRequest) -> list[Item] | None:
    """Return the instances to place, largest first; None if the chain lacks a requested level."""
    if request.within is not None and topology.widest(request.within) is None:
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


def _scopes(ledger: ChainLedger, request: GangRequest, allowed: int | None) -> list[int | None]:
    """Return bitmaps of nodes from ``allowed`` to try one by one; None for all nodes.

    A request with ``within`` has one bitmap per cell of that level, or per group of nodes, with
    enough healthy devices.
    Cells with the fewest idle devices come first, so that large gaps stay free.
    """
    topology = ledger.topology
    level = None if request.within is None else topology.level_named(request.within)
    if request.within is None or (level is None and request.within not in topology.groups):
        return [allowed]
    if level is None:
        groups = list(topology.groups[request.within])
    else:
        level = max(level, topology.node_level)
        cells = range(topology.base[level], topology.base[level + 1])
        groups = [((1 << len(span)) - 1) << span.start for span in map(topology.nodes_of, cells)]
    found: list[tuple[int, int, int]] = []
    for cell, group in enumerate(groups):
        bits = group if allowed is None else group & allowed
        inside = [node for node in range(bits.bit_length()) if bits >> node & 1]
        healthy = sum(ledger.healthy[node].bit_count() for node in inside)
        if healthy >= request.leaf_count:
            idle = sum(idle_mask(ledger, node).bit_count() for node in inside)
            found.append((idle, cell, bits))
    return [bits for _, _, bits in sorted(found)]


def _cheapest(
    bitmaps: Iterable[int | None], search: Callable[[int | None], PlacementPlan | None]
) -> PlacementPlan | None:
    """Find the plan with the fewest victims and least lost work; stop if there are none."""
    best: tuple[tuple[float, ...], PlacementPlan] | None = None
    for allowed in bitmaps:
        plan = search(allowed)
        if plan is None:
            continue
        going = [*plan.victims, *plan.cancelled, *plan.lowered]
        if not going:
            return plan
        price = (float(len(going)), sum(gang.at_stake for gang in going))
        if best is None or price < best[0]:
            best = (price, plan)
    return best[1] if best is not None else None
