"""Device time of jobs that share a device as equals: each is charged its part of every moment."""

from collections.abc import Sequence
from itertools import pairwise

Span = tuple[float, float]
"""Begin and end of a run on a device, in seconds."""


def divided_seconds(spans: Sequence[Span]) -> tuple[float, ...]:
    """Return the seconds that each run on one device is charged.

    Every moment is divided evenly among the runs that are there, so the charges of a device never
    add up to more than the time in which it was used.

    Args:
        spans: of the holder and of the jobs beside it; a span that ends before it begins is empty.
    """
    edges = sorted({edge for begin, end in spans if begin < end for edge in (begin, end)})
    charged = [0.0] * len(spans)
    for low, high in pairwise(edges):
        there = [n for n, (begin, end) in enumerate(spans) if begin <= low and high <= end]
        for n in there:
            charged[n] += (high - low) / len(there)
    return tuple(charged)
