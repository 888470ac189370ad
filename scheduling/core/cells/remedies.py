"""The smallest changes that let a waiting gang start.

Every reported change was applied to the books, tried with a search, and undone. Since this takes
several searches, remedies are separate from the refusal. The number of trials is bounded, so a
remedy
may be missed, but a reported one is certain.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.explain import devices, free_devices, idle_devices, shape
from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.idle import place_opportunistic
from scheduling.core.cells.picking import Item
from scheduling.core.cells.preemption import PreemptionSearch
from scheduling.core.cells.requests import OPPORTUNISTIC, GangRequest, Member, Wait, WaitCode
from scheduling.core.cells.search import find, items_of, scopes_in
from scheduling.core.messages import message
from tessera.messages import Message

MAX_SINGLE_TRIALS = 4  # largest number of gangs tried one by one
MAX_SCOPES = 8  # largest number of cells tried for a request with ``within``
MAX_SET_SIZE = 24  # sets of gangs are tried if at most 24 gangs are in the way

_TRIED = (
    WaitCode.VC_GUARANTEE_IN_USE,
    WaitCode.NO_CELL_OF_LEVEL,
    WaitCode.OPPORTUNISTIC_NO_IDLE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Changes that let a gang start.

    Attributes:
        ends: names of gangs whose end is sufficient; a minimal set.
        cells: addresses of their owned cells, otherwise of their nodes.
        unblock: all remedies, most useful first.
        now: the remedies of ``unblock`` that are valid only until another gang starts.
    """

    ends: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    unblock: tuple[Message, ...] = ()
    now: tuple[Message, ...] = ()


def remedies(books: CellBooks, wait: Wait, suggested: Collection[str] | None) -> Remedies:
    """See ``CellEngine.remedies``."""
    request = wait.request
    if wait.code not in _TRIED or not wait.chain or not wait.blocked_by:
        return Remedies(unblock=wait.unblock)
    nodes = None if request.ignore_suggested or suggested is None else frozenset(suggested)
    found: list[Message] = []
    ends = _gangs_to_end(books, wait, nodes)
    if ends:
        size = sum(gang.size for gang in ends)
        found.append(
            message("job-ends", size=devices(size))
            if len(ends) == 1
            else message("jobs-end", ends=len(ends), size=devices(size))
        )
    less = _largest_smaller_request(books, wait, nodes)
    fits_now = [] if less is None else [message("less-fits", less=shape(less))]
    borrowed = replace(request, priority=OPPORTUNISTIC, pinned=None)
    if request.guaranteed and find(books, borrowed, wait.chain, nodes) is not None:
        fits_now.append(
            message(
                "opportunistic-fits" if request.pinned is None else "opportunistic-fits-unpinned"
            )
        )
    found += fits_now
    return Remedies(
        ends=tuple(gang.name for gang in ends),
        cells=_cell_addresses(books.rosters[wait.chain], ends),
        unblock=tuple(found) or wait.unblock,
        now=tuple(fits_now),
    )


def _cell_addresses(roster: Roster, gangs: Sequence[Gang]) -> tuple[str, ...]:
    topology = roster.ledger.topology
    found: set[int] = set()
    for gang in gangs:
        found |= (
            roster.homes_of(gang)
            if gang.guaranteed
            else {topology.node_base + spot.node for spot in gang.spots}
        )
    return tuple(topology.address[cell] for cell in sorted(found))


def _gangs_to_end(books: CellBooks, wait: Wait, nodes: frozenset[str] | None) -> list[Gang]:
    """Find a small set of gangs whose end lets the waiting gang start."""
    roster = books.rosters[wait.chain]
    items = items_of(roster.ledger.topology, wait.request)
    if items is None:
        return []
    trial = _EndTrial(books, roster, wait, items, nodes)
    with roster.ledger.trial():
        return trial.smallest()


