"""Gavel's programs against vertex enumeration and against numbers worked out by hand."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies.gavel.objectives import (
    EntityPolicy,
    finish_time_fairness,
    in_order,
    least_makespan,
    max_min_fairness,
    max_sum_throughput,
    water_fill,
)
from scheduling.core.policies.gavel.problem import (
    Fractions,
    Sharing,
    equal_shares,
    isolated_shares,
    jobs_alone,
    with_pairs,
)


def instance(rates: object, scale: object, capacity: object) -> Fractions:
    return jobs_alone(
        np.asarray(rates, dtype=float),
        np.asarray(scale, dtype=float),
        np.asarray(capacity, dtype=float),
    )


def rows_of(case: Fractions) -> tuple[np.ndarray, np.ndarray]:
    """All rows ``A x <= b`` of an instance without pairs, bounds among them."""
    jobs, kinds = case.alone.shape
    rows, bounds = [], []
    for kind in range(kinds):
        row = np.zeros((jobs, kinds))
        row[:, kind] = case.scale
        rows.append(row.ravel())
        bounds.append(case.capacity[kind])
    for job in range(jobs):
        row = np.zeros((jobs, kinds))
        row[job] = 1
        rows.append(row.ravel())
        bounds.append(1.0)
    rows.extend(-np.eye(jobs * kinds))
    bounds.extend([0.0] * (jobs * kinds))
    return np.array(rows), np.array(bounds)


def best_vertex(rows: np.ndarray, bounds: np.ndarray, objective: np.ndarray) -> float:
    """The optimum of a linear program by looking at every vertex."""
    size = rows.shape[1]
    choices = np.array(list(itertools.combinations(range(len(rows)), size)))
    systems = rows[choices]
    regular = np.abs(np.linalg.det(systems)) > 1e-9
    points = np.linalg.solve(systems[regular], bounds[choices[regular]][..., None])[..., 0]
    feasible = np.all(points @ rows.T <= bounds + 1e-7, axis=1)
    return float((points[feasible] @ objective).max())


def best_least(case: Fractions, scaled: np.ndarray) -> float:
    """The greatest least of ``throughput * scaled``, by vertices."""
    rows, bounds = rows_of(case)
    rows = np.hstack((rows, np.zeros((len(rows), 1))))
    for job in range(case.jobs):
        row = np.zeros(case.alone.shape)
        row[job] = -case.alone[job] * scaled[job]
        rows = np.vstack((rows, [*row.ravel(), 1.0]))
        bounds = np.append(bounds, 0.0)
    return best_vertex(rows, bounds, np.array([0.0] * (rows.shape[1] - 1) + [1.0]))


CASES = st.tuples(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=2, max_size=2),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(2, 3), st.integers(2, 3)),
).map(lambda case: instance(*case))


@settings(max_examples=40, deadline=None)
@given(case=CASES, weights=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_max_min_fairness_equals_the_best_vertex(case, weights):
    weights = np.array(weights, dtype=float)
    scaled = case.scale / (weights * equal_shares(case))

    found = case.throughputs(max_min_fairness(case, weights))

    assert (found * scaled).min() == pytest.approx(best_least(case, scaled), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(case=CASES, steps=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_the_makespan_equals_the_best_vertex(case, steps):
    steps = np.array(steps, dtype=float)

    found = case.throughputs(least_makespan(case, steps))

    assert (steps / found).max() == pytest.approx(1 / best_least(case, 1 / steps), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(case=CASES, price=st.integers(1, 4))
def test_throughput_per_cost_equals_the_best_vertex(case, price):
    prices = np.array([1.0, float(price)])
    objective = case.alone / case.alone.max(axis=1, keepdims=True) / prices

    found = max_sum_throughput(case, prices=prices)

    best = best_vertex(*rows_of(case), objective.ravel())
    assert float((found * objective).sum()) == pytest.approx(best, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(
    case=CASES,
    steps=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    age=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_no_lower_finish_time_fairness_is_possible(case, steps, age):
    steps, age = np.array(steps, dtype=float) * 10, np.array(age, dtype=float)
    isolated = isolated_shares(case)
    done = age / 2

    found = case.throughputs(
        finish_time_fairness(case, steps_left=steps, age=age, isolated_seconds=done)
    )

    whole = done + steps / isolated
    rho = ((age + steps / found) / whole).max()
    left = 0.999 * rho * whole - age
    assert np.any(left <= 0) or best_least(case, left / steps) < 1.0


def test_two_jobs_take_the_types_that_suit_them_best():
    # Job 0 is 4 times as fast on b, job 1 alike on both: by hand, 0 belongs on b.
    case = instance([[1, 4], [2, 2]], [1, 1], [1, 1])

    fractions = max_min_fairness(case, np.ones(2))

    assert case.throughputs(fractions) == pytest.approx([4.0, 2.0], rel=1e-6)


def test_a_service_level_is_kept_where_it_can_be_and_dropped_where_not():
    case = instance([[4, 1], [4, 3]], [1, 1], [1, 1])

    free = case.throughputs(max_sum_throughput(case))
    kept = case.throughputs(max_sum_throughput(case, least=np.array([0.0, 3.5])))
    dropped = case.throughputs(max_sum_throughput(case, least=np.array([0.0, 5.0])))

    assert free == pytest.approx([4.0, 3.0])
    assert kept[1] == pytest.approx(3.5)
    assert dropped == pytest.approx(free)


def test_first_come_takes_its_fastest_type_and_what_does_not_fit_is_passed_over():
    case = instance([[1, 2], [1, 2], [9, 9], [1, 1]], [1, 2, 3, 1], [2, 2])

    fractions = in_order(case, [0, 1, 2, 3])

    assert fractions.tolist() == [[0, 1], [1, 0], [0, 0], [0, 1]]


def test_sharing_is_used_when_the_two_make_more_together():
    alone = instance([[1.0], [1.0]], [1, 1], [1])
    good = with_pairs(alone, [Sharing(members=(0, 1), rates=np.array([[0.9], [0.8]]))])
    bad = with_pairs(alone, [Sharing(members=(0, 1), rates=np.array([[0.4], [0.4]]))])

    assert max_min_fairness(good, np.ones(2))[2, 0] > 0.8
    assert max_min_fairness(bad, np.ones(2))[2, 0] == 0.0
    assert in_order(good, [0, 1]).tolist() == [[0], [0], [1]]
    assert in_order(bad, [0, 1]).tolist() == [[1], [0], [0]]


def test_jobs_of_different_sizes_cannot_share():
    with pytest.raises(ValueError, match="different numbers"):
        with_pairs(
            instance([[1.0], [1.0]], [1, 2], [2]),
            [Sharing(members=(0, 1), rates=np.ones((2, 1)))],
        )


def test_a_job_larger_than_any_type_does_not_hold_the_others_down():
    case = instance([[1.0], [1.0]], [1, 8], [2])

    assert case.throughputs(max_min_fairness(case, np.ones(2))) == pytest.approx([1.0, 0.0])


class TestWaterFilling:
    def test_entities_share_by_weight_and_jobs_equally_within(self):
        case = instance(np.ones((4, 1)), np.ones(4), [1.0])

        fractions = water_fill(
            case,
            entity_of=[0, 0, 0, 1],
            entity_weights=np.array([1.0, 1.0]),
            job_weights=np.ones(4),
            policies=[EntityPolicy.FAIRNESS] * 2,
        )

        assert fractions.ravel() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2], abs=1e-6)

    def test_what_one_cannot_use_goes_to_the_others(self):
        # Two devices; entity 1's single job can hold one at most, the rest is entity 0's.
        case = instance(np.ones((3, 1)), np.ones(3), [2.0])

        fractions = water_fill(
            case,
            entity_of=[0, 0, 1],
            entity_weights=np.array([1.0, 9.0]),
            job_weights=np.ones(3),
            policies=[EntityPolicy.FAIRNESS] * 2,
        )

        assert fractions.ravel() == pytest.approx([0.5, 0.5, 1.0], abs=1e-6)

    def test_first_in_first_out_fills_one_job_after_the_other(self):
        case = instance(np.ones((4, 1)), np.ones(4), [3.0])

        fractions = water_fill(
            case,
            entity_of=[0, 0, 0, 1],
            entity_weights=np.array([3.0, 1.0]),
            job_weights=np.ones(4),
            policies=[EntityPolicy.FIFO, EntityPolicy.FAIRNESS],
        )

        assert fractions.ravel() == pytest.approx([1.0, 1.0, 0.25, 0.75], abs=1e-6)
        assert fractions[:3].sum() == pytest.approx(3 * fractions[3, 0])

    @settings(max_examples=30, deadline=None)
    @given(
        rates=st.lists(st.integers(1, 4), min_size=2, max_size=4),
        room=st.integers(1, 3),
    )
    def test_the_first_level_is_that_of_max_min_fairness_and_nobody_can_rise_alone(
        self, rates, room
    ):
        case = instance([[rate] for rate in rates], np.ones(len(rates)), [room])

        filled = water_fill(
            case,
            entity_of=list(range(len(rates))),
            entity_weights=np.ones(len(rates)),
            job_weights=np.ones(len(rates)),
            policies=[EntityPolicy.FAIRNESS] * len(rates),
        )

        even = min(1.0, room / len(rates))
        assert filled.ravel() == pytest.approx([even] * len(rates), abs=1e-6)


@pytest.fixture(scope="module")
def table(shared_dir):
    path = shared_dir / "data/gavel/simulation_throughputs.json"
    if not path.exists():
        pytest.skip(f"no throughputs of Gavel at {path}")
    return json.loads(path.read_text())


def test_on_the_papers_own_table_jobs_do_better_than_with_equal_shares(table):
    kinds = ["v100", "p100", "k80"]
    names = [
        name
        for name in table["v100"]
        if name.endswith(", 1)") and all(table[kind][name]["null"] > 0 for kind in kinds)
    ][:12]
    case = instance(
        [[table[kind][name]["null"] for kind in kinds] for name in names],
        np.ones(len(names)),
        [4, 4, 4],
    )

    gained = case.throughputs(max_min_fairness(case, np.ones(len(names)))) / equal_shares(case)

    assert gained.min() > 1.05


def test_on_the_papers_own_table_sharing_lifts_the_least(table):
    names = ["('ResNet-18 (batch size 16)', 1)", "('ResNet-18 (batch size 64)', 1)"]
    entries = table["v100"]
    case = instance([[entries[name]["null"]] for name in names], np.ones(2), [1])
    pair = Sharing(
        members=(0, 1), rates=np.array([[rate] for rate in entries[names[0]][names[1]]])
    )

    reference = equal_shares(case)
    alone = case.throughputs(max_min_fairness(case, np.ones(2))) / reference
    shared_case = with_pairs(case, [pair])
    together = shared_case.throughputs(max_min_fairness(shared_case, np.ones(2))) / reference

    assert together.min() > 1.2 * alone.min()
