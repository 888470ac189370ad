"""Curves of losses, and the remaining steps that follow from them."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.performance.convergence import fit_losses, steps_left, steps_until_flat


@settings(max_examples=50, deadline=None)
@given(
    slope=st.floats(0.01, 1.0),
    offset=st.floats(0.5, 2.0),
    floor=st.floats(0.0, 0.5),
    scale=st.floats(0.1, 50.0),
)
def test_a_curve_of_the_assumed_form_is_found_again(slope, offset, floor, scale):
    def loss(step):
        return scale * (1 / (slope * step + offset) + floor)

    curve = fit_losses([(step, loss(step)) for step in range(40)])

    assert curve is not None
    assert curve.error < 0.02
    assert curve.at(60) * loss(0) == pytest.approx(loss(60), rel=0.15)


def test_outliers_do_not_matter():
    points = [(k, 1 / (0.1 * k + 1) + 0.1) for k in range(40)]
    spoiled = [*points[:20], (20, 40.0), *points[21:]]

    curve, other = fit_losses(points), fit_losses(spoiled)
    assert curve is not None
    assert other is not None
    assert other.error == pytest.approx(curve.error, abs=1e-3)


def test_what_is_left_shrinks_step_by_step():
    points = [(float(k), 2 / (0.05 * k + 1) + 0.2) for k in range(200)]

    early = steps_left(points[:60], decrease=1e-4)
    late = steps_left(points[:160], decrease=1e-4)

    assert early is not None
    assert late is not None
    assert early - late == pytest.approx(100, rel=0.2)
    assert steps_left(points[:2], decrease=1e-4) is None


def test_a_flat_curve_is_done():
    assert steps_left([(k, 1.0) for k in range(9)], decrease=1e-3) == 0.0
    assert steps_until_flat(tuple((100.0 * k, 1.0) for k in range(9))) == 0.0


def test_the_newest_loss_moves_how_much_is_left_and_not_the_curve():
    def left(newest):
        points = [*((100.0 * k, 1.0 / (0.5 * k + 1.0) + 0.2) for k in range(1, 9)), newest]
        return steps_until_flat(tuple(points))

    early, late = left((810.0, 0.4)), left((830.0, 0.1))

    assert early is not None
    assert late is not None
    assert early > late > 0.0


def test_two_losses_tell_nothing():
    assert steps_until_flat(((1.0, 3.0), (2.0, 2.0))) is None
    assert steps_until_flat(()) is None


def test_a_fit_costs_milliseconds():
    points = [(k, 1 / (0.1 * k + 1)) for k in range(200)]
    fit_losses(points)

    begun = time.process_time()
    for _ in range(10):
        fit_losses(points)

    assert (time.process_time() - begun) / 10 < 0.05
