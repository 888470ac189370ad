"""The choice of one column per job, against brute force and between its two ways."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies.engines import choice
from scheduling.core.policies.engines.choice import Choices, choose

COLUMNS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(1, 4), st.integers(-6, 2)),
    max_size=9,
)


def choices_of(columns, capacity):
    jobs, kinds, sizes, costs = zip(*columns, strict=True) if columns else ((), (), (), ())
    return Choices(
        costs=np.array(costs, dtype=np.float64) / 10,
        jobs=np.array(jobs, dtype=np.int64),
        kinds=np.array(kinds, dtype=np.int64),
        sizes=np.array(sizes, dtype=np.int64),
        capacity=np.array(capacity, dtype=np.int64),
    )


def best_by_trying(choices):
    """The least cost over all ways to choose."""
    by_job = [[None, *np.flatnonzero(choices.jobs == job)] for job in np.unique(choices.jobs)]
    best = 0.0
    for chosen in product(*by_job):
        columns = [column for column in chosen if column is not None]
        used = np.bincount(
            choices.kinds[columns].astype(int), weights=choices.sizes[columns], minlength=2
        )
        if (used <= choices.capacity).all():
            best = min(best, float(choices.costs[columns].sum()))
    return best


@pytest.mark.parametrize("states", [100_000, 0], ids=["table", "solver"])
@settings(max_examples=60, deadline=None)
@given(columns=COLUMNS, capacity=st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_the_choice_is_as_good_as_the_best_of_all(states, columns, capacity):
    choices = choices_of(columns, capacity)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_MOST_STATES", states)

        chosen = choose(choices, gap=0.0)

    assert len({int(choices.jobs[column]) for column in chosen}) == len(chosen)
    used = np.bincount(
        choices.kinds[chosen].astype(int), weights=choices.sizes[chosen], minlength=2
    )
    assert (used <= choices.capacity).all()
    assert choices.costs[chosen].sum() == pytest.approx(best_by_trying(choices), abs=1e-9)


def test_a_market_without_worthwhile_columns_chooses_nothing():
    assert choose(choices_of([(0, 0, 1, 1), (1, 0, 9, -5)], (4, 0))) == []
