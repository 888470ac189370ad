"""The better direction of metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.objectives import Goal, places_of_best, usual_goal


@pytest.mark.parametrize(
    ("metric", "goal"),
    [
        ("loss", Goal.MIN),
        ("train/loss", Goal.MIN),
        ("val_accuracy", Goal.MAX),
        ("val/top1_error", Goal.MIN),
        ("eval/f1", Goal.MAX),
        ("mAP", Goal.MAX),
        ("lr", None),
        ("closeness", None),
        ("gloss", None),
    ],
)
def test_the_name_states_the_direction(metric: str, goal: Goal | None) -> None:
    assert usual_goal(metric) is goal


@given(st.lists(st.none() | st.integers(0, 5).map(float), max_size=8), st.sampled_from(Goal))
def test_the_best_places_have_the_best_value_and_others_are_worse(
    values: list[float | None], goal: Goal
) -> None:
    best = places_of_best(values, goal)

    known = {value for value in values if value is not None}
    assert bool(best) == (len(known) > 1)
    for place in best:
        for other, value in enumerate(values):
            if other not in best and value is not None:
                chosen = values[place]
                assert chosen is not None
                assert goal.is_better(chosen, value)


def test_no_value_is_best_without_a_direction() -> None:
    assert places_of_best([1.0, 2.0], None) == frozenset()
