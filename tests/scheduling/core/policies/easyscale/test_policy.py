"""EasyScale in rounds: who waits is admitted, nobody shrinks, and what fails is taken back."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.policies import make_policy
from scheduling.core.policies.plans import check_plan
from scheduling.core.policy_interface import Alloc, JobPhase, Kind, LinearModel, Part, Scale, Step
from tests.strategies.policy_views import NOW, TYPES, applied, make_job, make_view

ELASTIC: dict[str, Any] = {"scale": Scale(minimum=1, maximum=8), "kind": Kind.ELASTIC}


def grown(view, rounds, policy=None):
    policy = policy or make_policy("easyscale", {})
    state: Mapping[str, Any] = {}
    for _ in range(rounds):
        plan, state = policy.plan(view, state)
        view = replace(applied(view, plan), now=view.now + 60.0)
    return plan


def test_a_job_grows_step_by_step_to_its_logical_workers_and_no_further():
    view = make_view([make_job(1, 4, types=("a",), **ELASTIC)], {"a": 20})

    sizes = [grown(view, rounds).allocs[1].devices for rounds in (1, 2, 3, 4, 5, 6)]

    assert sizes == sorted(sizes)
    assert sizes[0] == 1
    assert sizes[-1] == 8


def test_types_are_mixed_in_proportion_to_their_speed():
    view = make_view([make_job(1, 4, types=("b", "a"), **ELASTIC)], {"a": 2, "b": 3})
    view = replace(view, model=LinearModel(TYPES))

    alloc = grown(view, 8).allocs[1]

    # b is twice as fast as a: three of b with two workers each and two of a with one.
    assert {part.type: part.n for part in alloc.parts} == {"a": 2, "b": 3}
    assert sum(alloc.layout) == 8
    assert max(alloc.layout[:2]) < max(alloc.layout[2:])


def test_without_mixing_a_job_stays_on_one_type():
    view = make_view([make_job(1, 4, types=("b", "a"), **ELASTIC)], {"a": 2, "b": 3})

    alloc = grown(view, 8, make_policy("easyscale", {"mix": False})).allocs[1]

    assert {part.type for part in alloc.parts} == {"b"}


def test_a_rigid_job_gets_its_gang_or_nothing():
    view = make_view([make_job(1, 4), make_job(2, 3)], {"a": 6})

    plan, _ = make_policy("easyscale", {}).plan(view, {})

    assert {job: alloc.devices for job, alloc in plan.allocs.items()} == {1: 4}


@pytest.mark.parametrize(("free", "devices"), [(3, 3), (4, 4)])
def test_a_least_size_that_does_not_divide_the_workers_keeps_nobody_out(free, devices):
    scale = Scale(minimum=3, maximum=4)
    view = make_view([make_job(1, 3, scale=scale, kind=Kind.ELASTIC)], {"a": free})

    plans = [grown(view, rounds) for rounds in (1, 2)]

    assert [plan.allocs[1].devices for plan in plans] == [devices, devices]
    assert all(sum(plan.allocs[1].layout) == 4 for plan in plans)


def test_a_job_begins_at_a_size_that_it_allows():
    scale = Scale(minimum=3, maximum=6, step=Step.POWER_OF_TWO)
    view = make_view([make_job(1, 4, scale=scale, kind=Kind.ELASTIC)], {"a": 6})

    plan, _ = make_policy("easyscale", {}).plan(view, {})

    check_plan(view, plan)
    assert plan.allocs[1].devices == 4


def test_a_growth_that_made_a_job_slower_is_taken_back_and_not_tried_again():
    policy = make_policy("easyscale", {})

    def view(now, gpus, step_time):
        alloc = Alloc(parts=(Part(n=gpus, type="a", level="node"),))
        job = make_job(
            1,
            4,
            types=("a",),
            phase=JobPhase.RUNNING,
            alloc=alloc,
            facts={"step_time": step_time},
            **ELASTIC,
        )
        return make_view([job], {"a": 4}, now=now)

    _, state = policy.plan(view(NOW, 2, 1.0), {})
    _, state = policy.plan(view(NOW + 120, 2, 1.0), state)
    _, state = policy.plan(view(NOW + 180, 4, 1.5), state)
    kept, early = policy.plan(view(NOW + 240, 4, 1.5), state)
    back, state = policy.plan(view(NOW + 300, 4, 1.5), early)
    again, _ = policy.plan(view(NOW + 360, 2, 1.0), state)

    assert kept.allocs[1].devices == 4
    assert back.allocs[1].devices == 2
    assert again.allocs[1].devices != 4


def waiting(view):
    """The same with its jobs in the queue."""
    jobs = tuple(replace(job, phase=JobPhase.QUEUED, alloc=None) for job in view.jobs)
    return replace(view, jobs=jobs)


def leaving(view):
    return replace(view, jobs=tuple(replace(job, phase=JobPhase.LEAVING) for job in view.jobs))


def running(gpus, now, *, terms=(), **facts):
    alloc = Alloc(parts=(Part(n=gpus, type="a", level="node"),))
    job = make_job(1, 4, types=("a",), phase=JobPhase.RUNNING, alloc=alloc, facts=facts, **ELASTIC)
    job = replace(job, terms=replace(job.terms, logical_workers=8, **dict(terms)))
    return make_view([job], {"a": 8}, now=now)


def test_a_job_that_left_to_grow_comes_back_at_the_size_that_it_is_to_have():
    policy = make_policy("easyscale", {})
    view = running(1, NOW, step_time=1.0)

    grown, state = policy.plan(view, {})
    _, state = policy.plan(leaving(replace(view, now=NOW + 10)), state)
    back, state = policy.plan(waiting(replace(view, now=NOW + 20)), state)
    crowded, _ = policy.plan(waiting(make_view(view.jobs, {"a": 1}, now=NOW + 30)), state)

    assert grown.allocs[1].devices > 1
    assert back.allocs[1].devices == grown.allocs[1].devices
    assert crowded.allocs[1].devices == 1  # its place was taken meanwhile


def test_what_a_policy_knows_of_a_job_outlives_its_way_to_another_size():
    policy = make_policy("easyscale", {})
    _, state = policy.plan(running(2, NOW, step_time=1.0), {})
    _, state = policy.plan(running(2, NOW + 120, step_time=1.0), state)
    _, state = policy.plan(leaving(running(2, NOW + 180)), state)
    _, state = policy.plan(waiting(running(2, NOW + 240)), state)
    _, state = policy.plan(running(4, NOW + 300, step_time=1.5), state)
    back, state = policy.plan(running(4, NOW + 420, step_time=1.5), state)
    _, state = policy.plan(leaving(running(4, NOW + 430)), state)
    started, _ = policy.plan(waiting(running(4, NOW + 440)), state)

    assert back.allocs[1].devices == 2
    assert started.allocs[1].devices == 2


def test_as_many_processes_share_a_device_as_were_measured_to_pay():
    policy = make_policy("easyscale", {})

    def executors(allowed, sharing):
        view = running(8, NOW, terms={"executors": allowed}.items(), sharing=sharing)
        (part,) = policy.plan(view, {})[0].allocs[1].parts
        return part.executors

    view = running(2, NOW, terms={"executors": 2}.items(), sharing={"a": (1.0, 0.6)})
    plan, _ = policy.plan(view, {})

    assert executors(1, {}) is None
    assert executors(2, {}) == 1
    assert executors(2, {"a": (1.0, 0.9)}) == 1  # eight workers on eight devices fill no more
    assert {part.executors for part in plan.allocs[1].parts} == {2}
    check_plan(view, plan)
