"""Gangs with devices or claims in a chain, and the users and claims of each device."""

import itertools
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from weakref import ref

from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.picking import Spot
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.requests import OPPORTUNISTIC, GangRequest, GroupState


class Gang:
    """A gang with devices or claims.

    The reference to the roster is weak. Without the reference cycle Python frees discarded books
    at once, not in a long garbage collection during a round.

    Attributes:
        request: the request.
        name: name of the gang.
        size: number of its devices.
        stake: start of the work that an eviction would lose, and its devices; None if unknown.
        state: Allocated, Preempting or BeingPreempted.
        pool: its quota, while ``guaranteed``.
        spots: placements of its instances.
        guaranteed: whether its devices count against quota.
        lazy_by: name of the gang for which it lost its quota, or None; "" after a reconfiguration.
        victims: gangs to evict before its start (Preempting).
        preemptors: Preempting gangs with claims on its devices.
        lowered: gangs that it has deprived of their quota.
        doomed: doomed cells of the chain before it claimed its devices, with their places.
        bins: cached (bin, owned cell) pairs under its spots in the order of its members, while
            guaranteed; None until they are needed.
        virtual: virtual leaf addresses by spot; still set after a loss of quota, to regain it.
    """

    __slots__ = (
        "_roster",
        "bins",
        "doomed",
        "guaranteed",
        "lazy_by",
        "lowered",
        "name",
        "pool",
        "preemptors",
        "request",
        "size",
        "spots",
        "stake",
        "state",
        "victims",
        "virtual",
    )

    def __init__(
        self, request: GangRequest, roster: "Roster | None", pool: Pool | None, spots: list[Spot]
    ) -> None:
        self.request = request
        self.name = request.group
        self.size = request.leaf_count
        self.stake: tuple[float, int] | None = None
        self._roster = ref(roster) if roster is not None else None
        self.pool = pool
        self.spots = spots
        self.state = GroupState.ALLOCATED
        self.guaranteed = pool is not None
        self.lazy_by: str | None = None
        self.victims: dict[str, Gang] = {}
        self.preemptors: dict[str, Gang] = {}
        self.lowered: list[str] = []
        self.doomed: dict[int, tuple[int, int]] = {}
        self.bins: tuple[tuple[int, int], ...] | None = None
        self.virtual: list[tuple[str, ...]] = []

    @property
    def roster(self) -> "Roster | None":
        """The roster of its chain; None if the cluster has none of its devices any more."""
        return self._roster() if self._roster is not None else None

    @property
    def at_stake(self) -> float:
        """Work that an eviction would lose, in device-seconds (now, or as requested)."""
        roster = self.roster
        if self.stake is None or roster is None or roster.now is None:
            return self.request.at_stake
        since, devices = self.stake
        return max(roster.now - since, 0.0) * devices

    def __getstate__(self) -> dict[str, object]:
        """State for ``copy.deepcopy``, with a strong reference to the roster."""
        state = {name: getattr(self, name) for name in self.__slots__ if name != "_roster"}
        return {**state, "_roster": self.roster}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the state of a copy, with a weak reference to the roster."""
        for name, value in state.items():
            setattr(self, name, ref(value) if name == "_roster" and value is not None else value)

    @property
    def priority(self) -> int:
        """The priority of the request if the gang has quota, otherwise opportunistic."""
        return self.request.priority if self.guaranteed else -1


class Roster:
    """Users and claims of the devices of one chain, in step with its ledger.

    Attributes:
        ledger: the ledger of the chain.
        users: device -> gang whose job runs there.
        claims: device -> Preempting gang that has claimed it.
        gangs: guaranteed gangs by pool number; opportunistic ones under -1. In order of arrival.
        ranks: gang names by pool number and (requested priority, devices).
        lists: cached results of ``largest`` by pool number; ``changed`` clears them.
        versions: number of changes of a pool's gangs, by pool number.
        now: current time of a simulation, in seconds since the epoch; None in a round.
        quota_changes: number of gangs that lost or regained their quota.
        lifted: Preempting gangs whose claims a search ignores.
    """

    __slots__ = (
        "__weakref__",
        "claims",
        "gangs",
        "ledger",
        "lifted",
        "lists",
        "now",
        "quota_changes",
        "ranks",
        "users",
        "versions",
    )

    def __init__(self, ledger: ChainLedger) -> None:
        self.ledger = ledger
        self.users: dict[int, Gang] = {}
        self.claims: dict[int, Gang] = {}
        self.gangs: dict[int, dict[str, Gang]] = {}
        self.ranks: dict[int, dict[tuple[int, int], set[str]]] = {}
        self.lists: dict[int | None, dict[tuple[int, int], tuple[tuple[int, str], ...]]] = {}
        self.versions: dict[int, int] = {}
        self.now: float | None = None
        self.quota_changes = 0
        self.lifted: set[str] = set()

    def leaves(self, node: int, mask: int) -> Sequence[int]:
        """Return the numbers of the devices in a mask; a range if they are contiguous."""
        topology = self.ledger.topology
        first = topology.leaf_lo[topology.node_base + node]
        highest = mask.bit_length()
        if not mask & (mask - 1):
            return range(first + highest - 1, first + highest)
        lowest = (mask & -mask).bit_length() - 1
        if mask >> lowest == (1 << (highest - lowest)) - 1:
            return range(first + lowest, first + highest)
        return [first + i for i in range(lowest, highest) if mask >> i & 1]

    def bits(self, node: int, mask: int) -> Iterator[tuple[int, int]]:
        """Yield (device number, bit in the node's masks) for each device in a mask."""
        topology = self.ledger.topology
        first = topology.leaf_lo[topology.node_base + node]
        while mask:
            low = mask & -mask
            yield first + low.bit_length() - 1, low
            mask ^= low

    def users_on(self, node: int, mask: int) -> dict[str, Gang]:
        """Return the gangs that use devices in a mask."""
        users = self.users
        found = {}
        for leaf in self.leaves(node, mask):
            gang = users.get(leaf)
            if gang is not None:
                found[gang.name] = gang
        return found

    def enter(self, gang: Gang) -> None:
        """Add a gang to the lists of its pool."""
        gang.bins = None
        number = gang.pool.number if gang.guaranteed and gang.pool is not None else -1
        self.gangs.setdefault(number, {})[gang.name] = gang
        rank = gang.request.priority, gang.size
        self.ranks.setdefault(number, {}).setdefault(rank, set()).add(gang.name)
        self.changed(number)

    def leave(self, gang: Gang) -> None:
        """Remove a gang from the lists."""
        rank = gang.request.priority, gang.size
        for number in (-1, gang.pool.number if gang.pool is not None else -1):
            if self.gangs.get(number, {}).pop(gang.name, None) is not None:
                names = self.ranks[number][rank]
                names.remove(gang.name)
                if not names:
                    del self.ranks[number][rank]
                self.changed(number)

    def has_lower(self, number: int, priority: int) -> bool:
        """Return whether a gang of a pool requested a priority below ``priority``."""
        return any(asked < priority for asked, _ in self.ranks.get(number, ()))

    def has_at_least(self, number: int, priority: int) -> bool:
        """Return whether a gang of a pool requested ``priority`` or more."""
        return any(asked >= priority for asked, _ in self.ranks.get(number, ()))

    def largest(
        self, number: int | None, count: int, *, priority: int = OPPORTUNISTIC
    ) -> Sequence[tuple[int, str]]:
        """Return the largest gangs of a pool with at least a priority; ties are in order of name.

        Args:
            number: number of the pool; None for all gangs of the chain.
            count: maximum number of gangs to return.
            priority: lowest requested priority.

        Returns:
            At most ``count`` pairs (negative number of devices, name), ascending.
        """
        lists = self.lists.setdefault(number, {})
        known = lists.get((count, priority))
        if known is None:
            known = lists[count, priority] = tuple(self._largest(number, count, priority))
        return known

    def _largest(self, number: int | None, count: int, priority: int) -> list[tuple[int, str]]:
        pools = self.ranks.values() if number is None else (self.ranks.get(number, {}),)
        sizes: dict[int, list[set[str]]] = {}
        for ranks in pools:
            for (asked, size), names in ranks.items():
                if asked >= priority:
                    sizes.setdefault(size, []).append(names)
        found: list[tuple[int, str]] = []
        for size in sorted(sizes, reverse=True):
            there = itertools.chain.from_iterable(sizes[size])
            found += [(-size, name) for name in nsmallest(count - len(found), there)]
            if len(found) == count:
                break
        return found

    def changed(self, number: int) -> None:
        """Record a change of a pool's gangs."""
        self.versions[number] = self.versions.get(number, 0) + 1
        self.lists.pop(number, None)
        self.lists.pop(None, None)

    def set_users(self, gang: Gang) -> None:
        """Record a gang as the user of its devices; the ledger has them already."""
        for spot in gang.spots:
            for leaf in self.leaves(spot.node, spot.mask):
                self.users[leaf] = gang

    def claim(self, gang: Gang) -> None:
        """Record the claims of a Preempting gang; current users run until they are evicted."""
        for spot in gang.spots:
            for leaf in self.leaves(spot.node, spot.mask):
                self.claims[leaf] = gang
                user = self.users.get(leaf)
                if user is not None:
                    user.state = GroupState.BEING_PREEMPTED
                    user.preemptors[gang.name] = gang
                    gang.victims[user.name] = user

    def own_mask(self, gang: Gang, spot: Spot) -> int:
        """Return the devices of a spot that the ledger counts for the gang itself.

        Claimed devices of guaranteed users (always of the same pool) are counted for these users,
        so that a claim on them does not change the ledger.
        """
        if gang.state is GroupState.PREEMPTING:
            return sum(
                bit
                for leaf, bit in self.bits(spot.node, spot.mask)
                if leaf not in self.users or not self.users[leaf].guaranteed
            )
        if not gang.preemptors:
            return spot.mask
        return sum(
            bit
            for leaf, bit in self.bits(spot.node, spot.mask)
            if leaf not in self.claims or self.claims[leaf].name in self.lifted
        )

    def lift(self, gang: Gang) -> None:
        """Remove a gang from the ledger, not the lists; claimed devices return to their users."""
        ledger = self.ledger
        for spot in gang.spots:
            mask = self.own_mask(gang, spot)
            if mask and gang.guaranteed:
                ledger.vacate(spot.node, mask)
            elif mask:
                ledger.reclaim(spot.node, mask)
            if gang.state is GroupState.PREEMPTING:
                for leaf, bit in self.bits(spot.node, spot.mask):
                    user = self.users.get(leaf)
                    if user is not None and not user.guaranteed:
                        ledger.lend(spot.node, bit)

    def homes_of(self, gang: Gang) -> set[int]:
        """Return the owned cells of a gang with quota."""
        holders = self.ledger.holders
        return {cell for spot in gang.spots for cell, _ in holders(spot.node, spot.mask)}

    def bins_of(self, gang: Gang) -> tuple[tuple[int, int], ...]:
        """Return the (bin, owned cell) pairs of a gang with quota, in the order of its members."""
        if gang.bins is None:
            ledger = self.ledger
            found: dict[tuple[int, int], None] = {}
            for spot in sorted(gang.spots, key=lambda spot: spot.item.member):
                home = ledger.homes[spot.node]
                if home >= 0:
                    found[spot.node, home] = None
                    continue
                for cell, _ in ledger.holders(spot.node, spot.mask):
                    found[ledger.first_small + cell, cell] = None
            gang.bins = tuple(found)
        return gang.bins

    def make_opportunistic(self, gang: Gang) -> None:
        """Count the devices of a gang as opportunistic, and release cells that are unused then."""
        ledger = self.ledger
        homes = self.homes_of(gang)
        for spot in gang.spots:
            mask = self.own_mask(gang, spot)
            if mask:
                ledger.vacate(spot.node, mask)
                ledger.lend(spot.node, mask)
        self.release_cells(homes)

    def release_cells(self, cells: set[int]) -> None:
        """Unbind cells without users; pinned cells stay bound."""
        ledger = self.ledger
        for cell in sorted(cells):
            owned = ledger.owned.get(cell)
            if owned is not None and not owned.used and ledger.pools[owned.pool].pinned is None:
                ledger.disown(cell)
                ledger.doomed.discard(cell)
