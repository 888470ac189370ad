"""The parts of Tessera's objective, with numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.policies.tessera.columns import Rates, allowed, columns_of, predicted_rates
from scheduling.core.policies.tessera.worth import (
    JobStanding,
    believed,
    fair_speeds,
    horizons,
    net_speeds,
    remembered,
    restart_costs,
    steps_left,
    unfairness,
    weights,
    worths,
)
from scheduling.core.policy_interface import Alloc, JobPhase, Kind, Part, Scale
from tests.scheduling.core.policies.tessera.known import Known, known_view
from tests.strategies.policy_views import NOW, make_job


def elastic(job_id, **more):
    return make_job(job_id, 2, kind=Kind.ADAPTIVE, scale=Scale(minimum=1, maximum=64), **more)


def sizes_of(snapshot, finer=0):
    columns = columns_of(snapshot, snapshot.jobs, finer)
    return [(shape.type, shape.nodes, shape.devices) for shape in columns.shapes]


def test_sizes_are_powers_of_two_whole_nodes_and_what_jobs_insist_on():
    snapshot = known_view(elastic(1), make_job(2, 3), capacity={"a": 16, "b": 8})

    assert sizes_of(snapshot) == [
        ("a", 1, 1), ("a", 1, 2), ("a", 1, 3), ("a", 1, 4), ("a", 2, 8), ("a", 3, 12),
        ("a", 4, 16),
        ("b", 1, 1), ("b", 1, 2), ("b", 1, 3), ("b", 1, 4), ("b", 1, 8),
    ]  # fmt: skip


def test_finer_sizes_lie_between_two_powers_of_two():
    snapshot = known_view(elastic(1), capacity={"b": 8})

    assert [size for _type, _nodes, size in sizes_of(snapshot, finer=1)] == [1, 2, 3, 4, 6, 8]


def test_many_nodes_are_not_all_sizes():
    snapshot = known_view(elastic(1), capacity={"b": 800}, nodes=100)

    nodes = {nodes for _type, nodes, _size in sizes_of(snapshot)}

    assert nodes == {1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 94}


def test_a_job_may_have_what_its_owner_its_types_and_its_batch_allow():
    jobs = (elastic(1, types=("b",)), make_job(2, 2))
    snapshot = known_view(*jobs, capacity={"a": 4, "b": 4}, model=Known(most=2))
    columns = columns_of(snapshot, jobs, 0)

    table = allowed(columns, snapshot, jobs)

    assert table.tolist() == [
        [False, False, False, True, True, False],
        [False, True, False, False, True, False],
    ]


def test_before_the_first_start_speed_grows_up_to_the_gang_and_little_beyond():
    jobs = (elastic(1),)
    snapshot = known_view(*jobs, capacity={"a": 4}, model=Known(seen={}))
    columns = columns_of(snapshot, jobs, 0)

    rates = predicted_rates(
        snapshot,
        jobs,
        columns,
        allowed(columns, snapshot, jobs),
        scaling=1.0,
        unseen=0.0,
        spread=1.0,
    )

    assert rates.table[0] == pytest.approx([1.0, 2.0, 2.0 * 2.0**0.3])
    assert not rates.known[0]
    assert rates.least[0] == pytest.approx(1.0)


def test_a_type_that_was_not_tried_is_projected_and_what_is_far_from_the_tried_is_discounted():
    jobs = (elastic(1),)
    model = Known(power=1.0, seen={"a": 2})
    snapshot = known_view(*jobs, capacity={"a": 8, "b": 8}, model=model)
    columns = columns_of(snapshot, jobs, 0)

    rates = predicted_rates(
        snapshot,
        jobs,
        columns,
        allowed(columns, snapshot, jobs),
        scaling=1.0,
        unseen=1.0,
        spread=0.5,
    )

    # Up to 4 of "a" as if tried, 8 are on two nodes; "b" is three times as fast, 2 count as tried.
    assert rates.table[0] == pytest.approx([1, 2, 4, 8 * 0.5 * 0.5, 3, 6, 12 * 0.5, 24 * 0.25])
    assert rates.asked[0] == pytest.approx(6.0)


def test_a_restart_is_paid_within_the_horizon_or_until_the_end():
    rates, costs = np.array([[2.0, 2.0]]), np.array([[0.0, 50.0]])

    long = net_speeds(rates, np.array([1e6]), costs, np.array([100.0]))
    short = net_speeds(rates, np.array([20.0]), costs, np.array([100.0]))

    assert long.tolist() == [[2.0, 1.0]]
    assert short == pytest.approx(np.array([[2.0, 20.0 / 60.0]]))


@given(
    rate=st.floats(0.01, 100.0),
    left=st.floats(0.1, 1e6),
    cost=st.floats(0.0, 1e4),
    horizon=st.floats(60.0, 1e4),
)
def test_a_net_speed_is_positive_and_never_above_the_rate(rate, left, cost, horizon):
    costs = np.array([[0.0, cost, cost + 1.0]])
    table = np.full((1, 3), rate)

    speeds = net_speeds(table, np.array([left]), costs, np.array([horizon]))[0]

    assert speeds[0] == pytest.approx(rate)
    assert 0.0 < speeds[2] <= speeds[1] <= rate * (1 + 1e-9)


def test_who_was_moved_often_is_expected_to_be_moved_again():
    calm = elastic(1, facts={"executed": 7_200.0, "restarts": 0})
    restless = elastic(2, facts={"executed": 7_200.0, "restarts": 10})

    assert horizons([calm, restless], 1800.0, 2.0) == pytest.approx([5_400.0, 900.0])


def test_restarts_cost_the_running_more_and_nothing_where_they_are():
    alloc = Alloc(parts=(Part(n=2, type="a", level="node"),))
    running = elastic(1, phase=JobPhase.RUNNING, alloc=alloc)
    busy = replace(running, id=2, since=NOW - 10.0, facts=replace(running.facts, recovering=True))
    jobs = (running, busy, elastic(3))
    snapshot = known_view(*jobs, capacity={"a": 4})
    columns = columns_of(snapshot, jobs, 0)

    costs = restart_costs(snapshot, jobs, columns, 2.0)

    assert costs.tolist() == [[60.0, 0.0, 60.0], [60.0, 20.0, 60.0], [30.0, 30.0, 30.0]]


def test_a_fair_speed_is_that_on_an_equal_part_of_every_type():
    snapshot = known_view(elastic(1), capacity={"a": 4, "b": 4})
    columns = columns_of(snapshot, snapshot.jobs, 0)
    rates = np.array([[1.0, 2.0, 3.0, 3.0, 6.0, 9.0]])

    # A third of 4 lies between sizes 1 and 2; times are averaged, not speeds.
    third = fair_speeds(rates, columns, [4, 4], 3)

    on_a, on_b = 4.0 / 3.0, 4.0
    assert third == pytest.approx([2.0 / (1.0 / on_a + 1.0 / on_b)])


def test_unfairness_compares_the_whole_life_with_a_run_at_the_fair_speed():
    job = elastic(1, submitted=NOW - 300.0, facts={"steps_done": 100.0})
    snapshot = known_view(job)
    standing = JobStanding(left=np.array([100.0]), fair=np.array([1.0]))

    # 300 s old and 100 s to go, over 200 s of work and a restart.
    assert unfairness(snapshot, [job], standing) == pytest.approx([400.0 / 230.0])


def test_whoever_fares_unfairly_counts_more_beyond_the_bound():
    jobs = [elastic(1), elastic(2), elastic(3, weight=3.0)]

    found = weights(jobs, np.array([0.5, 2.0, 1.0]), bound=1.0, rise=2.0)

    assert found.tolist() == [1.0, 4.0, 3.0]


def test_worths_are_speeds_over_work_and_nothing_where_a_job_cannot_be():
    one = np.array([1.0])
    rates = Rates(np.array([[1.0, 4.0, 0.0]]), np.array([True]), one, one)

    found = worths(rates, rates.table, np.array([100.0]), power=0.5, order=0.5)

    assert found == pytest.approx(np.array([[0.1, 0.2, 0.0]]))


def test_guesses_are_drawn_towards_an_hour_and_what_is_told_is_not():
    found = believed(np.array([36.0, 36.0]), np.array([True, False]), 0.5)

    assert found == pytest.approx([360.0, 36.0])


def left_of(job, *, known=True, sizes=None):
    one, two = np.array([1.0]), np.array([2.0])
    rates = Rates(np.array([[1.0, 4.0]]), np.array([known]), one, two)
    found = steps_left([job], rates, sizes=sizes or {}, growth=1.0, start=50.0, first=10.0)
    return float(found.steps[0])


@pytest.mark.parametrize(
    ("facts", "terms", "expected"),
    [
        ({"steps_left": 70.0, "steps_done": 30.0}, {"estimate": 1e6}, 70.0),
        ({"steps_done": 30.0}, {"estimate": 100.0}, 170.0),
        ({"steps_done": 30.0}, {}, 80.0),
        ({"steps_done": 500.0}, {"estimate": 100.0}, 550.0),
        ({"steps_left": 0.0, "steps_done": 1_000.0}, {}, 20.0),
    ],
    ids=["declared steps", "declared time", "guessed", "outlived its time", "outlived its steps"],
)
def test_work_left_is_declared_or_as_much_as_is_behind(facts, terms, expected):
    assert left_of(elastic(1, facts=facts, **terms)) == pytest.approx(expected)


def test_work_left_follows_those_past_jobs_that_were_longer():
    job = elastic(1, application="bert", facts={"steps_done": 150.0})

    assert left_of(job, sizes={"bert": [100.0, 200.0, 300.0]}) == pytest.approx(100.0)
    assert left_of(job, sizes={"bert": [100.0]}) == pytest.approx(200.0)


def test_a_job_that_has_never_run_is_taken_to_need_a_while_at_its_best():
    assert left_of(elastic(1), known=False) == pytest.approx(40.0)


def test_only_jobs_that_left_with_steps_behind_them_are_remembered():
    gone = elastic(1, application="bert", facts={"steps_done": 90.0})
    idle = elastic(2, application="bert")
    stays = elastic(3, application="bert", facts={"steps_done": 10.0})

    state = remembered([stays], remembered([gone, idle, stays], {}))

    assert state["sizes"] == {"bert": [90.0]}
    assert state["there"] == {"3": ["bert", 10.0]}
