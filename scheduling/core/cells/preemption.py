"""Which gangs must go so that another can start: as few as possible, with the least work lost.

A trial lifts gangs out of the books, runs the ordinary search, and rolls back. So a set of victims
is right by construction, and it is reduced until no member can be left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.ledger import Pool
from scheduling.core.cells.picking import SCAN, Item, Spot
from scheduling.core.cells.placement import GuaranteedSearch
from scheduling.core.cells.requests import GroupState


@dataclass(slots=True)
class Plan:
    """A placement that was found, as steps on the state it was found in.

    Attributes:
        roster: the chain.
        pool: the quota used, or None for an opportunistic gang.
        spots: where the instances go.
        opened: cells to bind first, in order.
        victims: gangs that use the spots.
        cancelled: Preempting gangs that lose their claims.
        lowered: gangs that lose their quota and keep their devices.
    """

    roster: Roster
    pool: Pool | None
    spots: list[Spot]
    opened: list[int] = field(default_factory=list)
    victims: list[Gang] = field(default_factory=list)
    cancelled: list[Gang] = field(default_factory=list)
    lowered: list[Gang] = field(default_factory=list)


class VictimCost:
    """Price of devices: how many more gangs would go, and what work they would lose."""

    def __init__(self, roster: Roster, free: Iterable[Gang]) -> None:
        self._roster = roster
        self._free = {gang.name for gang in free}
        self._taken = set(self._free)

    def price(self, node: int, mask: int) -> tuple[float, ...]:
        """(further gangs, their work at stake)."""
        count, work = 0.0, 0.0
        for name, gang in self._roster.users_on(node, mask).items():
            if name not in self._taken and gang.state is not GroupState.BEING_PREEMPTED:
                count += 1
                work += gang.request.at_stake
        return (count, work)

    def take(self, node: int, mask: int) -> None:
        """The users of these devices go; more of their devices cost nothing."""
        self._taken.update(self._roster.users_on(node, mask))

    def reset(self) -> None:
        """Forget what was taken."""
        self._taken = set(self._free)


class PreemptionSearch:
    """Finds the cheapest victims for a guaranteed gang on one pool.

    Args:
        roster: the chain; its ledger's log must be open.
        pool: the quota.
        priority: of the gang that wants to start.
        items: its instances, largest first.
        allowed: bitmap of nodes, or None for all.
    """

    def __init__(
        self, roster: Roster, pool: Pool, priority: int, items: list[Item], allowed: int | None
    ) -> None:
        self.roster = roster
        self.pool = pool
        self.priority = priority
        self.items = items
        self.allowed = allowed

    def run(self) -> Plan | None:
        """A plan with victims, or None when not even all lower gangs would make room."""
        ledger = self.roster.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the engine)
        chosen: list[Gang] = []
        if not self._fits([]):
            lower = self._lower_gangs()
            if not lower:
                return None
            found = self._fewest(lower)
            if found is None:
                return None
            chosen = found
        mark = len(ledger.log)
        lazy = [g for g in chosen if g.request.lazy_preemption and _settled(g)]
        firm = [g for g in chosen if g not in lazy]
        for gang in lazy:
            self.roster.lower(gang)
            gang.guaranteed = False
        self._lift(firm)
        spots = self._evict_opportunistic(firm)
        plan = None
        if spots is not None:
            plan = self._plan(spots, lazy, ledger.opened_since(mark))
        for gang in lazy:
            gang.guaranteed = True
        self.roster.lifted.clear()
        return plan

    def _search(self, cost: VictimCost | None) -> list[Spot] | None:
        return GuaranteedSearch(self.roster.ledger, self.pool, self.allowed, cost).run(self.items)

    def _lift(self, gangs: Iterable[Gang]) -> None:
        """Lift gangs out of the books, claims first: their users come back, to be lifted next."""
        for gang in sorted(gangs, key=lambda g: g.state is not GroupState.PREEMPTING):
            self.roster.lift(gang)
            if gang.state is GroupState.PREEMPTING:
                self.roster.lifted.add(gang.name)

    def _fits(self, gangs: list[Gang]) -> bool:
        """Whether the gang fits when these are gone, and any opportunistic one."""
        ledger = self.roster.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the engine)
        mark = len(ledger.log)
        self._lift(gangs)
        fits = self._search(VictimCost(self.roster, gangs)) is not None
        ledger.rollback(mark)
        self.roster.lifted.clear()
        return fits

    def _lower_gangs(self) -> list[Gang]:
        """Gangs of the pool with lower priority, the ones to evict first in front."""
        gangs = self.roster.gangs.get(self.pool.number, {}).values()
        return sorted(
            (gang for gang in gangs if gang.request.priority < self.priority),
            key=lambda g: (
                g.state is not GroupState.BEING_PREEMPTED,
                g.request.priority,
                not g.request.lazy_preemption,
                g.request.at_stake,
                g.request.leaf_count,
                g.name,
            ),
        )

    def _fewest(self, lower: list[Gang]) -> list[Gang] | None:
        if not self._fits(lower):
            return None
        for gang in lower[:SCAN]:
            if self._fits([gang]):
                return [gang]
        kept = list(lower)
        if len(kept) > SCAN:
            kept = self._shortest_prefix(kept)
        for gang in reversed(list(kept)):
            without = [g for g in kept if g is not gang]
            if self._fits(without):
                kept = without
        return kept

    def _shortest_prefix(self, lower: list[Gang]) -> list[Gang]:
        low, high = 1, len(lower)
        while low < high:
            middle = (low + high) // 2
            if self._fits(lower[:middle]):
                high = middle
            else:
                low = middle + 1
        return lower[:low]

    def _evict_opportunistic(self, firm: list[Gang]) -> list[Spot] | None:
        """Place without touching opportunistic gangs, else with the fewest of them gone."""
        spots = self._search(None)
        if spots is not None:
            return spots
        ledger = self.roster.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the engine)
        mark = len(ledger.log)
        spots = self._search(VictimCost(self.roster, firm))
        if spots is None:
            return None
        victims = self._idle_users(spots, firm)
        ledger.rollback(mark)
        self._lift(self._reduce(victims))
        return self._search(None) or self._search(VictimCost(self.roster, [*firm, *victims]))

    def _idle_users(self, spots: list[Spot], firm: list[Gang]) -> list[Gang]:
        users: dict[str, Gang] = {}
        for spot in spots:
            users.update(self.roster.users_on(spot.node, spot.mask))
        for gang in firm:
            users.pop(gang.name, None)
        return sorted(users.values(), key=lambda g: (g.request.at_stake, g.name))

    def _reduce(self, victims: list[Gang]) -> list[Gang]:
        if len(victims) == 1:
            return victims
        for gang in victims[:SCAN]:
            if self._fits_clean([gang]):
                return [gang]
        kept = list(victims)
        for gang in reversed(victims):
            without = [g for g in kept if g is not gang]
            if self._fits_clean(without):
                kept = without
        return kept

    def _fits_clean(self, gangs: list[Gang]) -> bool:
        ledger = self.roster.ledger
        assert ledger.log is not None  # noqa: S101 (opened by the engine)
        mark = len(ledger.log)
        self._lift(gangs)
        fits = self._search(None) is not None
        ledger.rollback(mark)
        return fits

    def _plan(self, spots: list[Spot], lazy: list[Gang], opened: list[int]) -> Plan:
        victims: dict[str, Gang] = {}
        cancelled: dict[str, Gang] = {}
        for spot in spots:
            victims.update(self.roster.users_on(spot.node, spot.mask))
            for leaf in self.roster.leaves(spot.node, spot.mask):
                claimer = self.roster.claims.get(leaf)
                if claimer is not None:
                    cancelled[claimer.name] = claimer
        return Plan(
            self.roster,
            self.pool,
            spots,
            opened=opened,
            victims=sorted(victims.values(), key=lambda g: g.name),
            cancelled=list(cancelled.values()),
            lowered=lazy,
        )


def _settled(gang: Gang) -> bool:
    """Whether a gang runs and nobody has claimed its devices yet."""
    return gang.state is GroupState.ALLOCATED
