"""Weighted max-min fairness of idle devices between tenants.

A share is max-min fair if it cannot grow without reducing a share that is at most as large per
unit of weight. HiveD (OSDI '20) divides opportunistic devices in this way. Gangs are indivisible,
so the division is approximated in steps: the tenant with the smallest share per unit of weight
chooses next.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from scheduling.core.cells import CellEngine
from scheduling.core.round.engine_setup import guaranteed_devices
from scheduling.core.values import VcFacts

K = TypeVar("K", bound=Hashable)
J = TypeVar("J")


def in_turn(
    lines: Mapping[K, Sequence[J]],
    held: Mapping[K, int],
    weights: Mapping[K, int],
    offer: Callable[[J], int],
) -> None:
    """Offer devices to the first job of each tenant, lowest share per weight first.

    Args:
        lines: queue of each; every entry is offered once.
        held: devices of each at the start.
        weights: positive; default 1.
        offer: allocates devices to an entry if possible; returns their number.
    """
    place = {key: i for i, key in enumerate(sorted(lines, key=repr))}
    turns: list[tuple[float, int, K, int, int]] = [
        (held.get(key, 0) / weights.get(key, 1), place[key], key, held.get(key, 0), 0)
        for key, line in lines.items()
        if line
    ]
    heapq.heapify(turns)
    while turns:
        _, at, key, has, next_ = turns[0]
        has += offer(lines[key][next_])
        if next_ + 1 < len(lines[key]):
            level = has / weights.get(key, 1)
            heapq.heapreplace(turns, (level, at, key, has, next_ + 1))
        else:
            heapq.heappop(turns)


def tenant_weights(engine: CellEngine, vcs: Iterable[VcFacts]) -> dict[int, int]:
    """Return each tenant's weight: the guaranteed devices of its virtual clusters, at least 1."""
    weights: dict[int, int] = {}
    for vc in vcs:
        devices = sum(guaranteed_devices(engine, vc.name).values())
        weights[vc.tenant] = weights.get(vc.tenant, 0) + devices
    return {tenant: max(weight, 1) for tenant, weight in weights.items()}
