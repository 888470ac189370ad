"""Policies that order jobs: what each of them is for."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.jobspec import Within
from scheduling.core.policies import make_policy
from scheduling.core.policies.queues.capacity import ideal_shares
from scheduling.core.policies.queues.singularity import splices
from scheduling.core.policy_interface import Alloc, JobPhase, Part, Scale, Tenant
from tests.strategies.policy_views import NOW, make_job, make_view

RUNNING = JobPhase.RUNNING


def started(name, view, **args):
    plan, _ = make_policy(name, args).plan(view, {})
    return set(plan.allocs) - {job.id for job in view.jobs if job.phase is RUNNING}


class TestBackfill:
    VIEW = make_view(
        [
            make_job(1, 2, phase=RUNNING, estimate=1000.0, facts={"executed": 400.0}),
            make_job(2, 4, submitted=NOW - 900, estimate=100.0),
            make_job(3, 2, submitted=NOW - 800, estimate=600.0),
            make_job(4, 2, submitted=NOW - 700, estimate=601.0),
        ],
        {"a": 4},
    )

    def test_who_ends_before_the_head_can_start_may_pass(self):
        assert started("backfill", self.VIEW) == {3}

    def test_the_reservation_of_the_head_is_in_the_plan(self):
        plan, _ = make_policy("backfill", {}).plan(self.VIEW, {})

        assert plan.hold[2].time == NOW + 600
        assert "10 min" in plan.why[2]

    def test_without_an_estimate_nobody_passes(self):
        jobs = [replace(j, terms=replace(j.terms, estimate=None)) for j in self.VIEW.jobs[1:]]

        assert started("backfill", replace(self.VIEW, jobs=(self.VIEW.jobs[0], *jobs))) == set()

    def test_a_job_that_is_leaving_frees_its_devices_only_later(self):
        leaving = make_job(1, 4, phase=JobPhase.LEAVING)
        view = make_view([leaving, make_job(2, 4), make_job(3, 1, estimate=30.0)], {"a": 4})

        plan, _ = make_policy("backfill", {}).plan(view, {})

        assert plan.hold[2].time == NOW + 60
        assert plan.order == ()


def tenants(**guarantees):
    return tuple(
        Tenant(id=number, guarantee=guarantee)
        for number, guarantee in enumerate(guarantees.values(), start=1)
    )


class TestCapacity:
    def test_the_queue_that_uses_least_of_its_guarantee_is_served_first(self):
        view = make_view(
            [
                make_job(1, 2, phase=RUNNING, tenant=1),
                make_job(2, 1, phase=RUNNING, tenant=2),
                make_job(3, 1, tenant=1, submitted=NOW - 50),
                make_job(4, 1, tenant=2, submitted=NOW - 10),
            ],
            {"a": 4},
            tenants=tenants(vision=3.0, language=1.0),
        )

        assert started("capacity", view) == {3}

    @pytest.mark.parametrize(("users", "each"), [(1, 12), (2, 6), (3, 4), (4, 3), (5, 3)])
    def test_users_share_a_queue_but_none_has_to_do_with_less_than_a_quarter(self, users, each):
        """The example of Hadoop's documentation, with 12 devices for 100 percent."""
        jobs = [
            make_job(number, 1, owner=1 + number % users, submitted=NOW - 1000.0 + number)
            for number in range(20 * users)
        ]

        plan, _ = make_policy("capacity", {"minimum_user_limit_percent": 25}).plan(
            make_view(jobs, {"a": 12}, tenants=(Tenant(id=0, guarantee=12.0),)), {}
        )

        held = Counter(jobs[job_id].owner for job_id in plan.allocs)
        assert max(held.values()) == each
        assert sum(held.values()) == 12

    @pytest.mark.parametrize(("factor", "most"), [(0.5, 2), (1.0, 4), (2.0, 8), (0.0, 12)])
    def test_one_user_of_an_idle_pool_has_so_many_times_the_guarantee(self, factor, most):
        jobs = [make_job(number, 1, tenant=1) for number in range(1, 15)]
        tenants = (Tenant(id=1, guarantee=4.0), Tenant(id=2, guarantee=8.0))

        plan, _ = make_policy("capacity", {"user_limit_factor": factor}).plan(
            make_view(jobs, {"a": 12}, tenants=tenants), {}
        )

        assert len(plan.allocs) == most
        assert ("per-user limit" in plan.why[14]) is (factor > 0)

    def test_without_tenants_all_are_users_of_the_whole_pool(self):
        jobs = [make_job(number, 2, owner=number % 2) for number in range(1, 9)]
        view = make_view(jobs, {"a": 8})

        plan, _ = make_policy("capacity", {"user_limit_factor": 0.25}).plan(view, {})

        assert len(plan.allocs) == 2

    def test_a_gang_above_the_limit_starts_where_its_owner_holds_nothing(self):
        jobs = [make_job(1, 3, owner=1), make_job(2, 1, owner=1), make_job(3, 1, owner=2)]
        limits = {"minimum_user_limit_percent": 50, "strict": True}

        plan, _ = make_policy("capacity", limits).plan(
            make_view(jobs, {"a": 5}, tenants=(Tenant(id=0, guarantee=5.0),)), {}
        )

        # Half of five: the first gang is its owner's only one, the next would be above.
        assert set(plan.allocs) == {1, 3}

    def test_what_a_user_borrows_does_not_count(self):
        jobs = [make_job(n, 1, owner=1, borrows=True) for n in range(1, 4)]
        view = make_view([*jobs, make_job(4, 1, owner=1), make_job(5, 1, owner=2)], {"a": 6})

        plan, _ = make_policy("capacity", {"minimum_user_limit_percent": 1}).plan(view, {})

        assert len(plan.allocs) == 5

    def test_an_idle_guarantee_is_lent_up_to_the_ceiling(self):
        queue = Tenant(id=1, guarantee=1.0, ceiling=3.0)
        view = make_view(
            [make_job(i, 1, tenant=1) for i in range(1, 6)], {"a": 4}, tenants=(queue,)
        )

        assert len(started("capacity", view)) == 3

    def test_a_queue_above_its_share_gives_its_youngest_gang_back(self):
        view = make_view(
            [
                make_job(1, 2, phase=RUNNING, tenant=1, since=NOW - 900),
                make_job(2, 2, phase=RUNNING, tenant=1, since=NOW - 100),
                make_job(3, 2, tenant=2),
            ],
            {"a": 4},
            tenants=tenants(vision=2.0, language=2.0),
        )

        plan, _ = make_policy("capacity", {"preempt": True, "most_preempted": 1.0}).plan(view, {})

        assert set(plan.allocs) == {1, 3}
        assert "preempts" in plan.why[2]
        assert set(make_policy("capacity", {}).plan(view, {})[0].allocs) == {1, 2}

    @given(
        demand=st.lists(st.integers(0, 9), min_size=1, max_size=4),
        room=st.integers(0, 12),
    )
    def test_ideal_shares_are_max_min_fair(self, demand, room):
        view = make_view([], {"a": room}, tenants=tenants(**{str(i): 1.0 for i in demand}))

        share = ideal_shares(view, dict(enumerate(demand)))

        assert sum(share.values()) == pytest.approx(min(room, sum(demand)))
        for queue, wants in enumerate(demand):
            assert share[queue] <= wants + 1e-6
            if share[queue] < wants - 1e-6:
                assert share[queue] >= max(share.values()) - 1e-6


