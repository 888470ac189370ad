"""Sums of logical workers come out the same to the last bit, however they are spread."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.train import reduction

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False, width=32)


def add(left: float, right: float) -> float:
    return left + right


@st.composite
def layouts(draw: st.DrawFn, workers: int) -> list[int]:
    """How many workers each process holds; some hold none."""
    cuts = sorted(draw(st.lists(st.integers(0, workers), max_size=6)))
    edges = [0, *cuts, workers]
    return [high - low for low, high in itertools.pairwise(edges)]


def summed(values: list[float], counts: list[int]) -> float:
    """The sum as processes with these numbers of workers make it."""
    told: dict[reduction.Span, float] = {}
    for low, high in reduction.spans(counts):
        accumulator = reduction.Accumulator[float](len(values), add)
        for worker in range(low, high):
            accumulator.push(worker, values[worker])
        sums = accumulator.take()
        assert list(sums) == reduction.roots((low, high), len(values))
        told.update(sums)
    return reduction.total(told, len(values), add)


@given(st.data(), st.lists(NUMBERS, min_size=1, max_size=33))
def test_every_layout_gives_the_same_bits(data: st.DataObject, values: list[float]) -> None:
    counts = data.draw(layouts(len(values)))

    assert summed(values, counts) == summed(values, [len(values)])


@given(st.lists(NUMBERS, min_size=1, max_size=33))
def test_the_sum_is_the_sum(values: list[float]) -> None:
    scale = sum(abs(value) for value in values) + 1

    assert summed(values, [len(values)]) == pytest.approx(math.fsum(values), abs=1e-9 * scale)


def test_another_order_gives_other_bits_so_that_the_order_matters() -> None:
    values = [1e16, 1.0, -1e16, 1.0]

    assert summed(values, [4]) == (1e16 + 1.0) + (-1e16 + 1.0)
    assert summed(values, [4]) != sum(values)


@given(st.integers(1, 64))
def test_a_tree_halves_at_powers_of_two(workers: int) -> None:
    nodes = reduction.tree(workers)

    assert len(nodes) == 2 * workers - 1
    for low, high in nodes:
        if high - low > 1:
            (_, cut), _ = reduction.halves((low, high))
            assert (cut - low).bit_count() == 1
            assert cut - low < high - low <= 2 * (cut - low)


@given(st.integers(1, 64), st.integers(1, 16))
def test_workers_are_spread_evenly(workers: int, processes: int) -> None:
    counts = reduction.spread(workers, processes)

    assert reduction.check_counts(counts, workers, processes) == counts
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("counts", [[1, 2], [2, 2, 0], [5, -1], [4]])
def test_a_layout_that_does_not_fit_is_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="does not distribute 4 logical workers"):
        reduction.check_counts(counts, 4, 2)


def test_a_missing_root_is_told() -> None:
    with pytest.raises(KeyError):
        reduction.total({(0, 1): 1.0}, 2, add)
