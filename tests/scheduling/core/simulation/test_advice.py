"""The advice: comparable policies, harm to the tail, and the regret of the policy in force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.simulation.advice import (
    LEAST_GAIN,
    MOST_HARM,
    AdviceVerdict,
    PolicyOutcome,
    advice_of,
)


def outcome(policy="fifo", mean=100.0, **more):
    given_ = {"completed": 10, "p99": 500.0, "unfairness": 1.5, **more}
    return PolicyOutcome(policy=policy, policy_args={}, mean=mean, **given_)


def test_the_lowest_mean_is_recommended():
    found = advice_of(outcome(), [outcome("srtf", 80.0), outcome("drf", 70.0)])

    assert (found.verdict, found.place) == (AdviceVerdict.CHANGE, 1)
    assert found.regret is not None
    assert (found.regret.best, found.regret.seconds) == ("drf", 30.0)
    assert found.regret.share == pytest.approx(30.0 / 70.0)


@pytest.mark.parametrize(
    "worse",
    [
        {"completed": 9},
        {"failed_decisions": 1},
        {"fault": "too slow"},
        {"mean": None},
    ],
)
def test_a_policy_that_is_not_comparable_neither_wins_nor_counts_as_regret(worse):
    found = advice_of(outcome(), [outcome("srtf", **{"mean": 50.0, **worse})])

    assert (found.verdict, found.place) == (AdviceVerdict.KEEP, None)
    assert found.regret is not None
    assert (found.regret.best, found.regret.seconds) == ("fifo", 0.0)


@pytest.mark.parametrize("name", ["p99", "unfairness"])
def test_a_policy_that_harms_the_tail_is_not_recommended_but_is_regret(name):
    limit = {"p99": 500.0, "unfairness": 1.5}[name] * (1.0 + MOST_HARM)
    harmful = outcome("srtf", 50.0, **{name: limit * 1.001})
    second = outcome("drf", 90.0)

    alone, both = advice_of(outcome(), [harmful]), advice_of(outcome(), [harmful, second])

    assert (alone.verdict, alone.place) == (AdviceVerdict.HARMS_TAIL, None)
    assert (both.verdict, both.place) == (AdviceVerdict.CHANGE, 1)
    assert alone.regret is not None
    assert both.regret is not None
    assert alone.regret.seconds == both.regret.seconds == 50.0


def test_without_completed_jobs_there_is_no_advice():
    found = advice_of(outcome(mean=None), [outcome("srtf")])

    assert (found.verdict, found.place, found.regret) == (AdviceVerdict.UNKNOWN, None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_figures_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match="use 0 or more"):
        outcome(mean=value)


figures = st.builds(
    outcome,
    st.sampled_from(["srtf", "drf", "tessera"]),
    st.none() | st.floats(0.0, 1e6),
    completed=st.integers(8, 12),
    p99=st.none() | st.floats(0.0, 1e6),
    unfairness=st.none() | st.floats(0.0, 10.0),
    failed_decisions=st.integers(0, 1),
)


@given(figures, st.lists(figures, max_size=5))
def test_a_recommendation_is_comparable_better_and_harmless(in_force, others):
    found = advice_of(in_force, others)

    if found.regret is None:
        assert in_force.mean is None
        return
    assert found.regret.seconds >= 0.0
    assert found.regret.share >= 0.0
    if found.place is not None:
        chosen = others[found.place]
        assert chosen.mean <= (1.0 - LEAST_GAIN) * in_force.mean
        assert chosen.completed >= in_force.completed
        assert not chosen.failed_decisions
        assert in_force.mean - chosen.mean <= found.regret.seconds
        for theirs, ours in (
            (chosen.p99, in_force.p99),
            (chosen.unfairness, in_force.unfairness),
        ):
            assert theirs is None or ours is None or theirs <= (1.0 + MOST_HARM) * ours
