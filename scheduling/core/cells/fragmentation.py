"""The largest gang that starts now: asked of the engine itself, so it is no estimate."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduling.core.cells.admission import candidate_chains
from scheduling.core.cells.engine import CellEngine
from scheduling.core.cells.errors import RequestError
from scheduling.core.cells.requests import MAX_INSTANCES, OPPORTUNISTIC, GangRequest, Member
from scheduling.core.cells.search import find

_PROBE = "\x00largest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestGang:
    """How many instances of one size a gang can have, in one chain's device type.

    Attributes:
        leaf_type: device type.
        devices: of one instance; a whole cell at or below node level.
        now: instances that start at once with a guarantee, nobody disturbed.
        reclaimed: instances that start when borrowers have left; never fewer than ``now``.
        borrowed: instances that start at once as an opportunistic gang.
    """

    leaf_type: str
    devices: int
    now: int
    reclaimed: int
    borrowed: int


def largest_gangs(engine: CellEngine, vc: str) -> tuple[LargestGang, ...]:
    """The largest gangs of a virtual cluster by device type and size of an instance.

    Nothing changes: the engine only decides. Gangs of the virtual cluster itself are left alone,
    so the probe has the lowest guaranteed priority.
    """
    sizes: dict[str, set[int]] = {}
    leaves: dict[str, int] = {}
    for chain in engine.topology.chains.values():
        for level in range(1, chain.node_level + 1):
            sizes.setdefault(chain.leaf_type, set()).add(chain.sizes[level][1])
        leaves[chain.leaf_type] = leaves.get(chain.leaf_type, 0) + chain.leaf_count
    return tuple(
        _largest(engine, vc, leaf_type, size, min(leaves[leaf_type] // size, MAX_INSTANCES))
        for leaf_type, found in sizes.items()
        for size in sorted(found)
    )


def _largest(engine: CellEngine, vc: str, leaf_type: str, size: int, most: int) -> LargestGang:
    def evicted(count: int, priority: int) -> int | None:
        """How many gangs would have to leave; None where it does not start at all."""
        request = GangRequest(
            group=_PROBE,
            vc=vc,
            priority=priority,
            members=(Member(count=count, leaf_count=size),),
            leaf_types=(leaf_type,),
        )
        try:
            chains = candidate_chains(engine, request)
        except RequestError:
            return None
        plans = (find(engine, request, chain, None) for chain in chains)
        return min(
            (len(plan.victims) + len(plan.cancelled) for plan in plans if plan is not None),
            default=None,
        )

    return LargestGang(
        leaf_type=leaf_type,
        devices=size,
        now=_most(most, lambda count: evicted(count, 0) == 0),
        reclaimed=_most(most, lambda count: evicted(count, 0) is not None),
        borrowed=_most(most, lambda count: evicted(count, OPPORTUNISTIC) is not None),
    )


def _most(most: int, starts: Callable[[int], bool]) -> int:
    """The largest number up to ``most`` that starts: whoever fits, fits with one instance less."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if starts(middle) else (low, middle - 1)
    return low
