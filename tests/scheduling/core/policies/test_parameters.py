"""Parameters are checked the same way wherever they come from."""

import math

import pytest

from scheduling.core.policies import (
    UnknownPolicyError,
    make_policy,
    parameters_of,
    policy_class,
    read_policy,
)
from scheduling.core.policies.gavel.policy import Gavel
from scheduling.core.policies.parameters import read_prices
from scheduling.core.policies.queues.ordered import Fifo
from scheduling.core.policies.sia import Sia
from scheduling.core.policy_interface import JobPhase
from tests.strategies.policy_views import make_job, make_view


def test_parameters_have_names_types_bounds_and_words():
    found = {item.name: item for item in parameters_of(Sia)}

    assert found["fairness"].kind is float
    assert (found["fairness"].low, found["fairness"].high) == (-5.0, 5.0)
    assert found["growth"].range_text == "a whole number from 2 to 64"
    assert found["request_caps_batch"].kind is bool


def test_values_from_a_command_line_get_the_parameters_types():
    policy = read_policy("sia", ["fairness=-1", "growth=4", "request_caps_batch=no"])

    assert policy == Sia(fairness=-1.0, growth=4, request_caps_batch=False)


def test_a_whole_number_will_do_for_a_number():
    assert make_policy("sia", {"fairness": -1}) == Sia(fairness=-1.0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"speed": 1}, "policy sia has no parameter 'speed'; known: bootstrap, fairness, gap"),
        ({"growth": 2.5}, "growth is 2.5; use a whole number"),
        ({"growth": True}, "growth is True; use a whole number"),
        ({"growth": 1}, "growth is 1; use a whole number from 2 to 64"),
        ({"fairness": math.nan}, "fairness is nan; use a number from -5 to 5"),
        ({"fairness": "low"}, "fairness is 'low'; use a number"),
        ({"gap": 1.0}, "gap is 1.0; use a number from 0 to 0.1"),
    ],
)
def test_wrong_values_are_refused_with_what_will_do(args, message):
    with pytest.raises(UnknownPolicyError, match=message.replace("(", r"\(")):
        make_policy("sia", args)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("growth", "'growth' is not of the form name=value"),
        ("growth=two", "growth is 'two'; use a whole number"),
        ("fairness=", "fairness is ''; use a number"),
        ("request_caps_batch=perhaps", "request_caps_batch is 'perhaps'; use true or false"),
        ("colour=red", "has no parameter 'colour'"),
    ],
)
def test_wrong_pairs_on_a_command_line_are_refused(pair, message):
    with pytest.raises(UnknownPolicyError, match=message):
        read_policy("sia", [pair])


@pytest.mark.parametrize(
    ("policy", "args"),
    [
        ("sia", {"growth": "x" * 1_000_000}),
        ("sia", {"growth": ["x"] * 250_000}),
        ("sia", {"x" * 1_000_000: 1}),
        ("x" * 1_000_000, {}),
        ("gavel", {"prices": "x" * 1_000_000}),
        ("fifo", {"wrap": {"x" * 1_000_000: {}}}),
    ],
)
def test_an_error_repeats_little_of_what_was_given(policy, args):
    with pytest.raises(UnknownPolicyError) as caught:
        make_policy(policy, args)

    assert len(str(caught.value)) < 1000
    assert "… (" in str(caught.value)


def test_an_error_repeats_little_of_a_command_line():
    for pair in ("x" * 1_000_000, "growth=" + "x" * 1_000_000):
        with pytest.raises(UnknownPolicyError, match="… \\(1000000 characters\\)") as caught:
            read_policy("sia", [pair])
        assert len(str(caught.value)) < 1000


def test_a_power_of_nothing_is_refused():
    with pytest.raises(ValueError, match="fairness is 0"):
        make_policy("sia", {"fairness": 0.0})


def test_an_alias_is_the_policy_and_an_unknown_name_lists_what_there_is():
    assert policy_class("fcfs") is Fifo
    with pytest.raises(
        UnknownPolicyError, match=r"policy 'lottery' not found; known: .*fifo.*sia"
    ):
        policy_class("lottery")


def test_prices_are_pairs_of_type_and_number():
    policy = read_policy("gavel", ["prices=A100=3.2,V100=1.1"])
    assert isinstance(policy, Gavel)
    assert policy.prices == "A100=3.2,V100=1.1"
    assert read_prices("A100 = 3.2, x=y=1") == {"A100": 3.2, "x=y": 1.0}
    assert read_prices("") == {}


@pytest.mark.parametrize(
    "prices",
    [
        *("A100", "A100=", "=3", "A100=0", "A100=-1", "A100=nan", "A100=inf", "a=1,a=2"),
        "a=1" * 2000,
        ",".join(f"t{n}=1" for n in range(65)),
    ],
)
def test_prices_of_another_form_are_refused_with_an_example(prices):
    with pytest.raises(UnknownPolicyError, match=r"use pairs such as A100=3\.2,V100=1\.1, each"):
        make_policy("fair", {"prices": prices})


def test_a_price_by_type_counts_against_those_who_hold_it():
    held = [
        make_job(1, 1, types=("a",), phase=JobPhase.RUNNING, owner=1),
        make_job(2, 2, types=("b",), phase=JobPhase.RUNNING, owner=2),
        make_job(3, 1, types=("a",), owner=1),
        make_job(4, 1, types=("a",), owner=2),
    ]
    view = make_view(held, {"a": 2, "b": 2})

    def started(prices):
        plan, _ = make_policy("fair", {"prices": prices}).plan(view, {})
        return plan.allocs.keys() - {1, 2}

    assert started("a=9,b=1") == {4}
    assert started("a=1,b=9") == {3}


def test_the_cost_objective_buys_where_a_device_hour_is_cheap():
    view = make_view([make_job(1, 2)], {"a": 2, "b": 2})

    def bought(prices):
        plan, _ = make_policy("gavel", {"objective": "cost", "prices": prices}).plan(view, {})
        return plan.allocs[1].single.type

    assert bought("a=1,b=9") == "a"
    assert bought("a=9,b=1") == "b"
