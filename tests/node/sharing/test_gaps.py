"""Following the holder's gaps: what a guest may start, and what it must have saved for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.sharing import gaps
from tessera.node.sharing.gaps import Follower, StepPhase

MODULE = 0.002


def follower_of(*seconds: float) -> Follower:
    follower = Follower()
    for gap in seconds:
        follower = gaps.after_gap(follower, gap)
    return follower


ASKS = st.lists(
    st.tuples(st.floats(0, 0.05), st.booleans(), st.floats(0, 0.2)), min_size=1, max_size=80
)


@given(asks=ASKS, compute=st.floats(0.001, 1), gap=st.floats(0, 0.05))
def test_starts_beside_the_holder_never_exceed_the_earned_credit(asks, compute, gap) -> None:
    follower, now, worked = follower_of(*[gap] * 5), 0.0, 0.0
    for passed, busy, elapsed in asks:
        now += passed
        phase = StepPhase(busy=busy, since=now - elapsed)
        follower, answer = gaps.ask(follower, now, compute, MODULE, phase)
        if answer.go and (busy or elapsed > gap + 1e-9):
            worked += MODULE

    assert worked <= compute * now + 1e-9


@given(asks=ASKS)
def test_nothing_starts_and_nothing_is_earned_while_the_gate_is_closed(asks) -> None:
    follower, now = follower_of(*[0.02] * 5), 0.0
    for passed, busy, elapsed in asks:
        now += passed
        phase = StepPhase(busy=busy, since=now - elapsed)
        follower, answer = gaps.ask(follower, now, 0.0, MODULE, phase)
        assert not answer.go
        assert follower.credit == 0


@given(elapsed=st.floats(0, 0.03))
def test_a_module_that_ends_within_the_usual_gap_is_free(elapsed) -> None:
    follower = follower_of(*[0.02] * 20)

    _, answer = gaps.ask(follower, 9.0, 0.001, MODULE, StepPhase(busy=False, since=9.0 - elapsed))

    if elapsed + gaps.GUARD * MODULE < 0.02 - 1e-9:
        assert answer.go


def test_a_module_that_reaches_into_the_next_step_costs_only_its_overlap() -> None:
    follower = follower_of(*[0.02] * 20)._replace(credit=0.006, at=9.0)

    after, answer = gaps.ask(follower, 9.0, 0.04, 0.02, StepPhase(busy=False, since=9.0))

    assert answer.go
    assert after.credit == pytest.approx(0.006 - 0.005)
    assert not gaps.ask(follower, 9.0, 0.04, 0.02, StepPhase(busy=True, since=9.0))[1].go


def test_a_gap_that_lasts_unusually_long_counts_as_busy() -> None:
    follower = follower_of(*[0.02] * 20)._replace(at=9.0)

    assert not gaps.ask(follower, 9.0, 0.04, MODULE, StepPhase(busy=False, since=8.9))[1].go


def test_the_lower_quartile_of_twenty_gaps_is_usual() -> None:
    follower = follower_of(*[9.0] * 5, *[0.01] * 5, *[0.03] * 15)

    assert follower.usual_gap == 0.03
    assert follower_of(*[0.01] * 6, *[0.03] * 14).usual_gap == 0.01
    assert follower_of(0.1, 0.1, 0.1, 0.1).usual_gap == 0


def test_without_phase_a_guest_works_its_compute_of_the_time() -> None:
    follower, now, worked = Follower(), 0.0, 0
    while now < 10:
        follower, answer = gaps.ask(follower, now, 0.04, MODULE, None)
        worked += answer.go
        now += MODULE if answer.go else answer.wait_seconds

    assert worked * MODULE == pytest.approx(0.4, rel=0.05)


def test_the_credit_is_at_most_one_module() -> None:
    follower, _ = gaps.ask(Follower(), 100.0, 1.0, MODULE, StepPhase(busy=True, since=0.0))

    assert follower.credit == 0
    assert not gaps.ask(follower, 100.0, 1.0, MODULE, StepPhase(busy=True, since=0.0))[1].go
