"""Execution of decisions on gangs: start, claim, cancel, loss and return of quota, end."""

from collections.abc import Iterable

from scheduling.core.cells.doomed_cells import (
    doomed_places,
    restore_doomed_cells,
    update_doomed_cells,
)
from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.preemption import PlacementPlan
from scheduling.core.cells.requests import GangRequest, GroupState


def start(plan: PlacementPlan, request: GangRequest) -> Gang:
    """Start a gang by a plan without victims."""
    gang = _enter(plan, request)
    for other in plan.cancelled:
        cancel(other, keep_cells=True)
    if not plan.applied:
        _apply(plan)
    plan.roster.set_users(gang)
    _return_cells_of(plan.cancelled, plan.roster)
    _finish(plan, gang)
    return gang


def _apply(plan: PlacementPlan) -> None:
    ledger = plan.roster.ledger
    for cell in plan.opened:
        assert plan.pool is not None  # noqa: S101 (only quota opens cells)
        ledger.own(plan.pool, cell)
    for spot in plan.spots:
        if plan.pool is not None:
            ledger.occupy(spot.node, spot.mask)
        else:
            ledger.lend(spot.node, spot.mask)


def claim(plan: PlacementPlan, request: GangRequest) -> Gang:
    """Claim the devices of a plan with victims in the books."""
    doomed = doomed_places(plan.roster.ledger)
    # Applied in the order of the search: if a claim uses cells, lowering another gang on them must
    # not free them, since the plan relies on them.
    gang = _enter(plan, request)
    for other in plan.cancelled:
        cancel(other, keep_cells=True)
    gang.doomed = doomed
    gang.state = GroupState.PREEMPTING
    roster, ledger = plan.roster, plan.roster.ledger
    for cell in plan.opened:
        assert plan.pool is not None  # noqa: S101 (only quota opens cells)
        ledger.own(plan.pool, cell)
    for spot in plan.spots:
        fresh = 0
        for leaf, bit in roster.bits(spot.node, spot.mask):
            user = roster.users.get(leaf)
            if user is None or not user.guaranteed:
                fresh |= bit
            if user is not None and not user.guaranteed:
                ledger.reclaim(spot.node, bit)
        ledger.occupy(spot.node, fresh)
    roster.claim(gang)
    _return_cells_of(plan.cancelled, roster)
    _finish(plan, gang)
    return gang


def _return_cells_of(cancelled: Iterable[Gang], roster: Roster) -> None:
    """Release the quota cells of cancelled claims that no gang uses now."""
    holder = roster.ledger.buddy.allocated_holder
    roster.release_cells(
        {
            holder(leaf)
            for gang in cancelled
            for spot in gang.spots
            for leaf in roster.leaves(spot.node, spot.mask)
        }
    )


def _enter(plan: PlacementPlan, request: GangRequest) -> Gang:
    gang = Gang(request, plan.roster, plan.pool, plan.spots)
    for other in plan.lowered:
        lose_quota(other, request.group)
        gang.lowered.append(other.name)
    return gang


def _finish(plan: PlacementPlan, gang: Gang) -> None:
    if plan.pool is not None:
        gang.virtual = virtual_addresses(plan.roster, gang)
    plan.roster.enter(gang)
    update_doomed_cells(plan.roster.ledger)


def virtual_addresses(roster: Roster, gang: Gang) -> list[tuple[str, ...]]:
    """Return the virtual leaf addresses of a guaranteed gang, by spot."""
    ledger = roster.ledger
    low, high = ledger.topology.leaf_lo, ledger.topology.leaf_hi
    found = []
    for spot in gang.spots:
        leaves = roster.leaves(spot.node, spot.mask)
        cells = [cell for cell, _ in ledger.holders(spot.node, spot.mask)]
        if len(cells) == 1:
            found.append(ledger.virtual_addresses(leaves, cells[0]))
            continue
        homes = ((leaf, next(c for c in cells if low[c] <= leaf < high[c])) for leaf in leaves)
        found.append(tuple(ledger.virtual_addresses((leaf,), cell)[0] for leaf, cell in homes))
    return found


