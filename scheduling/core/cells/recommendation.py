"""Recommending the cells of a share from the jobs of the past."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from scheduling.core.cells.topology import ChainTopology

COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGang:
    """Instances of one size that ran at the same time.

    Attributes:
        leaf_types: accepted device types in order of preference; empty for any.
        devices: devices of one instance.
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
    """The recommended number of cells of one level.

    Attributes:
        count: minimum number of cells with the requested coverage of cell-seconds at this level.
        peak: largest number of cells in use at once.
        gangs: number of gangs with instances of this size.
        device_seconds: device-seconds of these instances, before rounding up to complete cells.
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
    """Recommend the number of cells of each level for the gangs of the past.

    An instance counts for the smallest cell that holds it. ``count`` cells of a level cover
    ``sum(min(in use, count))`` of the cell-seconds of that level; the result is the
    smallest count that covers ``coverage`` of them, so borrowing serves rare peaks.

    Args:
        past: gangs of the past, in any order.
        chains: topology by chain name.
        coverage: in (0, 1].

    Returns:
        One entry for each used level, by chain, the largest cells first.
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
    """Return chain and level of the smallest cell for an instance; None if it fits on no node."""
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
    """Map the number of cells in use at once to its duration in seconds."""
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
