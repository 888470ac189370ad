"""The control law: when the gate of guests opens and closes, and how compute follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.sharing import law
from tessera.node.sharing.account import PAID_IN, reserve
from tessera.node.sharing.law import HolderStep, LawRule, Limits, State

LIMITS = Limits(slowdown=0.05, settle_seconds=0.02)
LOOK = 0.1


class Holder:
    """A holder whose next steps take given seconds, and the states of its law."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.now = 0.0
        self.states = [law.initial(limits)]

    @property
    def state(self) -> State:
        return self.states[-1]

    def work(self, seconds: float, count: int = 1) -> State:
        """Report each step at a look of its own."""
        for _ in range(count):
            start, self.now = self.now, self.now + seconds
            new = law.look(self.state, [HolderStep(start, self.now)], self.now, self.limits)
            self.states.append(new)
        return self.state

    def until(self, seconds: float, *, is_open: bool, most: int = 4000) -> State:
        """Work in equal steps until the gate is open or closed."""
        for _ in range(most):
            if self.work(seconds).is_open is is_open:
                return self.state
        raise AssertionError(f"the gate was never {'open' if is_open else 'closed'}")


def opened(seconds: float = 0.04) -> Holder:
    holder = Holder()
    holder.until(seconds, is_open=True)
    return holder


DURATIONS = st.lists(
    st.tuples(st.sampled_from([0.01, 0.02, 0.04, 0.5, 3.0]), st.integers(1, 40)), max_size=8
)


@given(spells=DURATIONS, factor=st.floats(1.0, 6.0), slowdown=st.floats(0.01, 0.2))
def test_for_any_holder_the_gate_is_never_open_without_baseline_and_balance(
    spells, factor, slowdown
) -> None:
    holder = Holder(Limits(slowdown, 0.02))
    for seconds, count in spells:
        for _ in range(count):
            holder.work(seconds * (factor if holder.state.is_open else 1.0))

    for before, after in zip(holder.states, holder.states[1:], strict=False):
        if after.is_open:
            assert not after.account.overdrawn
            assert len(after.account.closed) >= law.LEAST_BASELINE_STEPS
        if after.is_open and not before.is_open:
            baseline = after.account.baseline
            assert baseline is not None
            assert after.account.balance >= reserve(baseline, slowdown) / 4
        assert 0.05 * slowdown <= after.compute <= 4 * PAID_IN * slowdown + 1e-12


@given(spells=DURATIONS)
def test_guests_are_shut_out_for_a_probe_in_time(spells) -> None:
    holder = Holder()
    for seconds, count in spells:
        for _ in range(count):
            state = holder.work(seconds)
            if state.is_open and state.account.baseline is not None:
                longest = max(30.0, 80 * state.account.baseline)
                assert holder.now - state.last_closed <= longest


@given(spells=DURATIONS, cut=st.integers(1, 20))
def test_looks_may_report_several_steps_at_once(spells, cut) -> None:
    durations = [seconds for seconds, count in spells for _ in range(count)]
    now, state, steps = 0.0, law.initial(LIMITS), []
    for number, seconds in enumerate(durations, start=1):
        steps.append(HolderStep(now, now + seconds))
        now += seconds
        if number % cut == 0:
            state = law.look(state, steps, now, LIMITS)
            steps = []

    assert not (state.is_open and state.account.overdrawn)


def test_the_first_opening_takes_a_second_of_undisturbed_work() -> None:
    holder = opened(0.02)

    assert 0.99 <= holder.now <= 1.05
    assert holder.state.rule is LawRule.READY
    assert holder.state.compute == PAID_IN * LIMITS.slowdown


def test_steps_that_begin_before_guests_obey_are_settling() -> None:
    holder = opened(0.04)
    moved = holder.now

    first = holder.work(0.08)
    second = holder.work(0.04)

    assert moved + LIMITS.settle_seconds < moved + 0.08
    assert first.window == ()
    assert first.account.balance < holder.states[-3].account.balance
    assert second.window == pytest.approx((0.04,))


def test_an_overdrawn_account_closes_the_gate_and_halves_compute() -> None:
    holder = opened()
    before = holder.state.compute

    state = holder.until(0.06, is_open=False)

    assert state.rule is LawRule.OVERDRAWN
    assert state.compute == before / 2
    holder.until(0.04, is_open=True)
    assert holder.state.account.balance >= reserve(0.04, 0.05) / 4


