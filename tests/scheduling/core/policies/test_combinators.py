"""Policies made of policies keep what the inner one says, but for their own rule."""

import json
import random
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.jobspec import Within
from scheduling.core.policies import make_policy
from scheduling.core.policies.combinators.holding import DeviceCeiling, Hysteresis
from scheduling.core.policies.combinators.waiting import (
    Backfilled,
    DeadlineGuard,
    Opportunistic,
    ReserveHead,
)
from scheduling.core.policies.engines.room import FreeDevices
from scheduling.core.policies.plans import check_plan
from scheduling.core.policies.wrapping import Guarded
from scheduling.core.policy_interface import (
    Alloc,
    JobPhase,
    LinearModel,
    Part,
    Plan,
    Scale,
    Tenant,
)
from tests.factories.policies import Described
from tests.strategies.policy_views import NOW, TYPES, make_job, make_view, views

RUNNING = JobPhase.RUNNING


@dataclass(frozen=True)
class Says(Described):
    """Always the same plan, or an error."""

    said: Plan | Exception

    name: ClassVar[str] = "says"

    def plan(self, snapshot, state):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said, state


def on(kind, n):
    return Alloc(parts=(Part(n=n, type=kind, level="node"),))


COMBINATORS = {
    "hysteresis": lambda inner: Hysteresis(inner=inner),
    "quota": lambda inner: DeviceCeiling(inner=inner, ceilings={1: 3, -3: 2}),
    "backfilled": lambda inner: Backfilled(inner=inner),
    "opportunistic": lambda inner: Opportunistic(inner=inner),
    "reserve-head": lambda inner: ReserveHead(inner=inner, patience=300.0),
    "deadline-guard": lambda inner: DeadlineGuard(inner=inner),
    "guarded": lambda inner: Guarded(inner=inner),
}


@pytest.mark.parametrize("inner", ["drf", "srtf", "fifo"])
@pytest.mark.parametrize("label", sorted(COMBINATORS))
@settings(max_examples=10, deadline=None)
@given(view=views(), seed=st.integers(0, 3))
def test_a_plan_stays_legal_and_depends_on_nothing_but_the_view(label, inner, view, seed):
    policy = COMBINATORS[label](make_policy(inner, {}))

    plan, state = policy.plan(view, {})

    check_plan(view, plan)
    shuffled = random.Random(seed).sample(view.jobs, len(view.jobs))
    assert policy.plan(replace(view, jobs=tuple(shuffled)), {}) == (plan, state)
    assert json.loads(json.dumps(state)) == state


class TestHysteresis:
    JOB = make_job(
        1, 2, types=("a",), phase=RUNNING, scale=Scale(minimum=1, maximum=8), since=NOW - 900
    )

    def kept(self, alloc, **rules):
        view = make_view([self.JOB], {"a": 4, "b": 4}, model=LinearModel(TYPES))
        plan = Plan(allocs={1: alloc}, order=(1,))
        return Hysteresis(inner=Says(plan), **rules).plan(view, {})[0].allocs[1]

    def test_a_change_that_pays_is_made(self):
        assert self.kept(on("a", 4)) == on("a", 4)

    def test_a_change_that_does_not_pay_its_restart_is_not(self):
        assert self.kept(on("a", 4), horizon=50.0) == on("a", 2)
        assert self.kept(on("a", 4), min_gain=1.5) == on("a", 2)

    def test_a_job_that_has_just_begun_is_let_be(self):
        assert self.kept(on("a", 4), min_run=1000.0) == on("a", 2)

    @pytest.mark.parametrize(
        ("executors", "rules", "changes"),
        [
            (2, {}, True),
            (2, {"min_run": 1000.0}, False),
            (2, {"min_gain": 0.3}, False),
            (1, {"min_run": 1000.0}, None),
            (3, {}, False),
        ],
    )
    def test_another_number_of_processes_a_device_is_a_change(self, executors, rules, changes):
        # Two on a device do a quarter more than one, three as much as one.
        job = make_job(
            1, 2, types=("a",), phase=RUNNING, since=NOW - 900, logical_workers=12, executors=3,
            facts={"sharing": {"a": (1.0, 0.625, 1 / 3)}},
        )  # fmt: skip
        wanted = Alloc(parts=(Part(n=2, type="a", executors=executors),))
        view = make_view([job], {"a": 4}, model=LinearModel(TYPES))

        policy = Hysteresis(inner=Says(Plan(allocs={1: wanted}, order=(1,))), **rules)
        kept = policy.plan(view, {})[0].allocs[1]

        assert kept == (job.alloc if changes is False else wanted)

    def test_a_job_is_shrunk_only_where_others_need_it(self):
        others = make_job(2, 2, types=("a",))
        view = make_view([self.JOB, others], {"a": 3}, model=LinearModel(TYPES))
        tight = Plan(allocs={1: on("a", 1), 2: on("a", 2)}, order=(1, 2))
        loose = Plan(allocs={1: on("a", 1)}, order=(1,))

        assert Hysteresis(inner=Says(tight)).plan(view, {})[0].allocs[1] == on("a", 1)
        assert Hysteresis(inner=Says(loose)).plan(view, {})[0].allocs[1] == on("a", 2)


