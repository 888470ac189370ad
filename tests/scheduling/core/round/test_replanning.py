"""Replacement of barred plans of running jobs."""

from dataclasses import replace

import pytest

from scheduling.core.round.parallel_plans import GridRow, PlanExclusion, PlanRun
from scheduling.core.round.replanning import RunningPlan, replacement_of
from tests.factories.hybrid import plan_with

ROWS = tuple(
    GridRow(
        type="a",
        devices=4,
        stages=stages,
        state="possible",
        step_seconds=seconds,
        plan=plan_with(stages).document(),
    )
    for stages, seconds in ((1, 0.6), (2, 0.5))
)
FIRST = ROWS[1].plan_id
RUNNING = RunningPlan(
    type="a", devices=4, plan_id=FIRST, steps=100, seconds=200.0, start_seconds=10.0
)


def run(plan_id=FIRST, *, steps=100, seconds=200.0, failure=""):
    return PlanRun(
        type="a",
        plan_id=plan_id,
        predicted=0.5,
        steps=steps,
        seconds=seconds,
        failure_class=failure,
    )


def test_a_slow_plan_is_replaced_by_the_next_one():
    found = replacement_of(RUNNING, ROWS, [run()])

    assert found is not None
    assert (found.grid.plan["id"], found.bar) == (ROWS[0].plan_id, PlanExclusion.SLOWER)


def test_a_plan_as_fast_as_predicted_stays():
    good = replace(RUNNING, seconds=50.0)

    assert replacement_of(good, ROWS, [run(seconds=50.0)]) is None


@pytest.mark.parametrize(("left", "is_replaced"), [(5.0, False), (5_000.0, True), (None, True)])
def test_a_slow_plan_is_replaced_only_if_the_restart_pays(left, is_replaced):
    found = replacement_of(replace(RUNNING, steps_left=left), ROWS, [run()])

    assert (found is not None) is is_replaced


def test_a_start_that_takes_long_does_not_pay():
    slow = replace(RUNNING, start_seconds=1_300.0)  # 70 % of an hour are 2,520 s

    assert replacement_of(slow, ROWS, [run()]) is None


def test_of_slow_plans_the_fastest_stays():
    other = run(ROWS[0].plan_id, seconds=300.0)

    assert replacement_of(RUNNING, ROWS, [run(), other]) is None


@pytest.mark.parametrize(("steps", "is_replaced"), [(0, True), (10, True), (100, False)])
def test_a_plan_that_ran_out_of_memory_elsewhere_is_replaced_until_it_has_proved_itself(
    steps, is_replaced
):
    young = replace(RUNNING, steps=steps, seconds=0.5 * steps)
    runs = [run(steps=steps, seconds=0.5 * steps), run(steps=3, failure="resource-limit")]

    found = replacement_of(young, ROWS, runs)

    assert (found is not None) is is_replaced
    assert found is None or found.bar is PlanExclusion.MEMORY


def test_a_plan_without_a_successor_on_its_devices_stays():
    assert replacement_of(RUNNING, ROWS[1:], [run()]) is None
    assert replacement_of(replace(RUNNING, devices=2), ROWS, [run()]) is None
