"""What stands around a policy: chosen by name with typed parameters, in one order of nesting."""

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies import (
    COMBINATORS,
    WRAP,
    UnknownPolicyError,
    make_policy,
    parameters_of,
    read_policy,
    read_policy_args,
    stand_in,
)
from scheduling.core.policies.base import label_of
from scheduling.core.policies.combinators.holding import DeviceCeiling, Hysteresis
from scheduling.core.policies.combinators.waiting import ReserveHead
from scheduling.core.policies.plans import check_plan, settle
from scheduling.core.policies.tessera import Tessera
from scheduling.core.policy_interface import Alloc, JobPhase, Part
from tests.strategies.policy_views import NOW, TYPES, applied, make_job, make_view, views

ALL: dict[str, dict[str, Any]] = {name: {} for name in COMBINATORS}
WRAPPED: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "tessera+hysteresis+reserve-head": (
        "tessera",
        {"hysteresis": {"min_run": 600.0}, "reserve-head": {"patience": 300.0}},
    ),
    "sia+opportunistic+deadline-guard": ("sia", {"opportunistic": {}, "deadline-guard": {}}),
    "gavel+quota": ("gavel", {"quota": {"most": 3}}),
    "drf+all": ("drf", {**ALL, "quota": {"most": 4}}),
    "fifo+guarded+quota": ("fifo", {"guarded": {"fallback": "srtf"}, "quota": {"most": 2}}),
    "tiresias+backfilled": ("tiresias", {"backfilled": {"reservations": "all"}}),
}


def wrapped(label):
    name, wraps = WRAPPED[label]
    return make_policy(name, {WRAP: wraps})


@pytest.mark.parametrize("label", sorted(WRAPPED))
@settings(max_examples=12, deadline=None)
@given(view=views(), seed=st.integers(0, 5))
def test_plans_are_legal_whole_and_blind_to_the_order_of_jobs(label, view, seed):
    policy = wrapped(label)

    plan, state = policy.plan(view, {})

    check_plan(view, plan)
    held = settle(view, plan)
    for job in view.jobs:
        if job.id in held:
            assert job.allows(held[job.id].devices)
            assert job.phase is not JobPhase.LEAVING
        if job.phase is JobPhase.RUNNING and not job.terms.preemptible:
            assert held[job.id].parts == job.alloc.parts
    for kind in TYPES:
        used = sum(part.n for a in held.values() for part in a.parts if part.type == kind)
        running = sum(
            job.alloc.devices
            for job in view.jobs
            if job.phase is JobPhase.RUNNING and job.alloc.single.type == kind
        )
        assert used <= max(view.pool.room(kind), running)
    shuffled = random.Random(seed).sample(view.jobs, len(view.jobs))
    assert policy.plan(replace(view, jobs=tuple(shuffled)), {}) == (plan, state)
    assert json.loads(json.dumps(dict(state))) == state


def test_a_running_borrower_retains_its_devices_before_an_earlier_waiting_one():
    held = Alloc(parts=(Part(n=1, type="b", level="node"),))
    running = make_job(
        1, phase=JobPhase.RUNNING, alloc=held, borrows=True, preemptible=False, submitted=NOW
    )
    waiting = make_job(2, borrows=True, submitted=NOW - 600.0)
    view = make_view([running, waiting], {"a": 0, "b": 1})
    policy = make_policy("drf", {WRAP: {"backfilled": {}, "opportunistic": {}}})

    plan, _ = policy.plan(view, {})

    assert settle(view, plan) == {1: held}


@pytest.mark.parametrize("label", sorted(WRAPPED))
@settings(max_examples=4, deadline=None, derandomize=True)
@given(view=views(), seed=st.integers(0, 5))
def test_the_order_of_jobs_changes_nothing_in_later_rounds_either(label, view, seed):
    policy, chance, state = wrapped(label), random.Random(seed), "{}"
    for number in range(3):
        view = replace(view, now=view.now + 400.0 * number, round_number=number)
        shuffled = tuple(chance.sample(view.jobs, len(view.jobs)))

        plan, after = policy.plan(view, json.loads(state))

        assert policy.plan(replace(view, jobs=shuffled), json.loads(state)) == (plan, after)
        state, view = json.dumps(dict(after)), applied(view, plan)