class TestShares:
    @settings(max_examples=60, deadline=None)
    @given(
        gangs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=8),
        room=st.integers(1, 8),
    )
    def test_envy_is_at_most_one_gang(self, gangs, room):
        view = make_view(
            [make_job(i, n, types=("a",), owner=owner) for i, (owner, n) in enumerate(gangs, 1)],
            {"a": room},
        )

        plan, _ = make_policy("drf", {}).plan(view, {})

        held = dict.fromkeys({owner for owner, _ in gangs}, 0)
        for job in view.jobs:
            held[job.owner] += job.gang if job.id in plan.allocs else 0
        free = room - sum(held.values())
        for job in view.jobs:
            if job.id in plan.allocs:
                continue
            assert job.gang > free
            largest = max(n for _, n in gangs)
            for other in held:
                assert held[job.owner] + largest + job.gang > held[other] or other == job.owner

    def test_a_type_of_which_there_is_little_counts_more(self):
        view = make_view(
            [
                make_job(1, 2, types=("a",), phase=RUNNING, owner=1),
                make_job(2, 1, types=("b",), phase=RUNNING, owner=2),
                make_job(3, 1, types=("a",), owner=1),
                make_job(4, 1, types=("a",), owner=2),
            ],
            {"a": 3, "b": 1},
        )

        assert started("drf", view) == {3}

    def test_who_has_had_much_lately_comes_after_who_has_not(self):
        busy = make_view(
            [make_job(1, 4, phase=RUNNING, owner=2, since=NOW - 9000)], {"a": 4}, now=NOW - 7200
        )
        policy = make_policy("fair", {})
        _, state = policy.plan(busy, {})
        _, state = policy.plan(replace(busy, now=NOW - 10), state)
        waiting = [
            make_job(2, 4, owner=2, submitted=NOW - 500),
            make_job(3, 4, owner=1, submitted=NOW - 5),
        ]

        plan, after = policy.plan(make_view(waiting, {"a": 4}), state)

        assert set(plan.allocs) == {3}
        assert after["usage"] == {"-4": pytest.approx(4 * 7190 * 0.5 ** (10 / 86_400))}

    def test_what_was_received_counts_half_after_the_half_life(self):
        policy = make_policy("fair", {"half_life": 100.0})
        state = {"at": NOW - 100.0, "usage": {"1": 80.0}}

        _, after = policy.plan(make_view([], {"a": 1}), state)

        assert after["usage"] == {"1": 40.0}