def test_a_quota_stops_starts_and_never_what_runs():
    jobs = [
        make_job(1, 3, phase=RUNNING, tenant=1),
        make_job(2, 1, tenant=1),
        make_job(3, 1, tenant=2),
    ]
    view = make_view(jobs, {"a": 8}, tenants=(Tenant(id=1, ceiling=2.0), Tenant(id=2)))

    plan, _ = DeviceCeiling(inner=make_policy("srtf", {})).plan(view, {})

    assert set(plan.allocs) == {1, 3}
    assert "limit of devices" in plan.why[2]


def test_who_is_at_the_ceiling_is_hidden_so_that_others_get_what_it_cannot_have():
    jobs = [
        make_job(1, 2, owner=1, phase=RUNNING, alloc=on("a", 2)),
        make_job(2, 2, owner=1, submitted=NOW - 500),
        make_job(3, 2, owner=2, submitted=NOW - 400),
        make_job(4, 1, owner=2, submitted=NOW - 300),
    ]
    view = make_view(jobs, {"a": 4})

    plan, _ = DeviceCeiling(inner=make_policy("srtf", {}), most=2).plan(view, {})

    assert set(plan.allocs) == {1, 3}
    assert "limit of devices" in plan.why[2]


def test_a_job_that_its_policy_would_start_beyond_the_ceiling_starts_at_the_size_that_is_left():
    jobs = [
        make_job(1, 2, owner=1, phase=RUNNING, alloc=on("a", 2)),
        make_job(2, 4, owner=1, types=("a",), scale=Scale(minimum=1, maximum=8)),
        make_job(3, 4, owner=1, types=("a",), scale=Scale(minimum=2, maximum=8)),
    ]
    view = make_view(jobs, {"a": 16})
    allocs = {n: on("a", size) for n, size in ((1, 2), (2, 8), (3, 4))}
    gives = Says(Plan(allocs=allocs, order=(1, 2, 3)))

    plan, _ = DeviceCeiling(inner=gives, most=6).plan(view, {})
    small, _ = DeviceCeiling(inner=gives, most=5).plan(view, {})

    assert {n: alloc.devices for n, alloc in plan.allocs.items()} == {1: 2, 2: 4}
    assert {n: alloc.devices for n, alloc in small.allocs.items()} == {1: 2, 2: 3}
    assert "limit of devices" in small.why[3]
    check_plan(view, plan)


