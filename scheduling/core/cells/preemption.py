"""Choosing the gangs to evict for another gang: as few as possible, with the least lost work.

A trial removes gangs from the books, runs the ordinary search, and rolls back. So a set of victims
is correct by construction. The search reduces it to a minimal set.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress

from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.picking import SCAN, Item, Spot
from scheduling.core.cells.placement import GuaranteedSearch
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.requests import GroupState


@dataclass(slots=True)
class PlacementPlan:
    """A placement as steps on the state of the books in which it was found.

    Attributes:
        roster: roster of the chain.
        pool: the quota used, or None for an opportunistic gang.
        spots: spots of the instances.
        opened: cells to bind first, in order.
        victims: gangs that use the spots and must be evicted.
        cancelled: Preempting gangs that lose their claims.
        lowered: gangs that lose their quota and retain their devices.
        applied: whether the placement is already in the books.
    """

    roster: Roster
    pool: Pool | None
    spots: list[Spot]
    opened: list[int] = field(default_factory=list)
    victims: list[Gang] = field(default_factory=list)
    cancelled: list[Gang] = field(default_factory=list)
    lowered: list[Gang] = field(default_factory=list)
    applied: bool = False


class VictimCost:
    """Prices devices by the number of further victims and the work that they would lose.

    Args:
        roster: the chain.
        gone: gangs that are evicted in any case.
    """

    __slots__ = ("_gone", "_roster", "_taken")

    def __init__(self, roster: Roster, gone: Iterable[Gang] = ()) -> None:
        self._roster = roster
        self._gone = frozenset([gang.name for gang in gone])
        self._taken = self._gone

    def occupied(self, node: int, mask: int) -> int:
        """Return the devices of a mask whose users would be further victims."""
        lent = mask & self._roster.ledger.opportunistic[node]
        found = 0
        for leaf, bit in self._roster.bits(node, lent):
            gang = self._roster.users.get(leaf)
            if gang is not None and self._counts(gang):
                found |= bit
        return found

    def by_user(self, node: int, mask: int) -> list[int]:
        """Split the mask by user, the cheapest first."""
        parts: dict[str, int] = {}
        gangs: dict[str, Gang] = {}
        for leaf, bit in self._roster.bits(node, mask):
            gang = self._roster.users.get(leaf)
            if gang is not None:
                parts[gang.name] = parts.get(gang.name, 0) | bit
                gangs[gang.name] = gang
        order = sorted(gangs.values(), key=lambda g: (g.at_stake, g.name))
        return [parts[gang.name] for gang in order]

    def price(self, node: int, mask: int) -> tuple[float, ...]:
        """Return the number of further victims, and their lost work in device-seconds."""
        lent = mask & self._roster.ledger.opportunistic[node]
        if not lent:
            return (0.0, 0.0)
        gangs = [g for g in self._roster.users_on(node, lent).values() if self._counts(g)]
        return (float(len(gangs)), sum(g.at_stake for g in gangs))

    def take(self, node: int, mask: int) -> None:
        """Evict the users of devices; further devices of theirs cost nothing."""
        lent = mask & self._roster.ledger.opportunistic[node]
        if lent:
            self._taken = self._taken.union(self._roster.users_on(node, lent))

    def reset(self) -> None:
        """Start again without taken devices."""
        self._taken = self._gone

    def _counts(self, gang: Gang) -> bool:
        return gang.name not in self._taken and gang.state is not GroupState.BEING_PREEMPTED


class PreemptionSearch:
    """Searches the quota of a pool for a guaranteed gang, if necessary with evictions.

    Args:
        roster: roster of the chain; its ledger's log must be open.
        pool: the quota.
        priority: priority of the gang to start.
        items: instances of the gang, largest first.
        allowed: bitmap of the allowed nodes; None for all.
    """

    __slots__ = ("allowed", "items", "pool", "priority", "roster")

    def __init__(
        self, roster: Roster, pool: Pool, priority: int, items: list[Item], allowed: int | None
    ) -> None:
        self.roster = roster
        self.pool = pool
        self.priority = priority
        self.items = items
        self.allowed = allowed

    def without_eviction(self) -> PlacementPlan | None:
        """Find a plan whose only victims are opportunistic, or None."""
        spots = self._search([], combining=True)
        if spots is None:
            return None
        return self._plan(spots, [], self.roster.ledger.opened_since(0), evicting=False)

    def with_eviction(self) -> PlacementPlan | None:
        """Find a plan that takes quota from gangs of lower priority; None if insufficient."""
        ledger = self.roster.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the engine)
        if not self.roster.has_lower(self.pool.number, self.priority):
            return None
        lower = self._lower_gangs()
        chosen = self._fewest_victims(lower) if lower else None
        if chosen is None:
            return None
        mark = len(ledger.log)
        lazy = [g for g in chosen if g.request.lazy_preemption and g.state is GroupState.ALLOCATED]
        firm = [g for g in chosen if g not in lazy]
        for gang in lazy:
            self.roster.make_opportunistic(gang)
        self._lift(firm)
        spots = self._search(firm)
        plan = None
        if spots is not None:
            plan = self._plan(spots, lazy, ledger.opened_since(mark), evicting=True)
        self.roster.lifted.clear()
        return plan

    def would_fit(self, ended: Sequence[Gang], lower: Sequence[Gang]) -> bool:
        """Return whether the gang could start after other gangs end, if necessary with evictions.

        Args:
            ended: gangs that have ended in this trial; their cells are released.
            lower: gangs of lower priority that may be evicted.
        """
        ledger = self.roster.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the caller)
        mark = len(ledger.log)
        homes = {cell for gang in ended if gang.guaranteed for cell in self.roster.homes_of(gang)}
        self._lift(ended)
        for cell in sorted(homes - ledger.doomed):
            if not ledger.owned[cell].used and self.pool.pinned is None:
                ledger.disown(cell)
        fits = self._search([], combining=True) is not None
        if not fits and lower:
            self._lift(lower)
            fits = self._search(lower) is not None
        ledger.rollback(mark)
        self.roster.lifted.clear()
        return fits

    def _search(self, gone: Iterable[Gang], *, combining: bool = False) -> list[Spot] | None:
        cost = VictimCost(self.roster, gone)
        search = GuaranteedSearch(
            self.roster.ledger, self.pool, self.allowed, cost, combining=combining
        )
        return search.run(self.items)

    def _lift(self, gangs: Iterable[Gang]) -> None:
        """Remove gangs from the books, Preempting ones first: their claims return to users."""
        for gang in sorted(gangs, key=lambda g: g.state is not GroupState.PREEMPTING):
            self.roster.lift(gang)
            if gang.state is GroupState.PREEMPTING:
                self.roster.lifted.add(gang.name)

    def _fits(self, gangs: list[Gang]) -> bool:
        """Return whether the gang fits after evicting ``gangs`` and any opportunistic gangs."""
        ledger = self.roster.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the engine)
        mark = len(ledger.log)
        self._lift(gangs)
        fits = self._search(gangs) is not None
        ledger.rollback(mark)
        self.roster.lifted.clear()
        return fits

    def _lower_gangs(self) -> list[Gang]:
        """Return the gangs of the pool with lower priority, in the order of eviction."""
        gangs = self.roster.gangs.get(self.pool.number, {}).values()
        return sorted(
            (gang for gang in gangs if gang.request.priority < self.priority),
            key=lambda g: (
                g.state is not GroupState.BEING_PREEMPTED,
                g.request.priority,
                not g.request.lazy_preemption,
                g.at_stake,
                g.size,
                g.name,
            ),
        )

    def _fewest_victims(self, lower: list[Gang]) -> list[Gang] | None:
        """Find a minimal sufficient set of victims."""
        # If all devices of a gang are claimed, its end frees none.
        useful = [not self._is_spoken_for(gang) for gang in lower]
        if not self._fits(list(compress(lower, useful))):
            return None
        for gang in compress(lower[:SCAN], useful):
            if self._fits([gang]):
                return [gang]
        most = self._shortest_prefix(lower, useful) if len(lower) > SCAN else len(lower)
        kept = list(compress(lower[:most], useful))
        for gang in reversed(list(kept)):
            without = [g for g in kept if g is not gang]
            if self._fits(without):
                kept = without
        return kept

    def _shortest_prefix(self, lower: list[Gang], useful: list[bool]) -> int:
        """Find the length of the shortest sufficient prefix of ``lower``, by bisection."""
        low, high = 1, len(lower)
        while low < high:
            middle = (low + high) // 2
            if self._fits(list(compress(lower[:middle], useful))):
                high = middle
            else:
                low = middle + 1
        return low

    def _is_spoken_for(self, gang: Gang) -> bool:
        """Return whether all devices of a gang are claimed by gangs that this one cannot evict."""
        return gang.state is GroupState.BEING_PREEMPTED and not any(
            claimer is None
            or (claimer.pool is self.pool and claimer.request.priority < self.priority)
            for spot in gang.spots
            for claimer in map(self.roster.claims.get, self.roster.leaves(spot.node, spot.mask))
        )

    def _plan(
        self, spots: list[Spot], lazy: list[Gang], opened: list[int], *, evicting: bool
    ) -> PlacementPlan:
        victims: dict[str, Gang] = {}
        cancelled: dict[str, Gang] = {}
        lent = self.roster.ledger.opportunistic
        # No gang was removed from the books: only opportunistic gangs can block.
        if not evicting and not any(spot.mask & lent[spot.node] for spot in spots):
            return PlacementPlan(self.roster, self.pool, spots, opened=opened)
        for spot in spots:
            victims.update(self.roster.users_on(spot.node, spot.mask))
            for leaf in self.roster.leaves(spot.node, spot.mask):
                claimer = self.roster.claims.get(leaf)
                if claimer is not None:
                    cancelled[claimer.name] = claimer
        return PlacementPlan(
            self.roster,
            self.pool,
            spots,
            opened=opened,
            victims=sorted(victims.values(), key=lambda g: g.name),
            cancelled=list(cancelled.values()),
            lowered=lazy,
        )