class TestPhilly:
    def level(self, waited, *, gang=2, within=Within.RACK):
        job = make_job(1, gang, types=("a",), since=NOW - waited, within=within)
        plan, _ = make_policy("philly", {"relax_seconds": 100.0}).plan(
            make_view([job], {"a": 8}), {}
        )
        return plan.allocs[1].single.level

    def test_locality_is_relaxed_step_by_step_but_never_below_what_the_job_asks(self):
        assert self.level(99) == "node"
        assert self.level(100) == "rack"
        assert self.level(9999) == "rack"
        assert self.level(9999, within=Within.NODE) == "node"
        assert self.level(0, gang=4) == "rack"

    def test_devices_are_taken_back_only_when_nearly_all_are_used(self):
        jobs = [
            make_job(1, 4, phase=RUNNING, tenant=1, since=NOW - 100),
            make_job(2, 4, phase=RUNNING, tenant=1, since=NOW - 900),
            make_job(3, 4, tenant=2),
        ]
        both = tenants(vision=1.0, language=1.0)

        def running(room):
            view = make_view(jobs, {"a": room}, tenants=both)
            return set(make_policy("philly", {}).plan(view, {})[0].allocs)

        assert running(11) == {1, 2}
        assert started("philly", make_view(jobs, {"a": 12}, tenants=both)) == {3}


