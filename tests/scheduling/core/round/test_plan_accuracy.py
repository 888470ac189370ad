"""Accuracy of predicted step times by device type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.round.parallel_plans import PlanRun
from scheduling.core.round.plan_accuracy import accuracy_by_type


def run(kind: str, predicted: float | None, measured: float, steps: int = 100) -> PlanRun:
    return PlanRun(
        type=kind, plan_id="p", predicted=predicted, steps=steps, seconds=measured * steps
    )


def test_short_runs_and_runs_without_a_prediction_do_not_count():
    runs = [run("a", 1.0, 9.0, steps=19), run("a", 1.0, 0.01), run("a", None, 9.0)]

    assert accuracy_by_type(runs) == ()


def test_errors_are_relative_to_the_prediction_and_apart_for_each_type():
    runs = [run("b", 1.0, 0.9), run("a", 1.0, 1.1), run("a", 1.0, 0.7), run("a", 2.0, 2.0)]

    a, b = accuracy_by_type(runs)

    assert (a.type, a.runs, b.type, b.runs) == ("a", 3, "b", 1)
    assert a.median_error == pytest.approx(0.1)
    assert a.bias == pytest.approx(0.0)
    assert b.bias == pytest.approx(-0.1)
    assert b.p90_error == pytest.approx(0.1)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30))
def test_percentiles_are_ordered_and_within_the_errors(measured):
    (found,) = accuracy_by_type([run("a", 1.0, value) for value in measured])

    errors = [abs(value - 1.0) for value in measured]
    assert min(errors) - 1e-9 <= found.median_error <= found.p90_error + 1e-9
    assert found.p90_error <= max(errors) + 1e-9