class _EndTrial:
    """Tries the end of gangs: removes them from the books, searches, and rolls back."""

    def __init__(
        self,
        books: CellBooks,
        roster: Roster,
        wait: Wait,
        items: list[Item],
        nodes: frozenset[str] | None,
    ) -> None:
        request = wait.request
        self.roster, self.items = roster, items
        self.allowed = scopes_in(books, wait.chain, request, nodes)[:MAX_SCOPES]
        pool = books.pool(request.vc, wait.chain, request.pinned)
        number = pool.number if request.guaranteed and pool is not None else OPPORTUNISTIC
        gangs = (
            list(roster.gangs.get(number, {}).values())
            if request.guaranteed
            else [gang for users in roster.gangs.values() for gang in users.values()]
        )
        self.searches = (
            [PreemptionSearch(roster, pool, request.priority, items, a) for a in self.allowed]
            if request.guaranteed and pool is not None
            else []
        )
        self.least = request.leaf_count - (
            free_devices(roster.ledger, pool)
            if request.guaranteed and pool is not None
            else idle_devices(roster.ledger)
        )
        lowest = request.priority if request.guaranteed else OPPORTUNISTIC
        self.holders = sorted(
            (gang for gang in gangs if gang.request.priority >= lowest or not gang.guaranteed),
            key=lambda g: (g.size, g.name),
        )
        few = len(gangs) <= MAX_SET_SIZE
        self.lower = [g for g in gangs if g not in self.holders] if self.searches and few else []

    def smallest(self) -> list[Gang]:
        """Return one sufficient gang, or a minimal set of gangs, or an empty list."""
        enough = (gang for gang in self.holders if gang.size >= self.least)
        for gang in islice(enough, MAX_SINGLE_TRIALS):
            if self.fits([gang]):
                return [gang]
        if len(self.holders) > MAX_SET_SIZE or not self.fits(self.holders):
            return []
        kept = list(self.holders)
        for gang in self.holders:
            without = [other for other in kept if other is not gang]
            if self.fits(without):
                kept = without
        return kept

    def fits(self, gangs: Sequence[Gang]) -> bool:
        """Return whether the waiting gang starts after ``gangs`` end, with permitted evictions."""
        if self.searches:
            return any(search.would_fit(gangs, self.lower) for search in self.searches)
        ledger = self.roster.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the caller)
        mark = len(ledger.log)
        for gang in gangs:
            self.roster.lift(gang)
        freed = len(ledger.log)
        found = False
        for allowed in self.allowed:
            found = found or place_opportunistic(ledger, self.items, allowed) is not None
            ledger.rollback(freed)
        ledger.rollback(mark)
        return found


def _largest_smaller_request(
    books: CellBooks, wait: Wait, nodes: frozenset[str] | None
) -> GangRequest | None:
    """Find the largest smaller request that starts now: fewer instances, or smaller ones."""
    request = wait.request
    if len(request.members) != 1:
        return None
    member = request.members[0]
    fewer = _first_that_starts(
        books, wait, nodes, [replace(member, count=n) for n in _smaller_numbers(member.count)]
    )
    if fewer is not None:
        return fewer
    smaller: list[Member] = [
        replace(member, leaf_count=n) for n in _smaller_numbers(member.leaf_count)
    ]
    return _first_that_starts(books, wait, nodes, smaller)


def _smaller_numbers(number: int) -> list[int]:
    """Return candidate numbers in descending order: n - 1, then n // 2, n // 4 and so on."""
    found = {number - 1}
    while number > 1:
        number //= 2
        found.add(number)
    return sorted((n for n in found if n >= 1), reverse=True)


def _first_that_starts(
    books: CellBooks, wait: Wait, nodes: frozenset[str] | None, members: list[Member]
) -> GangRequest | None:
    for member in members:
        asked = replace(wait.request, members=(member,))
        plan = find(books, asked, wait.chain, nodes)
        if plan is not None and not plan.victims and not plan.cancelled:
            return asked
    return None
