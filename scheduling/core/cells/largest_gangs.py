"""The largest gang of each size that starts now, found by the search of the engine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from scheduling.core.cells.admission import candidate_chains
from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.errors import RequestError
from scheduling.core.cells.requests import MAX_INSTANCES, OPPORTUNISTIC, GangRequest, Member
from scheduling.core.cells.search import find
from scheduling.core.cells.views import instances_in

_PROBE = "\x00largest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestGang:
    """The largest number of instances of one size that a gang of a device type can have.

    Attributes:
        leaf_type: device type.
        devices: devices of one instance; a complete cell at or below node level.
        now: guaranteed instances that start at once, without evictions.
        reclaimed: guaranteed instances that start after evicting borrowers, at least ``now``.
        borrowed: instances that start at once as an opportunistic gang.
    """

    leaf_type: str
    devices: int
    now: int
    reclaimed: int
    borrowed: int


def largest_gangs(books: CellBooks, vc: str) -> tuple[LargestGang, ...]:
    """Return the largest gangs of a virtual cluster by device type and size of an instance.

    The books do not change. The probe has the lowest guaranteed priority, so it does not evict
    gangs of the virtual cluster itself.
    """
    sizes: dict[str, set[int]] = {}
    for chain in books.topology.chains.values():
        for level in range(1, chain.node_level + 1):
            sizes.setdefault(chain.leaf_type, set()).add(chain.sizes[level][1])
    return tuple(
        _largest(books, vc, leaf_type, size)
        for leaf_type, found in sizes.items()
        for size in sorted(found)
    )


def _largest(books: CellBooks, vc: str, leaf_type: str, size: int) -> LargestGang:
    @cache
    def evicted(count: int, priority: int) -> int | None:
        """Return the number of evicted gangs, or None if the gang does not start."""
        if not count:
            return 0
        request = GangRequest(
            group=_PROBE,
            vc=vc,
            priority=priority,
            members=(Member(count=count, leaf_count=size),),
            leaf_types=(leaf_type,),
        )
        try:
            chains = candidate_chains(books, request)
        except RequestError:
            return None
        plans = (find(books, request, chain, None) for chain in chains)
        return min(
            (len(plan.victims) + len(plan.cancelled) for plan in plans if plan is not None),
            default=None,
        )

    idle, lent = _upper_bounds(books, leaf_type, size)
    promised = _free_quota(books, vc, leaf_type, size)
    reclaimed = _largest_count(lent, lambda count: evicted(count, 0) is not None, likely=promised)
    return LargestGang(
        leaf_type=leaf_type,
        devices=size,
        # Usually no gang is evicted, and ``reclaimed`` has been tried already.
        now=_largest_count(
            min(idle, reclaimed), lambda count: evicted(count, 0) == 0, likely=reclaimed
        ),
        reclaimed=reclaimed,
        # All idle devices can be borrowed, so the upper bound is almost always the result.
        borrowed=_largest_count(
            idle, lambda count: evicted(count, OPPORTUNISTIC) is not None, likely=idle
        ),
    )


def _upper_bounds(books: CellBooks, leaf_type: str, size: int) -> tuple[int, int]:
    """Return upper bounds of instances: on idle devices, and with the devices of borrowers.

    The bounds limit the probes, since the time of a search is proportional to the gang.
    """
    idle = lent = 0
    for chain, roster in books.rosters.items():
        if books.topology.chains[chain].leaf_type != leaf_type:
            continue
        ledger = roster.ledger
        masks = zip(ledger.healthy, ledger.guaranteed, ledger.opportunistic, strict=True)
        free = [(healthy & ~ours, theirs) for healthy, ours, theirs in masks]
        idle = max(idle, sum((mask & ~theirs).bit_count() // size for mask, theirs in free))
        lent = max(lent, sum(mask.bit_count() // size for mask, _ in free))
    return min(idle, MAX_INSTANCES), min(lent, MAX_INSTANCES)


def _free_quota(books: CellBooks, vc: str, leaf_type: str, size: int) -> int:
    """Return the maximum number of instances in the free quota of a virtual cluster in a chain."""
    found = [0]
    for chain, roster in books.rosters.items():
        pool = books.pool(vc, chain)
        if pool is not None and books.topology.chains[chain].leaf_type == leaf_type:
            # Nodes of one type may have several sizes, and therefore other levels.
            found.append(instances_in(roster.ledger, [pool]).get(size, 0))
    return max(found)


def _largest_count(most: int, starts: Callable[[int], bool], *, likely: int) -> int:
    """Search the largest number up to ``most`` that starts; smaller gangs start if a larger does.

    If ``likely`` is the result, only it and the next number are tried.
    """
    low, high = 0, 1
    likely = min(likely, most)
    if likely and not starts(likely):
        most = likely - 1
    elif likely:
        if likely == most or not starts(likely + 1):
            return likely
        low, high = likely + 1, 2 * (likely + 1)
    # Small gangs first: they cost less, and most sizes have few or no free instances.
    while high < most and starts(high):
        low, high = high, 2 * high
    high = min(high, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if starts(middle) else (low, middle - 1)
    return low