@pytest.mark.parametrize("label", ["drf+all", "gavel+quota", "fifo+guarded+quota"])
@settings(max_examples=15, deadline=None)
@given(view=views())
def test_no_start_passes_a_ceiling_whatever_else_stands_around(label, view):
    most = WRAPPED[label][1]["quota"]["most"]
    plan, _state = wrapped(label).plan(view, {})

    tenants = {tenant.id for tenant in view.tenants}
    held: Counter[int] = Counter()
    started: Counter[int] = Counter()
    for job in view.jobs:
        if job.terms.tenant in tenants:
            continue
        if job.phase is not JobPhase.QUEUED:
            held[job.owner] += job.alloc.devices
        elif job.id in plan.allocs:
            started[job.owner] += plan.allocs[job.id].devices
    assert all(held[owner] + devices <= most for owner, devices in started.items())


@settings(max_examples=10, deadline=None)
@given(view=views())
def test_what_a_policy_remembers_outlives_what_is_put_around_it(view):
    bare, around = make_policy("gavel", {}), wrapped("gavel+quota")

    _plan, state = around.plan(view, bare.plan(view, {})[1])
    plan, _state = bare.plan(view, json.loads(json.dumps(dict(state))))

    check_plan(view, plan)


def test_what_is_around_a_policy_has_its_own_types_and_bounds():
    policy = make_policy(
        "tessera",
        {"finer": 1, WRAP: {"hysteresis": {"min_run": 600}, "reserve-head": {}, "quota": {}}},
    )

    assert policy == DeviceCeiling(
        inner=ReserveHead(inner=Hysteresis(inner=Tessera(finer=1), min_run=600.0))
    )
    assert label_of(policy) == "tessera+hysteresis+reserve-head+quota"


def test_the_order_in_which_it_is_written_does_not_matter():
    one = make_policy("sia", {WRAP: {"quota": {}, "hysteresis": {}}})

    assert one == make_policy("sia", {WRAP: {"hysteresis": {}, "quota": {}}})


@pytest.mark.parametrize(
    ("wraps", "says"),
    [
        ({"hysteresis": {"min_run": -1.0}}, "min_run is -1.0"),
        ({"hysteresis": {"min_run": True}}, "min_run is True"),
        ({"hysteresis": {"min_run": 10**400}}, "use a number from 0"),
        ({"hysteresis": {"inner": 1}}, "hysteresis has no parameter 'inner'"),
        ({"quota": {"ceilings": {}}}, "quota has no parameter 'ceilings'"),
        ({"guarded": {"fallback": "sia"}}, "use one of"),
        ({"luck": {}}, "policy rule 'luck' not found"),
        ({"quota": 3}, "use a mapping"),
        (["quota"], "use a mapping"),
        ("quota", "use a mapping"),
        ({1: {}}, "use a mapping"),
        ({"quota": {1: 2}}, "use a mapping"),
        (None, "use a mapping"),
    ],
)
def test_what_cannot_stand_around_a_policy_is_refused_by_name(wraps, says):
    with pytest.raises(UnknownPolicyError, match=says):
        make_policy("sia", {WRAP: wraps})


def test_a_command_line_says_it_in_words():
    policy = read_policy(
        "sia", ["growth=4"], ["hysteresis:min_run=600,min_gain=0.1", "opportunistic"]
    )

    assert label_of(policy) == "sia+hysteresis+opportunistic"
    assert read_policy_args("sia", [], ["quota:most=8"]) == {WRAP: {"quota": {"most": 8}}}
    assert read_policy_args("sia", ["growth=4"]) == {"growth": 4}


@pytest.mark.parametrize(
    ("wraps", "says"),
    [
        (["quota", "quota:most=3"], "twice"),
        (["quota:most"], "not of the form"),
        (["quota:most=many"], "a whole number"),
        (["luck"], "policy rule 'luck' not found"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused_by_name(wraps, says):
    with pytest.raises(UnknownPolicyError, match=says):
        read_policy("sia", [], wraps)


def test_who_stands_in_is_first_in_first_out_unless_somebody_else_was_chosen():
    assert stand_in({}) == stand_in({WRAP: {"guarded": {}}}) == "fifo"
    assert stand_in({WRAP: {"guarded": {"fallback": "srtf"}}}) == "srtf"


@pytest.mark.parametrize("name", sorted(COMBINATORS))
def test_every_combinator_reports_what_it_is(name):
    combinator = COMBINATORS[name]

    assert combinator.name == name
    assert combinator.summary
    for parameter in parameters_of(combinator):
        assert parameter.text, f"{name}: {parameter.name} has no line of text"
        assert parameter.check(parameter.default) == parameter.default