def test_a_quota_lets_nobody_grow_beyond_its_ceiling():
    job = make_job(
        1, 2, types=("a",), phase=RUNNING, alloc=on("a", 2), scale=Scale(minimum=1, maximum=8)
    )
    view = make_view([job], {"a": 8})
    grows = Says(Plan(allocs={1: on("a", 8)}, order=(1,)))

    assert DeviceCeiling(inner=grows, most=2).plan(view, {})[0].allocs[1] == on("a", 2)
    assert DeviceCeiling(inner=grows, most=4).plan(view, {})[0].allocs[1] == on("a", 4)
    assert DeviceCeiling(inner=grows, most=8).plan(view, {})[0].allocs[1] == on("a", 8)


def test_a_quota_counts_what_is_borrowed_and_what_starts_before_anything_grows():
    lent = make_job(
        1, 2, types=("a",), phase=RUNNING, borrows=True, scale=Scale(minimum=1, maximum=8)
    )
    own = make_job(2, 2, types=("a",), phase=RUNNING, scale=Scale(minimum=1, maximum=8))
    waits = make_job(3, 1, types=("a",))
    allocs = {1: on("a", 6), 2: on("a", 4), 3: on("a", 1)}

    def sizes(most, *jobs):
        view = make_view(jobs, {"a": 8}, borrow={"a": 4})
        said = {job.id: allocs[job.id] for job in jobs}
        plan, _ = DeviceCeiling(inner=Says(Plan(allocs=said, order=tuple(said))), most=most).plan(
            view, {}
        )
        check_plan(view, plan)
        return {job_id: alloc.devices for job_id, alloc in plan.allocs.items()}

    assert sizes(2, lent) == {1: 2}
    assert sizes(5, lent) == {1: 5}
    assert sizes(5, lent, own) == {1: 3, 2: 2}
    assert sizes(5, own, waits) == {2: 4, 3: 1}
    assert sizes(3, own, waits) == {2: 2, 3: 1}


def test_what_is_given_back_is_as_if_it_had_never_been_taken():
    view = make_view([], {"a": 4}, borrow={"a": 3})
    lent, other, own = make_job(1, borrows=True), make_job(2, borrows=True), make_job(3)
    room, without = FreeDevices(view), FreeDevices(view)

    room.take(lent, on("a", 3))
    for job, devices in ((other, 2), (own, 1)):
        room.take(job, on("a", devices))
        without.take(job, on("a", devices))
    room.give_back(lent, on("a", 3))

    assert room.free("a") == without.free("a") == 3
    assert room.free("a", lent) == without.free("a", lent) == 4


def test_backfill_follows_the_order_of_another_policy():
    jobs = [
        make_job(1, 3, phase=RUNNING, estimate=1000.0),
        make_job(2, 4, submitted=NOW - 900, estimate=9000.0),
        make_job(3, 4, submitted=NOW - 100, estimate=50.0),
        make_job(4, 1, submitted=NOW - 50, estimate=100.0),
    ]
    view = make_view(jobs, {"a": 4})

    plan, _ = Backfilled(inner=make_policy("srtf", {})).plan(view, {})

    assert set(plan.allocs) == {1, 4}
    assert set(plan.hold) == {2} or set(plan.hold) == {3}


def test_what_a_borrower_must_keep_is_not_given_to_others():
    kept = make_job(
        2, types=("b",), phase=RUNNING, alloc=on("b", 1), borrows=True, preemptible=False
    )
    view = make_view([make_job(1), kept], {"a": 0, "b": 1})

    plan, _ = Opportunistic(inner=make_policy("drf", {})).plan(view, {})

    assert dict(plan.allocs) == {2: on("b", 1)}


def test_who_borrows_gets_what_is_left_and_what_is_lent():
    jobs = [make_job(1, 2), *(make_job(i, 1, borrows=True) for i in (2, 3, 4, 5))]
    view = make_view(jobs, {"a": 3}, borrow={"a": 2})

    plan, _ = Opportunistic(inner=make_policy("drf", {})).plan(view, {})

    assert set(plan.allocs) == {1, 2, 3, 4}
    assert plan.order[0] == 1
    assert 5 in plan.why


