"""What must hold of every policy that there is, on any view, with any of its parameters."""

import json
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.jobspec import JobClass
from scheduling.core.policies import ALIASES, POLICIES, make_policy, parameters_of
from scheduling.core.policies.base import guarded_plan
from scheduling.core.policies.plans import check_plan, settle
from scheduling.core.policy_interface import JobPhase, Kind, Scale, Snapshot
from tests.strategies.policy_views import TYPES, applied, make_job, make_view, views

NAMES = sorted(POLICIES)
#: Reservations, and promises on one type or of a tier, are worth an idle device to these.
KEEPS_PLACES_FREE = {"backfill", "elasticflow", "singularity"}


def any_args(name):
    """Parameters of a policy anywhere between their bounds."""
    return st.fixed_dictionaries(
        {}, optional={p.name: value(p) for p in parameters_of(POLICIES[name])}
    )


def value(parameter):
    if parameter.choices:
        return st.sampled_from(parameter.choices)
    if parameter.kind is bool:
        return st.booleans()
    if parameter.kind is str:
        return st.sampled_from([parameter.default, "b=0.5,a=40"])
    low, high = parameter.low, parameter.high
    low = parameter.default if low is None else low
    high = parameter.default if high is None else high
    return st.sampled_from([parameter.kind(low), parameter.default, parameter.kind(high)])


def idle_for_somebody(view, plan, held):
    """Guaranteed gangs that wait though devices of one of their types are left for them."""
    if any(tenant.ceiling is not None for tenant in view.tenants):
        return []
    free = dict(view.capacity)
    leaving = [job.alloc for job in view.jobs if job.phase is JobPhase.LEAVING]
    for alloc in [*held.values(), *leaving]:
        for part in alloc.parts:
            part_of_device = alloc.share.fraction if alloc.share else 1.0
            free[part.type] = free.get(part.type, 0) - part.n * part_of_device
    return [
        job.id
        for job in view.jobs
        if job.phase is JobPhase.QUEUED
        and job.job_class is JobClass.GUARANTEED
        and job.id not in held
        and not (plan.offer and job.id in plan.order)  # on which of its types is left open
        and job.id not in plan.reject
        and any(free.get(kind, 0) >= job.gang for kind in job.types or free)
    ]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(view=views(), seed=st.integers(0, 5))
def test_plans_are_legal_whole_and_blind_to_the_order_of_jobs(name, view, seed):
    policy = make_policy(name, {})

    plan, state = policy.plan(view, {})

    check_plan(view, plan)
    held = settle(view, plan)
    for job in view.jobs:
        if job.id in held:
            assert job.allows(held[job.id].devices)
            assert job.phase is not JobPhase.LEAVING
    for kind in TYPES:
        used = sum(
            part.n * (alloc.share.fraction if alloc.share else 1.0)
            for alloc in held.values()
            for part in alloc.parts
            if part.type == kind
        )
        running = sum(
            job.alloc.devices
            for job in view.jobs
            if job.phase is JobPhase.RUNNING and job.alloc.single.type == kind
        )
        assert used <= max(view.pool.room(kind), running) + 1e-6
    shuffled = random.Random(seed).sample(view.jobs, len(view.jobs))
    assert policy.plan(replace(view, jobs=tuple(shuffled)), {}) == (plan, state)
    assert policy.plan(view, {}) == (plan, state)
    assert json.loads(json.dumps(dict(state))) == state


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(view=views(), seed=st.integers(0, 5))
def test_the_order_of_jobs_changes_nothing_in_later_rounds_either(name, view, seed):
    policy = make_policy(name, {"generations": 8} if name == "pollux" else {})
    chance, state = random.Random(seed), "{}"
    for number in range(3):
        view = replace(view, now=view.now + 400.0 * number, round_number=number)
        shuffled = chance.sample(view.jobs, len(view.jobs))

        answer = policy.plan(view, json.loads(state))

        again = policy.plan(replace(view, jobs=tuple(shuffled)), json.loads(state))
        assert again == answer
        plan, after = answer
        state = json.dumps(dict(after))
        view = applied(view, plan)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in KEEPS_PLACES_FREE])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(view=views())
def test_nobody_waits_for_whom_there_is_room(name, view):
    plan, _state = make_policy(name, {}).plan(view, {})

    assert idle_for_somebody(view, plan, settle(view, plan)) == []


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(data=st.data(), view=views(most=5))
def test_no_parameters_within_their_bounds_make_a_plan_illegal(name, data, view):
    args = data.draw(any_args(name))
    try:
        policy = make_policy(name, args)
    except ValueError:
        return  # parameters that do not go together are refused when they are given

    _plan, _state, fault = guarded_plan(policy, view, {})

    assert fault is None


@pytest.mark.parametrize("name", [name for name in NAMES if POLICIES[name].stateless])
@settings(max_examples=15, deadline=None)
@given(view=views())
def test_a_stateless_policy_plans_the_same_again_once_its_plan_has_come_true(name, view):
    policy = make_policy(name, {})
    # Where a job may only double what it has had, its plans come true one doubling at a time.
    for _doubling in range(6):
        view = applied(view, policy.plan(view, {})[0])

    again = policy.plan(view, {})[0]

    assert settle(view, again) == settle(view, policy.plan(applied(view, again), {})[0])


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_view_and_a_pool_without_devices_are_no_trouble(name):
    policy = make_policy(name, {})

    empty, _state = policy.plan(make_view([], {"a": 4}), {})
    bare, _state = policy.plan(make_view([make_job(1)], {"a": 0, "b": 0}), {})

    assert not empty.allocs
    assert not settle(make_view([make_job(1)], {"a": 0, "b": 0}), bare)


@pytest.mark.parametrize("name", NAMES)
def test_a_large_view_is_planned_within_seconds(name):
    view = large_view(jobs=300, devices=256)
    policy = make_policy(name, {})
    started = time.process_time()

    plan, _state = policy.plan(view, {})

    assert time.process_time() - started < 5.0
    check_plan(view, plan)


def large_view(*, jobs: int, devices: int) -> Snapshot:
    """Half of the jobs can change their size; sizes, ages and tenants differ."""
    chance = random.Random(3)
    found = []
    for job_id in range(1, jobs + 1):
        gang = chance.choice([1, 1, 2, 4])
        elastic = job_id % 2 == 0
        found.append(
            make_job(
                job_id,
                gang,
                submitted=100_000.0 - chance.randrange(10_000),
                tenant=chance.randrange(4),
                kind=Kind.ADAPTIVE if elastic else Kind.RIGID,
                scale=Scale(minimum=1, maximum=8) if elastic else None,
                facts={"steps_left": float(chance.randrange(10, 10_000))},
            )
        )
    return make_view(found, {"a": devices // 2, "b": devices // 2})


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_reports_what_it_is(name):
    policy = POLICIES[name]

    assert policy.name == name
    assert policy.summary
    assert all(ALIASES[alias] == name for alias in policy.aliases)
    for parameter in parameters_of(policy):
        assert parameter.text, f"{name}: {parameter.name} has no line of text"
        assert parameter.check(parameter.default) == parameter.default
