"""Which shape of a share the jobs of the past would have needed: cells by level, over time."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from scheduling.core.cells.topology import ChainTopology

COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGang:
    """Instances of one size that ran together.

    Attributes:
        leaf_types: accepted device types in order of preference; empty for any.
        devices: of one instance.
        instances: how many of them.
        start, end: seconds since the epoch.
    """

    leaf_types: tuple[str, ...]
    devices: int
    instances: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedLevel:
    """Cells of one level that the past would have needed.

    Attributes:
        count: the fewest cells that cover the wanted part of the time used at this level.
        peak: cells that were in use at once at most.
        gangs: how many gangs had instances of this size.
        device_seconds: of all their instances, before rounding up to whole cells.
    """

    chain: str
    level: str
    count: int
    peak: int
    gangs: int
    device_seconds: float


def recommend(
    past: Iterable[PastGang], chains: Mapping[str, ChainTopology], *, coverage: float = COVERAGE
) -> tuple[RecommendedLevel, ...]:
    """The smallest cells, and so many of them, that the gangs of the past would have filled.

    An instance counts for the smallest cell that holds it. ``count`` cells of a level cover
    ``sum(min(in use, count))`` of the cell-seconds of that level; the fewest are taken that cover
    ``coverage`` of them, so a rare peak is left to borrowing.

    Args:
        past: what ran, in any order.
        chains: the cells there are, by name.
        coverage: in (0, 1].

    Returns:
        One entry for each level that was used, by chain, the largest cells first.
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage {coverage} is not in (0, 1]")
    spans: dict[tuple[str, int], list[tuple[float, float, int]]] = defaultdict(list)
    work: dict[tuple[str, int], float] = defaultdict(float)
    places: dict[tuple[tuple[str, ...], int], tuple[str, int] | None] = {}
    for gang in past:
        size = gang.leaf_types, gang.devices
        if size not in places:
            places[size] = _place(gang, chains)
        place = places[size]
        if place is not None and gang.end > gang.start:
            spans[place].append((gang.start, gang.end, gang.instances))
            work[place] += (gang.end - gang.start) * gang.instances * gang.devices
    return tuple(
        _recommended(chains[name], level, spans[name, level], work[name, level], coverage)
        for name, level in sorted(spans, key=lambda key: (key[0], -key[1]))
    )


def _place(gang: PastGang, chains: Mapping[str, ChainTopology]) -> tuple[str, int] | None:
    """Chain and level of the smallest cell that holds an instance; None if no machine does."""
    rank = {leaf_type: number for number, leaf_type in enumerate(gang.leaf_types)}
    fitting = [
        (rank.get(chain.leaf_type, 0), -chain.leaf_count, name, level)
        for name, chain in chains.items()
        if not rank or chain.leaf_type in rank
        for level in range(1, chain.node_level + 1)
        if chain.sizes[level][1] >= gang.devices
    ]
    best = min(fitting, default=None)
    return (best[2], best[3]) if best is not None else None


def _recommended(
    chain: ChainTopology,
    level: int,
    spans: Sequence[tuple[float, float, int]],
    work: float,
    coverage: float,
) -> RecommendedLevel:
    at_once = _seconds_by_use(spans)
    total = sum(cells * seconds for cells, seconds in at_once.items())
    peak = max(at_once)
    low, high = 1, peak
    while low < high:
        middle = (low + high) // 2
        covered = sum(min(cells, middle) * seconds for cells, seconds in at_once.items())
        low, high = (low, middle) if covered >= coverage * total else (middle + 1, high)
    return RecommendedLevel(
        chain=chain.name,
        level=chain.types[level],
        count=low,
        peak=peak,
        gangs=len(spans),
        device_seconds=work,
    )


def _seconds_by_use(spans: Sequence[tuple[float, float, int]]) -> dict[int, float]:
    """For how long so many cells were in use at once."""
    changes: dict[float, int] = defaultdict(int)
    for start, end, instances in spans:
        changes[start] += instances
        changes[end] -= instances
    seconds: dict[int, float] = defaultdict(float)
    moments = sorted(changes)
    in_use = 0
    for moment, following in pairwise(moments):
        in_use += changes[moment]
        if in_use:
            seconds[in_use] += following - moment
    return seconds
