"""Restoring running gangs from their leases after a restart or a reconfiguration."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from scheduling.core.cells import lifecycle
from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.doomed_cells import update_doomed_cells
from scheduling.core.cells.errors import RequestError
from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.picking import Item, Spot
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.preemption import PlacementPlan
from scheduling.core.cells.requests import GangRequest, Placed, Restored

MOST_LOCATED: Final = 16_384
_UNKNOWN_LEAF: Final = ("", -1)


class _Located(NamedTuple):
    """Placements with the numbers of their leaves, located earlier."""

    placements: Sequence[Placed]  # without a reference, their ID could be reused
    chain: str
    spots: tuple[tuple[Spot, tuple[str, ...]], ...]
    leaves: frozenset[int]


def restore_gang(
    books: CellBooks,
    request: GangRequest,
    placements: Sequence[Placed],
    *,
    preempting: bool,
) -> Restored:
    """Restore one gang; see ``CellEngine.restore``."""
    _require_new(books, request)
    chain, located, unknown = _locate(books, placements, preempting=preempting)
    if chain is None:
        if not preempting:
            books.gangs[request.group] = Gang(request, None, None, [])
        return Restored(guaranteed=False, lazy_preempted=False, unknown=tuple(unknown))
    roster = books.rosters[chain]
    pool = books.pool(request.vc, chain, request.pinned) if request.guaranteed else None
    gang = Gang(request, roster, pool, [spot for spot, _ in located])
    gang.virtual = [virtual for _, virtual in located]
    gang.guaranteed = False
    if preempting:
        return _restore_claims(books, gang, unknown)
    had_quota = request.guaranteed and all(
        len(virtual) == spot.mask.bit_count() for spot, virtual in located
    )
    displaced: list[str] = []
    cells = lifecycle.cells_at(gang, gang.virtual) if had_quota and pool is not None else None
    owned = cells is not None and _claim_cells(roster, gang, cells, displaced)
    _enter_books(roster, gang, guaranteed=owned)
    books.gangs[request.group] = gang
    lowered = request.guaranteed and not owned
    if lowered:
        gang.lazy_by = ""
    return Restored(
        guaranteed=owned,
        lazy_preempted=lowered,
        unknown=tuple(unknown),
        displaced=tuple(displaced),
    )


def renumber(books: CellBooks, names: Iterable[str]) -> bool:
    """Number virtual cells as if the gangs had been restored in an order; see ``CellEngine``."""
    if any(roster.ledger.doomed for roster in books.rosters.values()):
        return False
    # Dictionaries by pool, since their keys are in order of appearance.
    bins: dict[Pool, dict[int, None]] = defaultdict(dict)
    cells: dict[Pool, dict[int, None]] = defaultdict(dict)
    rosters: dict[Pool, Roster] = {}
    for name in names:
        gang = books.gangs.get(name)
        roster, pool = (gang.roster, gang.pool) if gang is not None else (None, None)
        if gang is None or roster is None or pool is None or not gang.guaranteed:
            continue
        rosters[pool] = roster
        for bin_, cell in roster.bins_of(gang):
            bins[pool][bin_] = cells[pool][cell] = None
    for pool, roster in rosters.items():
        pool.renumber([(bin_, place) for place, bin_ in enumerate(bins[pool])])
        if pool.pinned is None and roster.ledger.reposition(pool, list(cells[pool])):
            for gang in roster.gangs.get(pool.number, {}).values():
                gang.virtual = lifecycle.virtual_addresses(roster, gang)
    return True


def _require_new(books: CellBooks, request: GangRequest) -> None:
    if request.group in books.gangs:
        raise RequestError(
            f"gang {request.group!r} already exists",
            field="group",
            value=request.group,
            remedy="restore each gang only once",
        )


def _restore_claims(books: CellBooks, gang: Gang, unknown: list[str]) -> Restored:
    """Restore all claims of a preemptor, or none; without claims it is scheduled again."""
    roster, pool = gang.roster, gang.pool
    cells = lifecycle.cells_at(gang, gang.virtual) if pool is not None and not unknown else None
    owned = (
        roster is not None
        and cells is not None
        and lifecycle.open_cells(roster, gang, cells, claiming=True)
    )
    if owned and roster is not None:
        plan = PlacementPlan(roster, pool, gang.spots)
        books.gangs[gang.name] = lifecycle.claim(plan, gang.request)
    return Restored(guaranteed=owned, lazy_preempted=False, unknown=tuple(unknown))


def _enter_books(roster: Roster, gang: Gang, *, guaranteed: bool) -> None:
    gang.guaranteed = guaranteed
    for spot in gang.spots:
        if guaranteed:
            roster.ledger.occupy(spot.node, spot.mask)
        else:
            roster.ledger.lend(spot.node, spot.mask)
    roster.set_users(gang)
    if guaranteed:
        gang.virtual = lifecycle.virtual_addresses(roster, gang)
    roster.enter(gang)
    update_doomed_cells(roster.ledger)


def _locate(
    books: CellBooks, placements: Sequence[Placed], *, preempting: bool
) -> tuple[str | None, list[tuple[Spot, tuple[str, ...]]], list[str]]:
    """Return the chain and spots of the devices that exist, and the unknown addresses.

    Rounds restore the same placements again: their locations are cached if all are known.
    """
    cache = books.topology.located
    known = cache.get(id(placements))
    if known is None:
        chain, located, unknown = _locate_each(books, placements, preempting=preempting)
        if chain is not None and not unknown:
            if len(cache) >= MOST_LOCATED:
                cache.clear()
            leaves = frozenset(
                leaf
                for spot, _ in located
                for leaf in books.rosters[chain].leaves(spot.node, spot.mask)
            )
            cache[id(placements)] = _Located(placements, chain, tuple(located), leaves)
        return chain, located, unknown
    roster = books.rosters[known.chain]
    if roster.claims.keys().isdisjoint(known.leaves) and (
        preempting or roster.users.keys().isdisjoint(known.leaves)
    ):
        return known.chain, list(known.spots), []
    return _locate_each(books, placements, preempting=preempting)


def _locate_each(
    books: CellBooks, placements: Sequence[Placed], *, preempting: bool
) -> tuple[str | None, list[tuple[Spot, tuple[str, ...]]], list[str]]:
    found: str | None = None
    located: list[tuple[Spot, tuple[str, ...]]] = []
    unknown: list[str] = []
    seen: set[int] = set()
    for placed in placements:
        leaves: dict[int, str] = {}
        virtual = placed.virtual + ("",) * (len(placed.leaves) - len(placed.virtual))
        for (chain, leaf), address, cell in zip(
            _find_leaves(books, placed), placed.leaves, virtual, strict=False
        ):
            if leaf < 0 or leaf in seen or (found is not None and chain != found):
                unknown.append(address)
                continue
            roster = books.rosters[chain]
            if leaf in roster.claims or (not preempting and leaf in roster.users):
                unknown.append(address)
                continue
            found = chain
            seen.add(leaf)
            leaves[leaf] = cell
        if leaves and found is not None:
            located += _spots(books.rosters[found], placed.member, leaves)
    return found, located, unknown


def _find_leaves(books: CellBooks, placed: Placed) -> list[tuple[str, int]]:
    """Find leaves by node and device index (stable across topologies), otherwise by address."""
    by_address, by_device = books.topology.leaves, books.topology.devices
    found = [by_address.get(address, _UNKNOWN_LEAF) for address in placed.leaves]
    for i, device in enumerate(placed.devices[: len(found)]):
        found[i] = by_device.get((placed.node, device), found[i])
    return found


def _spots(
    roster: Roster, member: int, leaves: dict[int, str]
) -> list[tuple[Spot, tuple[str, ...]]]:
    topology = roster.ledger.topology
    node_of, ordered = topology.node_of_leaf, sorted(leaves)
    by_node = {node_of[ordered[0]]: ordered}
    if node_of[ordered[0]] != node_of[ordered[-1]]:
        by_node = {}
        for leaf in ordered:
            by_node.setdefault(node_of[leaf], []).append(leaf)
    found = []
    for node, members in by_node.items():
        first, mask = topology.leaf_lo[topology.node_base + node], 0
        for leaf in members:
            mask |= 1 << (leaf - first)
        virtual = tuple([leaves[leaf] for leaf in members if leaves[leaf]])
        item = Item(len(members), topology.node_level, member)
        found.append((Spot(item, node, mask), virtual))
    return found


def _claim_cells(roster: Roster, gang: Gang, cells: list[int], displaced: list[str]) -> bool:
    """Bind the gang's cells, if necessary with quota of gangs of the lowest priority."""
    pool = gang.pool
    assert pool is not None  # noqa: S101 (asked by the caller)
    if lifecycle.open_cells(roster, gang, cells):
        return True
    while True:
        gangs = _lowest_priority_gangs(roster, pool, gang, cells)
        if not gangs:
            return False
        for other in gangs:
            lifecycle.lose_quota(other, gang.name)
            displaced.append(other.name)
        if lifecycle.open_cells(roster, gang, cells):
            return True


def _lowest_priority_gangs(roster: Roster, pool: Pool, gang: Gang, cells: list[int]) -> list[Gang]:
    """Return the gangs of the lowest-priority cell of the pool at the levels of ``cells``."""
    levels = {roster.ledger.topology.level[cell] for cell in cells}
    by_cell: dict[int, list[Gang]] = {}
    for other in roster.gangs.get(pool.number, {}).values():
        for cell in roster.homes_of(other):
            if roster.ledger.topology.level[cell] in levels:
                by_cell.setdefault(cell, []).append(other)
    best = min(
        by_cell.items(),
        key=lambda entry: (max(g.request.priority for g in entry[1]), entry[0]),
        default=None,
    )
    if best is None or max(g.request.priority for g in best[1]) >= gang.request.priority:
        return []
    return best[1]
