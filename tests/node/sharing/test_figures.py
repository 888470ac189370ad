"""Median and standard deviation against the standard library."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.sharing import figures

NUMBERS = st.lists(st.floats(0, 1e6), min_size=2, max_size=60)


@given(numbers=NUMBERS)
def test_both_are_those_of_the_standard_library(numbers) -> None:
    assert figures.median(numbers) == pytest.approx(statistics.median(numbers), rel=1e-12)
    expected = statistics.stdev(numbers)
    assert figures.stdev(numbers) == pytest.approx(expected, rel=1e-9, abs=1e-6)