def promote(gang: Gang) -> None:
    """Start a gang whose victims have all ended: it uses the devices that it had claimed."""
    assert gang.roster is not None  # noqa: S101 (it has claims)
    roster = gang.roster
    for spot in gang.spots:
        for leaf in roster.leaves(spot.node, spot.mask):
            del roster.claims[leaf]
    gang.state = GroupState.ALLOCATED
    roster.set_users(gang)
    if gang.pool is not None:
        roster.changed(gang.pool.number)


def end(gang: Gang) -> None:
    """Remove a gang: free its devices, except those claimed by other gangs."""
    roster = gang.roster
    if gang.state is GroupState.PREEMPTING:
        cancel(gang)
        return
    for preemptor in gang.preemptors.values():
        preemptor.victims.pop(gang.name, None)
    if roster is None:
        return
    homes = roster.homes_of(gang) if gang.guaranteed else set()
    roster.lift(gang)
    for spot in gang.spots:
        for leaf in roster.leaves(spot.node, spot.mask):
            del roster.users[leaf]
    roster.leave(gang)
    roster.release_cells(homes)
    update_doomed_cells(roster.ledger)


def cancel(gang: Gang, *, keep_cells: bool = False) -> None:
    """Cancel the claims of a Preempting gang; the devices return to their current users."""
    assert gang.roster is not None  # noqa: S101 (it has claims)
    roster = gang.roster
    homes = roster.homes_of(gang)
    roster.lift(gang)
    for spot in gang.spots:
        for leaf in roster.leaves(spot.node, spot.mask):
            del roster.claims[leaf]
    for victim in gang.victims.values():
        victim.preemptors.pop(gang.name, None)
        if not victim.preemptors:
            victim.state = GroupState.ALLOCATED
    gang.victims.clear()
    roster.leave(gang)
    if not keep_cells:
        roster.release_cells(homes)
        restore_doomed_cells(roster.ledger, gang.doomed)


def lose_quota(gang: Gang, preemptor: str) -> None:
    """Remove the quota of a gang (lazy preemption); it continues as opportunistic."""
    assert gang.roster is not None  # noqa: S101 (it has quota)
    gang.roster.make_opportunistic(gang)
    gang.roster.leave(gang)
    gang.guaranteed = False
    gang.lazy_by = preemptor
    gang.roster.enter(gang)
    gang.roster.quota_changes += 1


def regain_quota(gang: Gang) -> bool:
    """Return quota to a gang on its current devices, if cells of its levels are free."""
    roster, pool = gang.roster, gang.pool
    if roster is None or pool is None or gang.guaranteed or gang.preemptors:
        return False
    cells = cells_at(gang, gang.virtual)
    if cells is None:
        cells = cells_around(gang)
    if not open_cells(roster, gang, cells):
        update_doomed_cells(roster.ledger)
        return False
    for spot in gang.spots:
        roster.ledger.reclaim(spot.node, spot.mask)
        roster.ledger.occupy(spot.node, spot.mask)
    roster.leave(gang)
    gang.guaranteed = True
    gang.lazy_by = None
    gang.virtual = virtual_addresses(roster, gang)
    roster.enter(gang)
    roster.quota_changes += 1
    update_doomed_cells(roster.ledger)
    return True


def cells_at(gang: Gang, virtual: Iterable[tuple[str, ...]]) -> list[int] | None:
    """Return the physical cells for a gang's virtual leaf addresses; their depth is the level."""
    assert gang.roster is not None  # noqa: S101 (it has devices)
    roster, topology = gang.roster, gang.roster.ledger.topology
    levels, parent = topology.level, topology.parent
    cells: dict[int, None] = {}
    prefix = f"{gang.request.vc}/"
    begin = len(prefix)
    for spot, addresses in zip(gang.spots, virtual, strict=True):
        if len(addresses) != spot.mask.bit_count():
            return None
        for leaf, address in zip(roster.leaves(spot.node, spot.mask), addresses, strict=True):
            level = address.count("/", begin) + 1
            cell = leaf
            while cell >= 0 and levels[cell] < level:
                cell = parent[cell]
            if cell < 0 or not address.startswith(prefix):
                return None
            cells[cell] = None
    return list(cells)