class TestLeastFirst:
    def test_the_shortest_runs_and_the_long_one_is_suspended(self):
        view = make_view(
            [
                make_job(1, 4, phase=RUNNING, facts={"steps_left": 9000.0}),
                make_job(2, 3, facts={"steps_left": 300.0}),
                make_job(3, 1, facts={"steps_left": 200.0}),
            ],
            {"a": 4},
        )

        for name in ("srtf", "srsf"):
            plan, _ = make_policy(name, {}).plan(view, {})
            assert set(plan.allocs) == {2, 3}

    def test_service_counts_devices_too(self):
        view = make_view(
            [
                make_job(1, 4, facts={"steps_left": 1200.0}),
                make_job(2, 1, facts={"steps_left": 400.0}),
            ],
            {"a": 4},
        )

        assert started("srtf", view) == {1}
        assert started("srsf", view) == {2}


class TestSingularity:
    def test_basic_jobs_shrink_so_that_a_promise_is_kept(self):
        scale = Scale(minimum=1, maximum=4)
        view = make_view(
            [
                make_job(1, 4, phase=RUNNING, scale=scale),
                make_job(2, 2, tier="premium"),
            ],
            {"a": 4},
        )

        plan, _ = make_policy("singularity", {}).plan(view, {})

        assert plan.allocs[2].devices == 2
        assert plan.allocs[1].devices == 2

    def test_sizes_are_divisors_of_the_number_of_ranks(self):
        assert splices(make_job(1, 6, scale=Scale(minimum=1, maximum=6))) == [1, 2, 3, 6]
        assert splices(make_job(1, 6)) == [6]

    def test_who_is_promised_more_than_there_is_waits_for_admission(self):
        view = make_view(
            [
                make_job(1, 4, phase=RUNNING, tier="premium", facts={"last_run": NOW}),
                make_job(2, 2, tier="standard"),
            ],
            {"a": 4},
        )

        plan, _ = make_policy("singularity", {}).plan(view, {})

        assert set(plan.allocs) == {1}
        assert "promise" in plan.why[2]

    def test_who_is_below_his_promise_comes_before_who_is_above_it_and_both_before_the_rest(self):
        ran = {"last_run": NOW}
        view = make_view(
            [
                make_job(1, 4, tier="standard", phase=RUNNING, facts=ran),
                make_job(2, 4, tier="standard", facts=ran),
                make_job(3, 4, facts=ran),
            ],
            {"a": 4},
        )
        policy = make_policy("singularity", {})

        def running(first, second):
            had = {"at": NOW, "achieved": {"1": first, "2": second, "3": 0.0}}
            return set(policy.plan(view, had)[0].allocs)

        assert running(0.9, 0.5) == {2}
        assert running(0.65, 0.9) == {1}
        assert running(0.8, 0.9) == {1}

    def test_what_was_had_fades_over_the_window(self):
        view = make_view([make_job(1, 4, phase=RUNNING)], {"a": 4})
        policy = make_policy("singularity", {"window": 100.0})

        _, after = policy.plan(view, {"at": NOW - 100.0, "achieved": {"1": 0.0}})

        assert after["achieved"] == {"1": 0.5}


def test_what_a_queue_offers_is_in_the_order_in_which_it_was_served():
    view = make_view([make_job(i, 1, owner=i, submitted=NOW - i) for i in (1, 2, 3)], {"a": 3})

    plan, _ = make_policy("drf", {}).plan(view, {})

    assert all(a > b for a, b in pairwise(plan.order))


def test_a_gang_of_two_kinds_of_members_is_placed_whole():
    job = make_job(1, 2, types=("a",))
    other = make_job(2, 1, types=("b",)).demand.members[0]
    job = replace(job, demand=replace(job.demand, members=(*job.demand.members, other)))

    for name in ("drf", "capacity", "fair", "srtf", "backfill"):
        plan, _ = make_policy(name, {}).plan(make_view([job], {"a": 2, "b": 1}), {})
        none, _ = make_policy(name, {}).plan(make_view([job], {"a": 2, "b": 0}), {})

        assert plan.allocs[1] == Alloc(
            parts=(Part(n=2, type="a", level="node"), Part(n=1, type="b", level="node"))
        )
        assert none.order == ()
