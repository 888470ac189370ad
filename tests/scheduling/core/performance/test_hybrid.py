"""Rates of hybrid jobs: estimates, replaced and corrected by measured steps."""

import pytest

from scheduling.core.performance.hybrid import GridRates
from scheduling.core.policy_interface import BestGrid, Shape
from scheduling.core.values import RunObservation

TABLE = (
    BestGrid(type="a", devices=2, nodes=1, rate=1.0),
    BestGrid(type="a", devices=4, nodes=2, rate=1.6),
    BestGrid(type="b", devices=4, nodes=1, rate=3.0),
)


def run(rate, kind="a", nodes=1, devices=2, steps=100):
    return RunObservation(
        type=kind, nodes=nodes, devices=devices, seconds=steps / rate, steps=steps, samples=0.0
    )


def test_estimates_answer_before_the_first_run():
    rates = GridRates(TABLE)

    assert rates.rate(Shape("a", 1, 2)) == 1.0
    assert rates.rate(Shape("a", 1, 8)) == 0.0
    assert rates.largest() == {"a": 4, "b": 4}
    assert rates.speed("a") == 0.5
    assert rates.speed("c") == 0.0


def test_a_measured_shape_replaces_its_estimate_and_corrects_its_type():
    rates = GridRates(TABLE, [run(0.8)])

    assert rates.rate(Shape("a", 1, 2)) == pytest.approx(0.8)
    assert rates.rate(Shape("a", 2, 4)) == pytest.approx(1.6 * 0.8)
    assert rates.rate(Shape("b", 1, 4)) == 3.0


@pytest.mark.parametrize(("measured", "factor"), [(0.1, 0.5), (9.0, 2.0)])
def test_a_correction_of_other_shapes_is_bounded(measured, factor):
    rates = GridRates(TABLE, [run(measured)])

    assert rates.rate(Shape("a", 2, 4)) == pytest.approx(1.6 * factor)


def test_too_few_steps_change_nothing():
    assert GridRates(TABLE, [run(0.1, steps=19)]).rate(Shape("a", 1, 2)) == 1.0
