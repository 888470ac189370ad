"""One choice per job by prices and search: against brute force, HiGHS, and its own order."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies.engines.assignment import assign, solve_whole

SIZES = (1, 2, 3, 4)
USES = np.array([[size, 0] for size in SIZES] + [[0, size] for size in SIZES] + [[2, 1]])
VALUES = st.lists(
    st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, 1.5, 2.5]), min_size=9, max_size=9),
    max_size=4,
)
CAPACITY = st.tuples(st.integers(0, 7), st.integers(0, 7))


def arrays_of(values, capacity):
    return np.array(values, dtype=np.float64).reshape(-1, 9), np.array(capacity)


def best_by_trying(values, uses, capacity):
    """The most that any way to choose is worth, and the fewest devices that bring it."""
    options = [[None, *np.flatnonzero(row > 0.0)] for row in values]
    best = (0.0, 0)
    for chosen in product(*options):
        taken = [(job, choice) for job, choice in enumerate(chosen) if choice is not None]
        used = sum((uses[choice] for _job, choice in taken), np.zeros(uses.shape[1], dtype=int))
        if (used <= capacity).all():
            worth = float(sum(values[job, choice] for job, choice in taken))
            best = max(best, (round(worth, 9), -int(used.sum())))
    return best[0], -best[1]


def a_round(seed, jobs, scale, applications):
    """Costs as Sia's: jobs of a few applications, three types, two decimals."""
    rng = np.random.default_rng(seed)
    sizes = ([1, 2, 4, 8, 12, 16, 20, 24], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 24])
    columns = [(kind, size) for kind, some in enumerate(sizes) for size in some]
    uses = np.zeros((len(columns), 3), dtype=np.int64)
    uses[np.arange(len(columns)), [kind for kind, _size in columns]] = [
        size for _kind, size in columns
    ]
    total = uses.sum(axis=1)
    speeds = np.stack(
        [np.ones(applications), rng.uniform(3, 8, applications), rng.uniform(1.5, 3, applications)]
    )
    powers = rng.uniform(0.5, 0.95, applications)
    application = rng.integers(0, applications, jobs)
    kinds = uses.argmax(axis=1)
    goodputs = speeds[kinds][:, application].T * total ** powers[application][:, None]
    allowed = total <= 2 ** rng.integers(0, 6, jobs)[:, None]
    values = np.where(allowed, 1.1 - np.round(goodputs**-0.5, 2), -np.inf)
    return values, uses, np.array([24, 16, 24]) * scale


def worth(values, choices):
    given_to = np.flatnonzero(choices >= 0)
    return float(values[given_to, choices[given_to]].sum())


@settings(max_examples=80, deadline=None)
@given(values=VALUES, capacity=CAPACITY)
def test_the_answer_is_as_good_as_the_best_of_all_with_the_fewest_devices(values, capacity):
    values, capacity = arrays_of(values, capacity)

    found = assign(values, USES, capacity, gap=0.0)

    best, devices = best_by_trying(values, USES, capacity)
    used = USES[found.choices[found.choices >= 0]].sum(axis=0)
    assert (used <= capacity).all()
    assert worth(values, found.choices) == pytest.approx(best, abs=1e-9)
    assert used.sum() == devices
    assert found.exact
    assert found.value == pytest.approx(best, abs=1e-9)
    assert best <= found.bound + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    values=VALUES,
    capacity=CAPACITY,
    prices=st.lists(st.floats(0, 10), min_size=2, max_size=2),
    seed=st.integers(0, 99),
)
def test_neither_prices_to_start_from_nor_the_order_of_jobs_change_the_worth(
    values, capacity, prices, seed
):
    values, capacity = arrays_of(values, capacity)
    shuffled = np.random.default_rng(seed).permutation(len(values))

    plain = assign(values, USES, capacity, gap=0.0)
    other = assign(values[shuffled], USES, capacity, gap=0.0, prices=np.array(prices))

    assert other.value == pytest.approx(plain.value, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_without_ties_every_job_gets_the_same_in_any_order(seed):
    values, uses, capacity = a_round(seed, 25, 2, 25)
    values = values + np.random.default_rng(seed).uniform(0, 1e-2, values.shape)
    shuffled = np.random.default_rng(seed).permutation(len(values))

    plain = assign(values, uses, capacity, gap=0.0)
    other = assign(values[shuffled], uses, capacity, gap=0.0)

    assert plain.exact
    assert (other.choices == plain.choices[shuffled]).all()


@pytest.mark.parametrize("seed", range(20))
def test_bound_and_gap_of_larger_rounds_hold_against_the_solver(seed):
    values, uses, capacity = a_round(seed, 12 + 2 * seed, 1 + seed // 7, 20 + 2 * seed)

    found = assign(values, uses, capacity, gap=1e-3)

    choices, highest = solve_whole(values, uses, capacity, gap=1e-3)
    used = uses[found.choices[found.choices >= 0]].sum(axis=0)
    assert (used <= capacity).all()
    assert found.value == pytest.approx(worth(values, found.choices))
    assert found.bound >= worth(values, choices) - 1e-9
    assert found.value <= highest + 1e-6
    assert found.gap <= 1e-3


def test_many_equal_jobs_on_a_large_pool_come_within_the_gap():
    values, uses, capacity = a_round(7, 2_500, 256, 40)

    found = assign(values, uses, capacity)

    used = uses[found.choices[found.choices >= 0]].sum(axis=0)
    assert (used <= capacity).all()
    assert 0.0 <= found.gap <= 1e-3


def test_the_same_arguments_give_the_same_answer():
    values, uses, capacity = a_round(3, 200, 8, 9)

    first, second = assign(values, uses, capacity), assign(values, uses, capacity)

    assert (first.choices == second.choices).all()
    assert (first.prices == second.prices).all()


def test_no_jobs_and_no_capacity_are_no_trouble():
    assert assign(np.zeros((0, 9)), USES, np.array([3, 3])).choices.tolist() == []
    assert assign(np.zeros((2, 0)), USES[:0], np.array([3, 3])).choices.tolist() == [-1, -1]
    assert assign(np.ones((2, 9)), USES, np.array([0, 0])).choices.tolist() == [-1, -1]
    assert assign(np.full((2, 9), np.nan), USES, np.array([3, 3])).value == 0.0


@pytest.mark.parametrize(
    ("values", "uses", "capacity"),
    [
        (np.ones((2, 3)), USES, np.array([1, 1])),
        (np.ones((2, 9)), USES, np.array([1, 1, 1])),
        (np.full((2, 9), np.inf), USES, np.array([5, 5])),
        (np.ones((2, 9)), -USES, np.array([5, 5])),
        (np.ones((2, 9)), USES, np.array([-5, 5])),
    ],
)
def test_arrays_that_make_no_sense_are_refused(values, uses, capacity):
    with pytest.raises(ValueError, match=r"different shapes|infinite|negative"):
        assign(values, uses, capacity)
