"""Shortlist of plans against full enumeration, and the time of a step."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.grids.assembly import (
    EdgeTimes,
    StageOptions,
    StageTimes,
    search,
    shortlist,
)
from scheduling.core.grids.model import GridInputError, Schedule

TIMES = st.integers(0, 9)


@st.composite
def stage_options(draw, *, times=TIMES, once=TIMES):
    """One to five stages with one to three shapes each."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    stages = [
        [StageTimes(draw(times), draw(times), draw(once), draw(once)) for _ in range(count)]
        for count in counts
    ]
    edges = [
        [[EdgeTimes(draw(times), draw(times)) for _ in range(b)] for _ in range(a)]
        for a, b in pairwise(counts)
    ]
    return StageOptions(
        stages=stages,
        edges=edges,
        micro_batches=draw(st.integers(1, 9)),
        schedule=draw(st.sampled_from(Schedule)),
    )


def _all_choices(options):
    return list(product(*(range(len(shapes)) for shapes in options.stages)))


@given(options=stage_options())
@settings(max_examples=300, deadline=None)
def test_the_first_plan_of_the_shortlist_is_the_best_by_the_formula(options):
    listed = shortlist(options)

    times = [options.formula_seconds(choice) for choice in listed]
    assert times[0] == min(map(options.formula_seconds, _all_choices(options)))
    assert times == sorted(times)
    assert len(set(listed)) == len(listed) <= 8


@given(options=stage_options(once=st.just(0)))
@settings(max_examples=300, deadline=None)
def test_without_exchanges_the_shortlist_has_the_eight_best_plans(options):
    times = [options.formula_seconds(choice) for choice in shortlist(options)]

    assert times == sorted(map(options.formula_seconds, _all_choices(options)))[:8]


@given(options=stage_options(once=st.just(0)))
@settings(max_examples=100, deadline=None)
def test_without_exchanges_the_formula_is_that_of_the_paper(options):
    choice = shortlist(options)[0]
    chosen = [shapes[k] for shapes, k in zip(options.stages, choice, strict=True)]
    comm = [0, *(sum(options.edges[i][a][b]) for i, (a, b) in enumerate(pairwise(choice)))]
    total = [t.forward_s + t.backward_s + c for t, c in zip(chosen, comm, strict=True)]
    slowest = max(t - c for t, c in zip(total, comm, strict=True))

    assert options.formula_seconds(choice) == sum(total) + (options.micro_batches - 1) * slowest


@given(options=stage_options())
@settings(max_examples=100, deadline=None)
def test_the_search_returns_the_best_plan_that_it_replayed(options):
    found = search(options)

    assert found.explored == {c: options.step_seconds(c) for c in shortlist(options)}
    assert found.seconds == min(found.explored.values()) == options.step_seconds(found.choice)
    every = [options.step_seconds(choice) for choice in _all_choices(options)]
    assert found.seconds >= min(every)


def test_the_exchange_of_a_stage_is_hidden_until_the_last_backward_pass():
    def step(exchange):
        return StageOptions(
            stages=[[StageTimes(1, 2)], [StageTimes(1, 2, exchange, 0.5)]],
            edges=[[[EdgeTimes(1, 1)]]],
            micro_batches=2,
            schedule=Schedule.ONE_F_ONE_B,
        ).step_seconds((0, 0))

    # The pipeline ends at 11, the second stage at 8: see the replay of two stages by hand.
    assert step(0) == 11.5
    assert step(3) == 11.5
    assert step(5) == 13.5


def test_the_slowest_update_follows():
    options = StageOptions(
        stages=[[StageTimes(1, 1, 0, 3)], [StageTimes(1, 1, 0, 2)]],
        edges=[[[EdgeTimes(0, 0)]]],
        micro_batches=1,
        schedule=Schedule.GPIPE,
    )

    assert options.step_seconds((0, 0)) == 7


def test_a_plan_with_a_slow_exchange_loses_to_one_with_slower_passes():
    options = StageOptions(
        stages=[[StageTimes(1, 1, 10), StageTimes(1, 2, 0)]],
        edges=[],
        micro_batches=4,
        schedule=Schedule.ONE_F_ONE_B,
    )

    assert search(options).choice == (1,)
    assert search(options).seconds == 12


@pytest.mark.parametrize(
    ("stages", "edges"),
    [([], []), ([[]], []), ([[StageTimes(1, 1)]] * 2, []), ([[StageTimes(1, 1)]] * 2, [[[]]])],
)
def test_stages_and_edges_that_do_not_fit_are_refused(stages, edges):
    with pytest.raises(GridInputError, match="do not fit"):
        StageOptions(stages=stages, edges=edges, micro_batches=1, schedule=Schedule.GPIPE)
