"""Exact packing of instances into nodes, by the number of nodes of each capacity."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

STEPS = 40_000


class _Step(NamedTuple):
    """The instances left before a node, the untried fillings, and the filling that led here."""

    left: tuple[int, ...]
    patterns: Iterator[tuple[int, ...]]
    pattern: tuple[int, ...]


def pack(
    capacities: Mapping[int, int], sizes: Mapping[int, int]
) -> list[tuple[int, tuple[int, ...]]] | None:
    """Pack instances into nodes.

    Only maximal fillings of a node are tried: every packing can be changed, node by node, into one
    of maximal fillings. Failed states are cached. The search is small for nodes of up to 16
    devices and a few sizes; after ``STEPS`` steps it gives up.

    Args:
        capacities: free devices of a node -> number of such nodes.
        sizes: devices of an instance -> number of such instances.

    Returns:
        Capacity and instance sizes of each used node; None if no packing was found.
    """
    items = tuple(sorted(sizes, reverse=True))
    bins: list[int] = []
    wanted = sum(sizes.values())
    for capacity in sorted(capacities):
        if capacity >= items[-1]:
            bins += [capacity] * min(capacities[capacity], wanted)
    filled = _fill(bins, items, tuple(sizes[size] for size in items)) if bins else None
    if filled is None:
        return None
    return [
        (capacity, tuple(s for s, n in zip(items, pattern, strict=True) for _ in range(n)))
        for capacity, pattern in filled
        if any(pattern)
    ]


def _fill(
    bins: list[int], items: tuple[int, ...], left: tuple[int, ...]
) -> list[tuple[int, tuple[int, ...]]] | None:
    """Search the bins depth-first; iterative, because of the recursion limit."""
    room = [0] * (len(bins) + 1)
    for i in range(len(bins) - 1, -1, -1):
        room[i] = room[i + 1] + bins[i]
    if sum(size * n for size, n in zip(items, left, strict=True)) > room[0]:
        return None
    failed: set[tuple[int, tuple[int, ...]]] = set()
    trail = [_Step(left, _patterns(bins[0], items, left), ())]
    for _ in range(STEPS):
        if not trail:
            return None
        depth, step = len(trail), trail[-1]
        if not any(step.left):
            return [(bins[i], done.pattern) for i, done in enumerate(trail[1:])]
        pattern = next(step.patterns, None)
        if pattern is None:
            failed.add((depth, step.left))
            trail.pop()
            continue
        rest = tuple(have - used for have, used in zip(step.left, pattern, strict=True))
        size = sum(s * n for s, n in zip(items, rest, strict=True))
        if size > room[depth] or (depth + 1, rest) in failed:
            continue
        more = _patterns(bins[depth], items, rest) if depth < len(bins) else iter(())
        trail.append(_Step(rest, more, pattern))
    return None


def _patterns(
    capacity: int, items: tuple[int, ...], left: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Yield all maximal fillings of a node, the fullest first."""
    found: list[tuple[int, tuple[int, ...]]] = []

    def choose(i: int, room: int, taken: tuple[int, ...]) -> None:
        if i == len(items):
            if not any(
                room >= size and have > used
                for size, have, used in zip(items, left, taken, strict=True)
            ):
                found.append((room, taken))
            return
        for n in range(min(left[i], room // items[i]), -1, -1):
            choose(i + 1, room - n * items[i], (*taken, n))

    choose(0, capacity, ())
    found.sort(key=lambda entry: entry[0])
    return iter([taken for _, taken in found])