def test_a_probe_closes_the_gate_for_eight_steps() -> None:
    holder = opened()

    state = holder.until(0.04, is_open=False)
    closed_at = holder.now
    holder.until(0.04, is_open=True)

    assert state.rule is LawRule.PROBE
    assert 8 * 0.04 <= holder.now - closed_at <= 10 * 0.04


def test_probes_become_rare_while_baselines_agree() -> None:
    holder = opened()
    lengths = []
    for _ in range(6):
        since = holder.now
        holder.until(0.04, is_open=False)
        lengths.append(holder.now - since)
        holder.until(0.04, is_open=True)

    assert lengths[0] < 11
    assert 29 < lengths[-1] < 31


def test_long_steps_are_probed_for_a_tenth_of_the_time() -> None:
    holder = opened(1.0)
    since = holder.now

    holder.until(1.0, is_open=False)

    assert holder.now - since > 70


def test_open_steps_that_are_faster_than_the_baseline_close_the_gate() -> None:
    holder = opened()

    state = holder.until(0.02, is_open=False, most=12)
    balance = holder.work(0.02, count=4).account

    assert state.rule is LawRule.FASTER
    assert balance.baseline == pytest.approx(0.02)
    assert balance.balance <= 0.05 * PAID_IN * 0.02 * 2


def test_a_holder_that_has_slowed_down_gets_a_new_baseline() -> None:
    holder = opened()
    holder.until(0.08, is_open=False)

    holder.work(0.08, count=5)

    assert holder.state.account.baseline == pytest.approx(0.08)
    assert holder.state.compute == PAID_IN * LIMITS.slowdown


def test_scattered_closed_steps_are_not_forgotten() -> None:
    holder = Holder()
    for number in range(1500):
        holder.work(0.04 if number % 3 else 0.09)
    lengths = [len(state.account.closed) for state in holder.states]

    assert lengths == sorted(lengths)
    assert lengths[-1] > 20


def test_two_long_open_steps_close_the_gate_for_a_minute() -> None:
    holder = Holder(Limits(slowdown=0.2, settle_seconds=0.02))
    holder.until(0.02, is_open=True)
    holder.work(0.02, count=200)
    holder.work(0.1)
    holder.work(0.02, count=4)

    state = holder.work(0.1)
    closed_at = holder.now
    holder.until(0.02, is_open=True)

    assert state.rule is LawRule.LONG_STEPS
    assert holder.now - closed_at >= 60


def test_a_holder_with_long_steps_of_its_own_is_not_protected_from_them() -> None:
    holder = Holder(Limits(slowdown=0.2, settle_seconds=0.02))
    holder.work(0.02, count=10)
    holder.work(1.0)
    holder.until(0.02, is_open=True)
    holder.work(0.02, count=200)
    holder.work(1.0)
    holder.work(0.02, count=4)

    assert holder.work(1.0).rule is not LawRule.LONG_STEPS


def test_a_pair_that_does_not_fit_is_shut_out_longer_each_time() -> None:
    holder = opened()
    closures: list[float] = []
    while len(closures) < 2:
        state = holder.until(0.12, is_open=False)
        since = holder.now
        holder.until(0.04, is_open=True)
        if state.rule is LawRule.MISFIT:
            closures.append(holder.now - since)

    assert holder.state.compute == pytest.approx(0.05 * LIMITS.slowdown)
    assert closures[0] >= 60
    assert closures[1] >= 120


def test_compute_rises_where_guests_cost_less_than_they_work() -> None:
    holder = opened()

    holder.work(0.04, count=200)

    assert PAID_IN * 0.05 < holder.state.compute <= 4 * PAID_IN * 0.05


def test_compute_stays_within_noise() -> None:
    holder = Holder()
    for number in range(400):
        delay = 0.0015 if holder.state.is_open else 0.0
        holder.work((0.036, 0.04, 0.044)[number % 3] + delay)

    assert holder.state.compute == PAID_IN * 0.05


def test_a_first_checkpoint_closes_the_gate_for_about_ten_seconds() -> None:
    holder = opened(0.02)

    state = holder.work(30.0)
    closed_at = holder.now
    holder.until(0.02, is_open=True)

    assert state.rule is LawRule.OVERDRAWN
    assert 5 <= holder.now - closed_at <= 9 + 75 * 0.02


def test_counted_seconds_are_those_of_the_latest_look() -> None:
    holder = opened(0.02)
    steps = [HolderStep(holder.now + start, holder.now + start + 0.02) for start in (0.0, 0.02)]

    state = law.look(holder.state, steps, holder.now + 0.04, LIMITS)

    assert state.counted == pytest.approx((0.02, 0.02))
    assert law.look(state, [], holder.now + 0.1, LIMITS).counted == ()
