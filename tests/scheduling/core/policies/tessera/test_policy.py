"""Tessera's own policy: who gets what in rounds small enough to be worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from scheduling.core.policies import make_policy
from scheduling.core.policies.plans import check_plan
from scheduling.core.policy_interface import Alloc, JobPhase, Kind, Part, Scale
from tests.scheduling.core.policies.tessera.known import Known, known_view
from tests.strategies.policy_views import NOW, applied, make_job, views


def adaptive(job_id, left=None, done=0.0, **more):
    more.setdefault("submitted", NOW)
    return make_job(
        job_id,
        more.pop("gang", 4),
        kind=Kind.ADAPTIVE,
        scale=Scale(minimum=1, maximum=64),
        facts={"steps_left": left, "steps_done": done, **more.pop("facts", {})},
        **more,
    )


def held(kind, n):
    return {
        "phase": JobPhase.RUNNING,
        "alloc": Alloc(parts=(Part(n=n, type=kind, level="node"),)),
    }


def planned(snapshot, state=None, **args):
    plan, _state = make_policy("tessera", args).plan(snapshot, state or {})
    check_plan(snapshot, plan)
    return {job_id: (alloc.single.type, alloc.devices) for job_id, alloc in plan.allocs.items()}


def test_a_job_alone_gets_what_makes_it_fastest():
    assert planned(known_view(adaptive(1, left=1e5), capacity={"a": 16, "b": 16})) == {
        1: ("b", 16)
    }


def test_of_two_jobs_the_one_nearer_to_its_end_gets_more():
    short, long = adaptive(1, left=1e4), adaptive(2, left=1e5)

    given = planned(known_view(short, long, capacity={"a": 12}))

    assert given == {1: ("a", 8), 2: ("a", 4)}


def test_without_declared_sizes_who_has_run_less_counts_as_nearer_to_its_end():
    young, old = adaptive(1, done=100.0), adaptive(2, done=2_000.0)

    given = planned(known_view(young, old, capacity={"a": 12}), value="time")

    assert given == {1: ("a", 8), 2: ("a", 4)}


@pytest.mark.parametrize(("left", "expected"), [(400.0, ("a", 4)), (1e5, ("a", 16))])
def test_a_running_job_grows_only_where_the_restart_pays(left, expected):
    job = adaptive(1, left=left, **held("a", 4))

    assert planned(known_view(job, model=Known(restart=60.0))) == {1: expected}


def test_a_costlier_restart_leaves_a_running_job_where_it_is():
    job = adaptive(1, left=1e5, **held("a", 8))

    assert planned(known_view(job, model=Known(restart=10.0))) == {1: ("a", 16)}
    assert planned(known_view(job, model=Known(restart=800.0))) == {1: ("a", 8)}


def test_a_restart_under_way_is_charged_only_for_what_is_left_of_it():
    busy = adaptive(1, left=1e5, **held("a", 8), facts={"recovering": True}, since=NOW - 395.0)
    fresh = replace(busy, since=NOW)
    model = Known(power=0.5, restart=400.0)

    assert planned(known_view(busy, model=model), caution=1.5) == {1: ("a", 8)}
    assert planned(known_view(fresh, model=model), caution=1.5) == {1: ("a", 16)}


def test_a_job_that_has_never_run_starts_near_the_gang_that_was_asked_for():
    unknown = Known(seen={})
    jobs = [adaptive(1, gang=4), adaptive(2, gang=12)]

    assert planned(known_view(*jobs, model=unknown)) == {1: ("a", 4), 2: ("a", 12)}


def test_a_type_never_tried_is_judged_by_the_ratio_of_speeds():
    tried_on_a = Known(seen={"a": 4})

    assert planned(
        known_view(adaptive(1, left=1e5), model=tried_on_a, capacity={"a": 4, "b": 4})
    ) == {1: ("b", 4)}


def test_sizes_never_tried_are_discounted_as_far_as_is_asked():
    job = adaptive(1, left=1e5, **held("a", 4))
    snapshot = known_view(job, model=Known(power=0.4, seen={"a": 4}))

    assert planned(snapshot, unseen=0.0, spread=1.0) == {1: ("a", 16)}
    assert planned(snapshot, unseen=1.0, spread=1.0) == {1: ("a", 8)}


def test_whoever_falls_behind_its_fair_share_counts_more():
    behind = adaptive(1, left=1e5, submitted=NOW - 1.2e5)
    snapshot = known_view(behind, adaptive(2, left=1e4), capacity={"a": 12})

    assert planned(snapshot, rise=0.0, value="time") == {1: ("a", 4), 2: ("a", 8)}
    assert planned(snapshot, rise=1.0, value="time") == {1: ("a", 8), 2: ("a", 4)}


def test_a_rigid_gang_that_waits_long_enough_is_served():
    crowd = [adaptive(n, left=50.0, done=1000.0, **held("a", 4)) for n in range(1, 5)]
    gang = make_job(9, 16, submitted=NOW - 1e6, facts={"steps_left": 1e4})

    assert planned(known_view(*crowd, gang)) == {9: ("a", 16)}
    assert 9 not in planned(known_view(*crowd, gang), rise=0.0)


def test_priority_weight_and_class_order_jobs_that_are_alike():
    def one(job_id, **more):
        return make_job(job_id, 4, facts={"steps_left": 1e4}, **more)

    assert planned(known_view(one(1), one(2, weight=3.0), capacity={"a": 4})) == {2: ("a", 4)}
    assert planned(known_view(one(1), one(2, priority=200), capacity={"a": 4})) == {2: ("a", 4)}
    assert planned(known_view(one(1, borrows=True), one(2), capacity={"a": 4})) == {2: ("a", 4)}


def test_who_waits_is_told_why():
    jobs = [make_job(n, 16, facts={"steps_left": 1e4 * n}) for n in (1, 2)]

    plan, _state = make_policy("tessera", {}).plan(known_view(*jobs), {})

    assert set(plan.allocs) == {1}
    assert set(plan.why) == {2}


def test_past_jobs_of_an_application_tell_what_is_left_of_the_next_one():
    policy = make_policy("tessera", {"remember": True})
    past = [adaptive(n, done=50_000.0, application="bert", **held("a", 1)) for n in (1, 2)]
    _plan, state = policy.plan(known_view(*past), {})
    new = [adaptive(3, done=4e4, application="bert"), adaptive(4, done=3e4)]
    now = known_view(*new, capacity={"a": 12})

    _plan, after = policy.plan(now, state)

    assert after["sizes"] == {"bert": [50_000.0, 50_000.0]}
    assert planned(now, state, remember=True) == {3: ("a", 8), 4: ("a", 4)}
    assert planned(now, {}, remember=True) == {3: ("a", 4), 4: ("a", 8)}


def test_nothing_is_remembered_unless_that_is_asked_for():
    job = adaptive(1, done=5_000.0, application="bert", **held("a", 1))

    assert "sizes" not in make_policy("tessera", {}).plan(known_view(job), {})[1]


@settings(max_examples=30, deadline=None)
@given(found=views())
def test_a_plan_that_has_come_true_is_planned_again(found):
    policy = make_policy("tessera", {})
    found = replace(found, model=Known())
    plan, _state = policy.plan(found, {})
    after = applied(found, plan)

    again, _state = policy.plan(after, {})

    assert again.allocs == plan.allocs
