"""Prices of devices and the value of work at them, with numbers worked out by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.policies import make_policy
from scheduling.core.policies.tessera.columns import columns_of
from scheduling.core.policies.tessera.prices import Prices, value_work
from scheduling.core.policy_interface import Kind, Scale
from tests.scheduling.core.policies.tessera.known import known_view
from tests.strategies.policy_views import make_job

COLUMNS = columns_of(known_view(make_job(1, 1), capacity={"a": 2, "b": 2}), (), 0)


def at(usual, now=None):
    return Prices(COLUMNS.types, np.array(usual), np.array(usual if now is None else now))


def valued(rates, left, prices):
    return value_work(np.array(rates), np.array(left), COLUMNS, prices, 1800.0)


def test_without_prices_a_job_is_worth_1_at_its_fastest_size():
    rates = [[1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 1.0, 2.0]]

    found = valued(rates, [400.0, 50.0], at([0.0, 0.0]))

    assert (found.step * np.max(rates, axis=1)).tolist() == [1.0, 1.0]
    assert found.seconds.tolist() == [100.0, 10.0]


def test_a_step_costs_its_time_and_the_devices_at_the_best_size():
    # One device of "a": 1.5 per step; two: 2 / 1.6. Those of "b" cost more.
    found = valued([[1.0, 1.6, 2.0, 2.0]], [1e9], at([0.5, 3.0]))

    assert found.step == pytest.approx([2.0 / 1.6])


def test_short_jobs_pay_current_prices_and_long_ones_the_usual():
    rates = [[1.0, 0.0, 0.0, 0.0]] * 3

    found = valued(rates, [1.0, 1800.0, 1e9], at([0.1, 0.1], [1.1, 0.1]))

    middle = 0.1 + 1.0 * (1.0 - np.exp(-1.0))
    assert found.step == pytest.approx([2.1, 1.0 + middle, 1.1], rel=1e-3)


def test_a_job_that_cannot_run_has_no_value():
    found = valued([[0.0, 0.0, 0.0, 0.0]], [10.0], at([0.1, 0.1]))

    assert found.step.tolist() == [0.0]
    assert found.seconds.tolist() == [0.0]


@given(
    rates=st.lists(st.floats(0.1, 10.0), min_size=4, max_size=4),
    prices=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
    factor=st.floats(0.01, 100.0),
)
def test_values_do_not_depend_on_the_unit_of_a_step(rates, prices, factor):
    given_prices = at(prices[:2], prices[2:])

    one = valued([rates], [1000.0], given_prices)
    other = valued([[rate * factor for rate in rates]], [1000.0 * factor], given_prices)

    assert other.step * factor == pytest.approx(one.step, rel=1e-6)


def test_prices_follow_rounds_slowly_and_quickly_and_stay_below_their_limit():
    before = Prices(("a", "b"), np.array([0.05, 0.05]), np.array([0.05, 0.05]))

    after = before.after(np.array([0.65, 7.0]), 60.0)

    assert after.usual == pytest.approx([0.06, 0.05 + 0.95 / 60.0])
    assert after.now == pytest.approx([0.17, 0.24])


def test_prices_are_stored_by_type_and_types_that_left_keep_theirs():
    policy = make_policy("tessera", {})
    state = {"prices": {"a": [0.3, 0.2], "gone": [0.5, 0.6]}}

    _plan, after = policy.plan(known_view(make_job(1, 16)), state)

    assert after["prices"]["gone"] == [0.5, 0.6]
    assert after["prices"]["a"][0] == pytest.approx(0.3, abs=0.03)
    assert Prices.stored(after, ("new",)).usual.tolist() == [0.05]


def test_prices_stay_within_bounds_with_jobs_that_want_everything():
    policy = make_policy("tessera", {})
    hungry = [
        make_job(n, 4, kind=Kind.ADAPTIVE, scale=Scale(minimum=1, maximum=64), weight=1e3)
        for n in (1, 2, 3)
    ]
    state: Mapping[str, Any] = {}
    for _round in range(300):
        snapshot = replace(known_view(*hungry, capacity={"a": 4, "b": 8}), round_seconds=600.0)
        _plan, state = policy.plan(snapshot, state)

    prices = np.array(list(state["prices"].values()))
    assert ((prices >= 0.0) & (prices <= 1.0)).all()


def test_a_type_on_which_everybody_fits_becomes_free():
    policy = make_policy("tessera", {})
    state: Mapping[str, Any] = {"prices": {"a": [0.4, 0.4]}}
    for _round in range(100):
        _plan, state = policy.plan(replace(known_view(make_job(1, 1)), round_seconds=600.0), state)

    assert state["prices"]["a"] == pytest.approx([0.0, 0.0], abs=1e-4)
