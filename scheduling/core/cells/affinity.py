"""Gangs that want all instances in one cell: the cells to try, and the best answer of them."""

from collections.abc import Callable, Iterable

from scheduling.core.cells.idle import idle_mask
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.preemption import Plan
from scheduling.core.cells.requests import GangRequest


def scopes(ledger: ChainLedger, request: GangRequest, allowed: int | None) -> list[int | None]:
    """Bitmaps of nodes out of ``allowed``, each to be tried alone; None for all nodes.

    Cells with the fewest idle devices come first, so that large gaps stay for those who need
    them; cells without enough healthy devices are left out.
    """
    topology = ledger.topology
    level = None if request.within is None else topology.level_named(request.within)
    if level is None:
        return [allowed]
    found: list[tuple[int, int, int]] = []
    level = max(level, topology.node_level)
    for cell in range(topology.base[level], topology.base[level + 1]):
        span = topology.nodes_of(cell)
        bits = ((1 << len(span)) - 1) << span.start
        if allowed is not None:
            bits &= allowed
        inside = [node for node in span if bits >> node & 1]
        healthy = sum(ledger.healthy[node].bit_count() for node in inside)
        if healthy >= request.leaf_count:
            idle = sum(idle_mask(ledger, node).bit_count() for node in inside)
            found.append((idle, cell, bits))
    return [bits for _, _, bits in sorted(found)]


def cheapest(
    bitmaps: Iterable[int | None], search: Callable[[int | None], Plan | None]
) -> Plan | None:
    """The plan with the fewest victims and the least work lost; the first without any at once."""
    best: tuple[tuple[float, ...], Plan] | None = None
    for allowed in bitmaps:
        plan = search(allowed)
        if plan is None:
            continue
        going = [*plan.victims, *plan.cancelled, *plan.lowered]
        if not going:
            return plan
        price = (float(len(going)), sum(gang.request.at_stake for gang in going))
        if best is None or price < best[0]:
            best = (price, plan)
    return best[1] if best is not None else None
