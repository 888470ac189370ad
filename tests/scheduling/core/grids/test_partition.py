"""Stage partition against examples of the paper and brute force."""

from itertools import combinations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from scheduling.core.grids.model import GridInputError
from scheduling.core.grids.partition import partition

WORK = [1, 3, 2, 2, 6, 2]
"""Operators of figure 7 of Crius (EuroSys '26), in sixteenths; the paper fixes the first two."""


@pytest.mark.parametrize(
    ("transfers", "crossing"), [([4, 1, 2, 1.5, 5], 4.5), ([4, 1, 5, 1, 2], 7)]
)
def test_figure_7_of_crius_gives_two_one_one_and_four_devices(transfers, crossing):
    found = partition(WORK, transfers, stages=4, devices=8, equal_widths=False)

    assert found.ends == (2, 3, 4, 6)
    assert found.devices == (2, 1, 1, 4)
    assert found.bottleneck == 2
    assert found.transfer == crossing


def test_equal_widths_balance_the_work():
    found = partition(WORK, [1, 1, 1, 1, 1], stages=2, devices=4)

    assert found.ends == (4, 6)
    assert found.devices == (2, 2)
    assert found.bottleneck == 4


def test_the_cheaper_of_two_balanced_cuts_wins():
    assert partition([1, 1, 0, 1, 1], [9, 5, 4, 9], stages=2, devices=2).ends == (3, 5)
    assert partition([1, 1, 0, 1, 1], [9, 4, 4, 9], stages=2, devices=2).ends == (2, 5)


@st.composite
def problems(draw):
    """Work, transfers, stages and devices; few values, so that ties occur."""
    layers = draw(st.integers(1, 8))
    numbers = st.integers(0, draw(st.sampled_from([2, 5, 40])))
    work = draw(st.lists(numbers, min_size=layers, max_size=layers))
    transfers = draw(st.lists(numbers, min_size=layers - 1, max_size=layers - 1))
    stages = draw(st.integers(1, layers))
    return work, transfers, stages, draw(st.integers(stages, 8)), draw(st.booleans())


def _divisions(devices, stages):
    if stages == 0:
        return [()] if devices == 0 else []
    return [
        (width, *rest)
        for width in (1, 2, 4, 8)
        if width <= devices
        for rest in _divisions(devices - width, stages - 1)
    ]


def _brute_force(work, transfers, stages, devices, equal_widths):
    candidates = []
    for cuts in combinations(range(1, len(work)), stages - 1):
        ends = (*cuts, len(work))
        loads = [sum(work[a:b]) for a, b in zip((0, *cuts), ends, strict=True)]
        for widths in _divisions(devices, stages):
            if equal_widths and set(widths) != {devices / stages}:
                continue
            slowest = max(load / width for load, width in zip(loads, widths, strict=True))
            candidates.append((slowest, sum(transfers[c - 1] for c in cuts), ends, widths))
    return min(candidates, default=None)


@given(problem=problems())
@example(problem=([0, 0, 0], [1, 1], 2, 8, False))
@settings(max_examples=200, deadline=None)
def test_the_partition_equals_brute_force(problem):
    _compare(problem)


@pytest.mark.soak
@given(problem=problems())
@settings(max_examples=3000, deadline=None)
def test_the_partition_equals_brute_force_on_many_problems(problem):
    _compare(problem)


def _compare(problem):
    work, transfers, stages, devices, equal_widths = problem
    wanted = _brute_force(*problem)
    if wanted is None:
        with pytest.raises(GridInputError, match="cannot be divided"):
            partition(work, transfers, stages=stages, devices=devices, equal_widths=equal_widths)
        return

    found = partition(work, transfers, stages=stages, devices=devices, equal_widths=equal_widths)

    assert (found.bottleneck, found.transfer, found.ends, found.devices) == wanted


@given(problem=problems(), unit=st.sampled_from([0.1, 1 / 3, 1e-30, 7.7e18]))
@settings(max_examples=100, deadline=None)
def test_rounding_errors_do_not_hide_ties_of_equal_layers(problem, unit):
    work, transfers, stages, devices, _ = problem
    assume(devices.bit_count() <= stages)
    zeros_and_ones = [min(value, 1) for value in work], [min(value, 1) for value in transfers]
    scaled = [[value * unit for value in values] for values in zeros_and_ones]

    found = partition(*scaled, stages=stages, devices=devices, equal_widths=False)
    wanted = partition(*zeros_and_ones, stages=stages, devices=devices, equal_widths=False)

    assert (found.ends, found.devices) == (wanted.ends, wanted.devices)


@pytest.mark.parametrize(
    ("work", "transfers", "stages", "field"),
    [
        ([1, 2], [1, 1], 1, "transfers"),
        ([], [], 1, "transfers"),
        ([1, 2], [1], 3, "stages"),
        ([1, 2], [1], 0, "stages"),
        ([1, -2], [1], 1, "work"),
        ([1, float("nan")], [1], 1, "work"),
        ([1, 2], [float("inf")], 1, "transfers"),
        ([1, 2, 3], [1, 1], 3, "devices"),
    ],
)
def test_invalid_input_is_refused_with_its_field(work, transfers, stages, field):
    with pytest.raises(GridInputError) as caught:
        partition(work, transfers, stages=stages, devices=4)

    assert caught.value.field == field
    assert caught.value.remedy