def cells_around(gang: Gang) -> list[int]:
    """Return the smallest quota cells around a gang without valid virtual addresses."""
    assert gang.roster is not None  # noqa: S101 (it has devices)
    assert gang.pool is not None  # noqa: S101 (asked for quota)
    ledger, topology = gang.roster.ledger, gang.roster.ledger.topology
    left = list(gang.pool.unbound)
    cells: dict[int, None] = {}
    for spot in gang.spots:
        for leaf in gang.roster.leaves(spot.node, spot.mask):
            path = [leaf]
            while topology.parent[path[-1]] >= 0:
                path.append(topology.parent[path[-1]])
            home = ledger.owner_of(leaf)
            mine = (
                home >= 0
                and ledger.owned[home].pool == gang.pool.number
                and (ledger.owned[home].used > 0 or home not in ledger.doomed)
            )
            if mine or any(cell in cells for cell in path):
                continue
            tight = topology.shapes[spot.node].level_of(spot.mask)
            found = [c for c in path if left[topology.level[c]] and topology.level[c] >= tight]
            found = found or [c for c in path if left[topology.level[c]]] or path[:1]
            cells[found[0]] = None
            left[topology.level[found[0]]] -= 1
    return list(cells)


def open_cells(roster: Roster, gang: Gang, cells: list[int], *, claiming: bool = False) -> bool:
    """Bind all of the given cells for a gang, or none.

    Unused doomed cells are unbound first; call ``update_doomed_cells`` afterwards. With
    ``claiming`` gangs of lower priority of the same pool may still use the devices.
    """
    ledger = roster.ledger
    ledger.log = []
    if ledger.doomed:
        for cell in sorted(cell for cell in ledger.doomed if not ledger.owned[cell].used):
            ledger.disown(cell)
    opened = True
    for cell in cells:
        if not _open_cell(roster, gang, cell):
            opened = False
            break
    if opened and _is_inside(roster, gang, claiming=claiming):
        ledger.doomed.clear()
    else:
        opened = False
        ledger.rollback(0)
    ledger.log = None
    return opened


def _is_inside(roster: Roster, gang: Gang, *, claiming: bool) -> bool:
    """Return whether all devices of a gang are in its pool and without guaranteed users."""
    ledger, pool = roster.ledger, gang.pool
    assert pool is not None  # noqa: S101 (asked for quota)
    for spot in gang.spots:
        taken = spot.mask & ledger.guaranteed[spot.node]
        if taken and not (claiming and _users_give_way(roster, gang, spot.node, taken)):
            return False
        home = ledger.homes[spot.node]
        if home >= 0:
            if ledger.owned[home].pool != pool.number:
                return False
            continue
        for leaf in roster.leaves(spot.node, spot.mask):
            owned = ledger.owned.get(ledger.owner_of(leaf))
            if owned is None or owned.pool != pool.number:
                return False
    return True


def _users_give_way(roster: Roster, gang: Gang, node: int, taken: int) -> bool:
    """Return whether all users of the devices are in the gang's pool with a lower priority."""
    users = [roster.users.get(leaf) for leaf in roster.leaves(node, taken)]
    return all(
        user is not None and user.pool is gang.pool and user.priority < gang.request.priority
        for user in users
    )


def _open_cell(roster: Roster, gang: Gang, cell: int) -> bool:
    ledger, pool = roster.ledger, gang.pool
    assert pool is not None  # noqa: S101 (asked for quota)
    buddy, topology = ledger.buddy, ledger.topology
    owned = ledger.owned.get(cell)
    if owned is not None:
        return owned.pool == pool.number
    level = topology.level[cell]
    holder = buddy.free_holder(cell)
    if holder < 0 or not pool.unbound[level] or pool.pinned is not None:
        return False
    if topology.level[holder] > buddy.reach(level):
        return False
    ledger.own(pool, cell)
    return True
