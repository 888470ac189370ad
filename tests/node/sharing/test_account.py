"""The delay account: its arithmetic, and the guarantee that follows from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.sharing.account import (
    BASELINE_STEPS,
    LONGEST_STEP,
    PAID_IN,
    DelayAccount,
    Gate,
    book,
    clipped,
    forget,
    observe,
    reserve,
)

SECONDS = st.one_of(st.floats(0.001, 2.0), st.sampled_from([0.01, 0.02, 0.04, 4.0]))
STEPS = st.lists(st.tuples(SECONDS, st.sampled_from(Gate)), min_size=1, max_size=120)
SLOWDOWNS = st.floats(0.01, 0.2)


def booked(steps, slowdown: float) -> list[DelayAccount]:
    """The account before the first step and after each one."""
    accounts = [DelayAccount()]
    for seconds, gate in steps:
        accounts.append(observe(accounts[-1], seconds, gate, slowdown))
    return accounts


@given(steps=STEPS, slowdown=SLOWDOWNS, span=st.tuples(st.integers(0, 120), st.integers(0, 120)))
def test_the_delay_of_any_span_is_at_most_payments_reserve_and_overshoot(
    steps, slowdown, span
) -> None:
    accounts = booked(steps, slowdown)
    first, last = sorted(min(end, len(steps)) for end in span)

    paid = delay = 0.0
    for (seconds, _), after in zip(steps[first:last], accounts[first + 1 : last + 1], strict=True):
        if after.baseline is not None:
            paid += PAID_IN * slowdown * after.baseline
            delay += clipped(seconds, after.baseline) - after.baseline

    most = max(
        (reserve(a.baseline, slowdown) for a in accounts[: last + 1] if a.baseline), default=0.0
    )
    overshoot = max(0.0, -accounts[last].balance)
    assert delay <= paid + most + overshoot + 1e-9


@given(steps=STEPS, slowdown=SLOWDOWNS)
def test_no_balance_is_above_the_reserve(steps, slowdown) -> None:
    for account in booked(steps, slowdown)[1:]:
        if account.baseline is not None:
            assert account.balance <= reserve(account.baseline, slowdown)


@given(steps=STEPS, slowdown=SLOWDOWNS, shorter=SECONDS, longer=SECONDS)
def test_a_longer_step_never_leaves_more(steps, slowdown, shorter, longer) -> None:
    account = booked(steps, slowdown)[-1]
    shorter, longer = sorted((shorter, longer))

    after_shorter = observe(account, shorter, Gate.OPEN, slowdown)
    after_longer = observe(account, longer, Gate.OPEN, slowdown)

    assert after_longer.balance <= after_shorter.balance


@given(steps=STEPS, low=SLOWDOWNS, high=SLOWDOWNS)
def test_a_wider_slowdown_never_leaves_less(steps, low, high) -> None:
    low, high = sorted((low, high))

    narrow, wide = booked(steps, low), booked(steps, high)

    assert all(n.balance <= w.balance + 1e-12 for n, w in zip(narrow, wide, strict=True))


@given(steps=STEPS, slowdown=SLOWDOWNS)
def test_only_closed_steps_form_the_baseline(steps, slowdown) -> None:
    closed = [seconds for seconds, gate in steps if gate is Gate.CLOSED]

    account = booked(steps, slowdown)[-1]

    assert account.closed == tuple(closed[-BASELINE_STEPS:])
    assert (account.baseline is None) == (not closed)
    if account.baseline is not None:
        assert min(account.closed) - 1e-9 <= account.baseline <= max(account.closed) + 1e-9


def test_a_step_with_a_hundredfold_length_counts_as_four_baselines() -> None:
    account = booked([(0.02, Gate.CLOSED)] * 20, 0.05)[-1]

    long = observe(account, 2.0, Gate.OPEN, 0.05)

    assert account.balance - long.balance == pytest.approx((LONGEST_STEP - 1) * 0.02 - 0.0008)


def test_a_long_closed_step_counts_as_four_medians_in_the_baseline() -> None:
    account = booked([(0.02, Gate.CLOSED)] * 9 + [(5.0, Gate.CLOSED)], 0.05)[-1]

    assert account.baseline == pytest.approx((9 * 0.02 + 0.08) / 10)


def test_an_account_without_a_baseline_is_overdrawn() -> None:
    account = observe(DelayAccount(), 0.02, Gate.OPEN, 0.05)

    assert account == DelayAccount()
    assert account.overdrawn


def test_forgetting_leaves_the_newest_closed_steps_and_no_balance() -> None:
    account = booked([(0.02, Gate.CLOSED)] * 20 + [(0.04, Gate.CLOSED)] * 3, 0.05)[-1]

    fresh = forget(account, 3)

    assert (fresh.closed, fresh.baseline, fresh.balance) == ((0.04,) * 3, 0.04, 0.0)


def test_an_account_is_overdrawn_below_zero_and_without_a_baseline() -> None:
    known = DelayAccount(closed=(1.0,), baseline=1.0)

    assert DelayAccount(balance=1.0).overdrawn
    assert known._replace(balance=-1e-9).overdrawn
    assert not known.overdrawn


def after_book(steps, slowdown: float) -> tuple[list[DelayAccount], list[float]]:
    """The accounts before the first step and after each one, and the counted seconds."""
    accounts, counted = [DelayAccount()], []
    for seconds, gate in steps:
        account, count = book(accounts[-1], seconds, gate, slowdown)
        accounts.append(account)
        counted.append(count)
    return accounts, counted


@given(steps=STEPS, slowdown=SLOWDOWNS, span=st.tuples(st.integers(0, 120), st.integers(0, 120)))
def test_counted_delay_with_excess_is_at_most_payments_reserve_and_overshoot(
    steps, slowdown, span
) -> None:
    accounts, counted = after_book(steps, slowdown)
    first, last = sorted(min(end, len(steps)) for end in span)

    paid = delay = 0.0
    for seconds, after in zip(counted[first:last], accounts[first + 1 : last + 1], strict=True):
        if after.baseline is not None:
            paid += PAID_IN * slowdown * after.baseline
            delay += seconds - after.baseline

    most = max(
        (reserve(a.baseline, slowdown) for a in accounts[: last + 1] if a.baseline), default=0.0
    )
    assert delay <= paid + most + max(0.0, -accounts[last].balance) + 1e-9


@given(open_steps=st.lists(SECONDS, max_size=60), slowdown=SLOWDOWNS)
def test_each_excess_is_charged_to_a_holder_without_long_steps_of_its_own(
    open_steps, slowdown
) -> None:
    steps = [(0.02, Gate.CLOSED)] * 20 + [(seconds, Gate.OPEN) for seconds in open_steps]

    _, counted = after_book(steps, slowdown)

    most = 4 * 0.02 + 2 * reserve(0.02, slowdown)
    assert counted[20:] == pytest.approx([min(seconds, most) for seconds in open_steps])


@given(steps=STEPS, slowdown=SLOWDOWNS, shorter=SECONDS, longer=SECONDS)
def test_a_longer_booked_step_never_leaves_more(steps, slowdown, shorter, longer) -> None:
    account = after_book(steps, slowdown)[0][-1]
    shorter, longer = sorted((shorter, longer))

    after_shorter, _ = book(account, shorter, Gate.OPEN, slowdown)
    after_longer, _ = book(account, longer, Gate.OPEN, slowdown)

    assert after_longer.balance <= after_shorter.balance + 1e-12


def test_long_steps_of_the_holder_itself_are_not_charged() -> None:
    stalls = [0.02] * 19 + [0.5]
    closed = [(seconds, Gate.CLOSED) for seconds in stalls * 10]
    opened = [(seconds, Gate.OPEN) for seconds in stalls * 20]

    _, counted = after_book(closed + opened, 0.05)

    assert sum(counted[len(closed) :]) / len(opened) == pytest.approx(0.023, rel=0.02)


def test_more_long_steps_than_the_holders_own_are_charged() -> None:
    closed = [(seconds, Gate.CLOSED) for seconds in ([0.02] * 19 + [0.5]) * 10]
    opened = [(seconds, Gate.OPEN) for seconds in ([0.02] * 9 + [0.5]) * 40]

    accounts, counted = after_book(closed + opened, 0.05)

    own = accounts[len(closed)].own
    explained = own.rate * 0.023 * len(opened)
    assert (
        sum(counted[len(closed) :]) >= sum(seconds for seconds, _ in opened) - 1.1 * explained - 4
    )
    assert accounts[-1].overdrawn


def test_own_long_steps_that_have_ceased_are_forgotten() -> None:
    steps = [(0.02, Gate.CLOSED)] * 40 + [(0.5, Gate.CLOSED)]
    account = after_book(steps, 0.05)[0][-1]
    known = account.own
    for _ in range(20_000):
        account, _ = book(account, 0.02, Gate.OPEN, 0.05)

    assert known.is_known
    assert not account.own.is_known
    assert account.own.rate < known.rate / 3
