"""Sums over logical workers in a fixed order, independent of their processes.

Floating-point sums depend on their order. Here the order is a binary tree over the logical workers
``0 .. n-1``: a node over ``[low, high)`` is the sum of its two halves,
cut at the largest power of two below its width. Processes hold contiguous ranges of workers. Each
sums the subtrees wholly in its range (its *roots*); a process with all roots finishes the
tree. So one, two, three or eight processes add the same numbers in the same order (EasyScale,
SC'23, section 3.3, uses recorded buckets of a ring for this; a tree needs no record).
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, Generic, Iterable, List, Sequence, Tuple, TypeVar

Value = TypeVar("Value")
Span = Tuple[int, int]
"""Range of workers from the first number up to, but without, the second."""


def spread(workers: int, processes: int) -> List[int]:
    """Return the number of logical workers of each process, spread as evenly as possible.

    >>> spread(8, 3)
    [3, 3, 2]
    """
    each, more = divmod(workers, processes)
    return [each + (rank < more) for rank in range(processes)]


def spans(counts: Sequence[int]) -> List[Span]:
    """Return the range of each process, from their numbers of workers in order.

    >>> spans([2, 0, 1])
    [(0, 2), (2, 2), (2, 3)]
    """
    found, at = [], 0
    for count in counts:
        found.append((at, at + count))
        at += count
    return found


def halves(span: Span) -> Tuple[Span, Span]:
    """Return the two parts of a node."""
    low, high = span
    cut = low + (1 << (high - low - 1).bit_length() - 1)
    return (low, cut), (cut, high)


def tree(workers: int) -> FrozenSet[Span]:
    """Return all nodes of the tree."""
    found: List[Span] = []
    open_spans = [(0, workers)] if workers else []
    while open_spans:
        span = open_spans.pop()
        found.append(span)
        if span[1] - span[0] > 1:
            open_spans.extend(halves(span))
    return frozenset(found)


def roots(held: Span, workers: int) -> List[Span]:
    """Return the largest nodes within a range, in order: the contribution of its process."""
    found: List[Span] = []

    def visit(span: Span) -> None:
        if held[0] <= span[0] and span[1] <= held[1]:
            found.append(span)
        elif span[0] < held[1] and held[0] < span[1]:
            for half in halves(span):
                visit(half)

    if held[0] < held[1]:
        visit((0, workers))
    return found


class Accumulator(Generic[Value]):
    """Sums the values of the workers of one range in sequence.

    Args:
        workers: number of workers of the whole tree.
        add: returns the sum of two values; it may change the first.
    """

    def __init__(self, workers: int, add: Callable[[Value, Value], Value]) -> None:
        self._nodes = tree(workers)
        self._add = add
        self._stack: List[Tuple[Span, Value]] = []

    def push(self, worker: int, value: Value) -> None:
        """Add a worker's value; workers come in ascending order."""
        span = (worker, worker + 1)
        while self._stack and (self._stack[-1][0][0], span[1]) in self._nodes:
            (low, _), left = self._stack.pop()
            span, value = (low, span[1]), self._add(left, value)
        self._stack.append((span, value))

    def take(self) -> Dict[Span, Value]:
        """Return the sums of the range's roots; empties the accumulator."""
        found, self._stack = dict(self._stack), []
        return found


def total(sums: Dict[Span, Value], workers: int, add: Callable[[Value, Value], Value]) -> Value:
    """Return the sum of the whole tree from the roots of all processes.

    Raises:
        KeyError: a root is missing.
    """

    def value_of(span: Span) -> Value:
        if span in sums:
            return sums[span]
        if span[1] - span[0] == 1:
            raise KeyError(span)
        left, right = halves(span)
        return add(value_of(left), value_of(right))

    return value_of((0, workers))


def check_counts(counts: Iterable[int], workers: int, processes: int) -> List[int]:
    """Return the checked numbers of workers of each process.

    Raises:
        ValueError: their count is not the number of processes, or their sum not all workers.
    """
    found = list(counts)
    if len(found) != processes or sum(found) != workers or min(found) < 0:
        raise ValueError(
            f"the layout {found} does not distribute {workers} logical workers over "
            f"{processes} processes"
        )
    return found
