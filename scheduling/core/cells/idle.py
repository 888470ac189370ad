"""Placement of opportunistic gangs on idle devices, away from guaranteed gangs."""

from collections import Counter
from collections.abc import Iterator

from scheduling.core.cells import avoiding
from scheduling.core.cells.avoiding import Choice, best_choice
from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.packing import pack
from scheduling.core.cells.picking import Item, Spot


def place_opportunistic(
    ledger: ChainLedger, items: list[Item], allowed: int | None
) -> list[Spot] | None:
    """Place a gang on idle devices, near opportunistic and away from guaranteed gangs.

    Returns:
        The spots, entered in the ledger, or None if the gang does not fit.
    """
    assert ledger.log is not None  # noqa: S101 (opened by the engine)
    mark = len(ledger.log)
    spots: list[Spot] | None = []
    for item in items:
        spot = _place_idle(ledger, item, allowed)
        if spot is None:
            spots = None
            break
        assert spots is not None  # noqa: S101 (tells the type checker)
        spots.append(spot)
    if spots is None:
        ledger.rollback(mark)
        if len({item.size for item in items}) > 1:
            spots = _pack_idle(ledger, items, allowed)
            if spots is None:
                ledger.rollback(mark)
    return spots


def _place_idle(ledger: ChainLedger, item: Item, allowed: int | None) -> Spot | None:
    for (_, free), bits in sorted(ledger.idle.items(), key=lambda kv: (-kv[0][0], -kv[0][1])):
        if free < item.size:
            continue
        nodes = bits if allowed is None else bits & allowed
        best = best_choice(ledger, _choices(ledger, item, nodes))
        if best is not None:
            ledger.lend(best.node, best.mask)
            return Spot(item, best.node, best.mask)
    return None


def _choices(ledger: ChainLedger, item: Item, nodes: int) -> Iterator[Choice]:
    while nodes:
        node = (nodes & -nodes).bit_length() - 1
        nodes &= nodes - 1
        mask = avoiding.choose(ledger, node, idle_mask(ledger, node), item.size, item.within)
        if mask:
            yield Choice(node, node, mask)


def idle_mask(ledger: ChainLedger, node: int) -> int:
    """Return the healthy devices of a node without a user or claim."""
    return ledger.healthy[node] & ~(ledger.guaranteed[node] | ledger.opportunistic[node])


def _pack_idle(ledger: ChainLedger, items: list[Item], allowed: int | None) -> list[Spot] | None:
    by_capacity: dict[int, int] = {}
    for (_, free), bits in ledger.idle.items():
        by_capacity[free] = by_capacity.get(free, 0) | (
            bits if allowed is None else bits & allowed
        )
    plan = pack(
        {free: bits.bit_count() for free, bits in by_capacity.items()},
        Counter(item.size for item in items),
    )
    if plan is None:
        return None
    waiting: dict[int, list[Item]] = {}
    for item in reversed(items):
        waiting.setdefault(item.size, []).append(item)
    spots = []
    for capacity, sizes in plan:
        node = (by_capacity[capacity] & -by_capacity[capacity]).bit_length() - 1
        by_capacity[capacity] &= by_capacity[capacity] - 1
        for size in sizes:
            item = waiting[size].pop()
            mask = avoiding.choose(ledger, node, idle_mask(ledger, node), size, item.within)
            if not mask:
                return None
            ledger.lend(node, mask)
            spots.append(Spot(item, node, mask))
    return spots
