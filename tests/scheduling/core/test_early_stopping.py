"""Early stops of sweeps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.early_stopping import (
    EarlyStop,
    RunCurve,
    StopRule,
    rungs,
    runs_to_stop,
)
from scheduling.core.objectives import Goal

ASHA = EarlyStop(rule=StopRule.ASHA, first_step=10, reduction=3)
MEDIAN = EarlyStop(rule=StopRule.MEDIAN, first_step=10)
SETTINGS = st.sampled_from(
    [ASHA, MEDIAN, EarlyStop(rule=StopRule.ASHA, first_step=1, reduction=2)]
)


def flat(value: float, *, until: int = 20, is_live: bool = True) -> RunCurve:
    steps = range(until + 1)
    return RunCurve(steps, [value] * len(steps), is_live)


@st.composite
def curves(draw: st.DrawFn) -> RunCurve:
    values = draw(st.lists(st.integers(-9, 9).map(float), max_size=40))
    return RunCurve(range(len(values)), values, draw(st.booleans()))


RUNS = st.lists(curves(), max_size=9).map(lambda found: dict(enumerate(found)))


def test_halving_keeps_the_best_third_of_the_runs_at_the_rung() -> None:
    runs = {number: flat(float(number)) for number in range(6)}

    found = runs_to_stop(runs, goal=Goal.MIN, settings=ASHA)

    assert set(found) == {2, 3, 4, 5}
    assert (found[2].step, found[2].value, found[2].bound, found[2].runs) == (10, 2.0, 1.0, 6)


def test_a_run_is_compared_at_the_highest_rung_that_it_has_reached() -> None:
    runs = {0: flat(1.0, until=35), 1: flat(2.0, until=35), 2: flat(3.0), 3: flat(9.0)}

    assert set(runs_to_stop(runs, goal=Goal.MIN, settings=ASHA)) == {2, 3}
    assert list(rungs(95, ASHA)) == [10, 30, 90]


def test_the_median_rule_compares_the_best_value_with_the_means_of_the_others() -> None:
    ramp = RunCurve(range(21), [10.0 - step / 4 for step in range(21)], True)
    runs = {0: ramp, 1: flat(5.5), 2: flat(7.0), 3: flat(4.0), 4: flat(20.0, is_live=False)}

    assert set(runs_to_stop(runs, goal=Goal.MIN, settings=MEDIAN)) == {2}
    assert set(runs_to_stop(runs, goal=Goal.MAX, settings=MEDIAN)) == {1, 3}


@given(RUNS, st.sampled_from(Goal), SETTINGS)
def test_a_best_run_never_ends_and_ended_runs_are_left_alone(
    runs: dict[int, RunCurve], goal: Goal, settings: EarlyStop
) -> None:
    for number, found in runs_to_stop(runs, goal=goal, settings=settings).items():
        run = runs[number]
        assert run.is_live
        assert found.step >= settings.first_step
        assert goal.is_better(found.bound, found.value)
        reached = [other for other in runs.values() if other.last_step >= found.step]
        assert len(reached) == found.runs >= 2
        if settings.rule is StopRule.ASHA:
            assert any(
                goal.is_better(goal.best(other.until(found.step)), found.value)
                for other in reached
            )


@given(RUNS, SETTINGS)
def test_both_directions_are_symmetric_and_the_order_of_runs_is_irrelevant(
    runs: dict[int, RunCurve], settings: EarlyStop
) -> None:
    found = runs_to_stop(runs, goal=Goal.MIN, settings=settings)
    mirrored = {
        number: RunCurve(run.steps, [-value for value in run.values], run.is_live)
        for number, run in runs.items()
    }
    turned = dict(reversed(runs.items()))

    assert runs_to_stop(turned, goal=Goal.MIN, settings=settings) == found
    assert set(runs_to_stop(mirrored, goal=Goal.MAX, settings=settings)) == set(found)


@given(RUNS)
def test_halving_depends_on_the_order_of_values_only(runs: dict[int, RunCurve]) -> None:
    scaled = {
        number: RunCurve(run.steps, [math.exp(value) for value in run.values], run.is_live)
        for number, run in runs.items()
    }

    found = runs_to_stop(runs, goal=Goal.MIN, settings=ASHA)

    assert set(runs_to_stop(scaled, goal=Goal.MIN, settings=ASHA)) == set(found)


@given(RUNS, st.sampled_from(Goal))
def test_less_runs_than_the_rule_needs_all_continue(runs: dict[int, RunCurve], goal: Goal) -> None:
    few = dict(list(runs.items())[:2])

    assert not runs_to_stop(few, goal=goal, settings=ASHA)
    assert not runs_to_stop(few, goal=goal, settings=MEDIAN)


@pytest.mark.parametrize(
    "wrong", [{"first_step": 0}, {"first_step": 1, "reduction": 1}, {"first_step": 1 << 60}]
)
def test_settings_have_limits(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        EarlyStop(rule=StopRule.ASHA, **wrong)
