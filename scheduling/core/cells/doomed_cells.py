"""Binding unhealthy cells to quotas that cannot avoid them (*doomed* cells).

The virtual cluster then sees the loss and can use the healthy devices in these cells.
"""

from scheduling.core.cells.buddy import BAD
from scheduling.core.cells.ledger import ChainLedger


def update_doomed_cells(ledger: ChainLedger) -> None:
    """Bind doomed cells that are needed, and unbind those that are no longer needed.

    Afterwards no virtual cluster has more unbound cells of a level than there are healthy cells.
    Unbinding only adds healthy cells, and binding at a level only takes cells below it. So one
    pass of each is enough, the second from the top down.
    """
    buddy = ledger.buddy
    if not ledger.doomed and buddy.healthy_left == buddy.total_left:
        return
    while _release_one(ledger):
        pass
    for level in range(ledger.topology.levels, 0, -1):
        for pool in ledger.pools:
            while pool.unbound[level] > buddy.healthy_left[level]:
                cell = _next_unavoidable(ledger, level)
                ledger.own(pool, cell)
                ledger.doomed.add(cell)


def doomed_places(ledger: ChainLedger) -> dict[int, tuple[int, int]]:
    """Map each doomed cell to (pool number, position of its virtual cell)."""
    return {c: (ledger.owned[c].pool, ledger.owned[c].position) for c in ledger.doomed}


def restore_doomed_cells(ledger: ChainLedger, places: dict[int, tuple[int, int]]) -> None:
    """Bind the doomed cells at ``places`` again as far as possible, then update all others.

    A preemptor that gives up its claims thus restores the ledger.
    """
    for cell in sorted(ledger.doomed):
        if not ledger.owned[cell].used:
            ledger.disown(cell)
    ledger.doomed.clear()
    for cell, (number, position) in sorted(places.items()):
        pool, level = ledger.pools[number], ledger.topology.level[cell]
        holder = ledger.buddy.free_holder(cell)
        if (
            holder >= 0
            and pool.is_free(level, position)
            and ledger.topology.level[holder] <= ledger.buddy.reach(level)
        ):
            ledger.own(pool, cell, position)
            ledger.doomed.add(cell)
    update_doomed_cells(ledger)


def _release_one(ledger: ChainLedger) -> bool:
    buddy = ledger.buddy
    for cell in sorted(ledger.doomed):
        owned = ledger.owned[cell]
        if owned.used:
            ledger.doomed.discard(cell)
            continue
        level = ledger.topology.level[cell]
        unbound = ledger.pools[owned.pool].unbound[level]
        if not buddy.bad[cell] or unbound < buddy.healthy_left[level]:
            ledger.doomed.discard(cell)
            ledger.disown(cell)
            return True
    return False


def _next_unavoidable(ledger: ChainLedger, level: int) -> int:
    """Return an unhealthy cell of a level in the smallest free cell, which is always safe."""
    buddy, topology = ledger.buddy, ledger.topology
    for holder_level in range(level, topology.levels + 1):
        for key in buddy.keys(holder_level):
            if key < BAD:
                continue
            cell = buddy.first(holder_level, key)
            while topology.level[cell] > level:
                children = range(topology.child_lo[cell], topology.child_hi[cell])
                cell = min((c for c in children if buddy.bad[c]), key=lambda c: (buddy.bad[c], c))
            return cell
    raise AssertionError(f"chain {topology.name}: counters include a bad cell that does not exist")