class TestReserveHead:
    def view(self, waited):
        return make_view(
            [
                make_job(1, 2, types=("b",), phase=RUNNING),
                make_job(2, 4, since=NOW - waited, submitted=NOW - waited),
                make_job(3, 2, since=NOW - 10, submitted=NOW - 10),
            ],
            {"b": 4},
        )

    def test_small_jobs_pass_as_long_as_the_head_is_patient(self):
        policy = ReserveHead(inner=make_policy("drf", {}), patience=600.0)

        assert set(policy.plan(self.view(599), {})[0].allocs) == {1, 3}

    def test_after_that_places_are_kept(self):
        plan, _ = ReserveHead(inner=make_policy("drf", {}), patience=600.0).plan(
            self.view(600), {}
        )

        assert set(plan.allocs) == {1}
        assert plan.hold[2].n == 4
        assert "job 2" in plan.why[3]

    @pytest.mark.parametrize(
        ("waited", "head"),
        [
            (699, True), (700, False), (799, False), (800, True), (899, True), (900, False),
            (1199, False), (1200, True), (1299, True), (1300, False), (1999, False), (2000, True),
        ],
    )  # fmt: skip
    def test_no_job_keeps_places_for_ever(self, waited, head):
        policy = ReserveHead(inner=make_policy("drf", {}), patience=600.0, longest=100.0)

        plan, _ = policy.plan(self.view(waited), {})

        assert set(plan.hold) == ({2} if head else set())
        assert set(plan.allocs) == ({1} if head else {1, 3})

    def test_jobs_of_one_instant_take_turns(self):
        gangs = [make_job(n, 4, since=NOW - 800, submitted=NOW - 800) for n in (2, 3)]
        policy = ReserveHead(inner=make_policy("drf", {}), patience=600.0, longest=100.0)

        def head(now):
            runs = make_job(1, 2, types=("b",), phase=RUNNING)
            view = make_view([runs, *gangs], {"b": 4}, now=now)
            return set(policy.plan(view, {})[0].hold)

        assert [head(NOW - 200), head(NOW - 100), head(NOW), head(NOW + 400)] == [
            {2}, set(), {3}, {2},
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("gang", "types", "within"),
        [(5, (), Within.RACK), (4, ("a",), Within.RACK), (3, ("a",), Within.NODE)],
        ids=["more than any type has", "more than its type has", "more than a node of it has"],
    )
    def test_nothing_is_kept_for_a_gang_that_no_type_can_hold(self, gang, types, within):
        giant = make_job(2, gang, types=types, within=within, since=NOW - 700)
        view = make_view([giant, make_job(3, 1, types=("a",))], {"a": 3, "b": 4})

        plan, _ = ReserveHead(inner=make_policy("drf", {}), patience=600.0).plan(view, {})

        assert not plan.hold
        assert set(plan.allocs) >= {3}


def test_a_deadline_in_danger_comes_first_and_a_lost_one_does_not():
    def running(deadline):
        jobs = [
            make_job(1, 4, phase=RUNNING, facts={"steps_left": 100.0}),
            make_job(2, 4, deadline=NOW + deadline, facts={"steps_left": 4000.0}),
        ]
        policy = DeadlineGuard(inner=make_policy("srtf", {}))
        return set(policy.plan(make_view(jobs, {"a": 4}), {})[0].allocs)

    assert running(5000.0) == {1}
    assert running(1050.0) == {2}
    assert running(900.0) == {1}


@pytest.mark.parametrize(
    "fault",
    [ValueError("no"), TimeoutError(), Plan(allocs={1: on("a", 99)}, order=(1,))],
    ids=["throws", "hangs", "cheats"],
)
def test_a_policy_that_fails_is_replaced_and_the_plan_says_so(fault):
    view = make_view([make_job(1, 1)], {"a": 1})
    policy = Guarded(inner=Says(fault), fallback="drf")

    plan, state = policy.plan(view, {"kept": 1})

    assert set(plan.allocs) == {1}
    assert "says" in plan.notes["faults"][0]
    assert state == {"kept": 1}
