"""What a driver may remember of plans, and the short way through an offer: both change nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.policies.plans import (
    IllegalPlanError,
    PlanChecker,
    check_plan,
    settle,
    settle_offer,
)
from scheduling.core.policy_interface import Alloc, JobPhase, Part, Plan, PolicyJob, Pool, Snapshot

ASKED = {n: Alloc(parts=(Part(n=n, type=None),)) for n in range(1, 6)}
DEMANDS = {
    (n, types): Demand(members=(MemberDemand(role="w", count=n, devices=1, device_types=types),))
    for n in range(1, 6)
    for types in ((), ("a",), ("b", "a"))
}


def job(index, n, types=(), alloc=None):
    return PolicyJob(
        id=index,
        owner=0,
        priority=0,
        job_class=JobClass.GUARANTEED,
        submitted=0.0,
        demand=DEMANDS[n, types],
        phase=JobPhase.QUEUED if alloc is None else JobPhase.RUNNING,
        since=0.0,
        alloc=alloc,
    )


def view(*jobs, pool=None):
    pool = pool or Pool(capacity={"a": 8, "b": 4})
    return Snapshot(
        now=0.0, round_seconds=60.0, round_number=1, seed=0, pool=pool, jobs=tuple(jobs)
    )


@given(
    waiting=st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from([(), ("a",), ("b", "a")])), max_size=8
    ),
    held=st.lists(st.tuples(st.integers(1, 2), st.sampled_from(["a", "b"])), max_size=2),
    strict=st.booleans(),
)
def test_the_short_way_through_an_offer_gives_what_the_long_one_gives(waiting, held, strict):
    running = [
        job(index, n, alloc=Alloc(parts=(Part(n=n, type=kind),)))
        for index, (n, kind) in enumerate(held)
    ]
    queued = [job(10 + index, n, types) for index, (n, types) in enumerate(waiting)]
    snapshot = view(*running, *queued)
    allocs = {j.id: j.alloc or ASKED[j.gang] for j in snapshot.jobs}
    plan = Plan(allocs=allocs, order=tuple(j.id for j in queued), strict=strict, offer=True)
    free = {"a": 8, "b": 4}
    for j in running:
        free[j.alloc.single.type] -= j.gang

    short = settle_offer(plan, {j.id: j for j in queued}, free)

    kept = {j.id: j.alloc for j in running}
    assert kept | short == settle(snapshot, plan)
    assert all(n >= 0 for n in free.values())


def test_what_was_found_right_is_not_looked_at_again_until_it_or_the_pool_changes():
    snapshot = view(job(1, 2), job(2, 3))
    right = Plan(allocs={1: ASKED[2], 2: ASKED[3]}, order=(1, 2), offer=True)
    check = PlanChecker()

    check(snapshot, right)
    check(snapshot, right)

    with pytest.raises(IllegalPlanError, match="job 2 cannot run on 2 devices"):
        check(snapshot, replace(right, allocs={1: ASKED[2], 2: ASKED[2]}))
    typed = replace(right, allocs={1: Alloc(parts=(Part(n=2, type="b"),))})
    check(snapshot, typed)
    with pytest.raises(IllegalPlanError, match="job 1: device type b does not exist"):
        check(replace(snapshot, pool=Pool(capacity={"a": 8})), typed)


@given(
    plans=st.lists(
        st.tuples(
            st.dictionaries(st.integers(1, 4), st.sampled_from([ASKED[2], ASKED[3]]), max_size=4),
            st.lists(st.integers(1, 4), max_size=3),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_the_checker_that_remembers_refuses_just_what_the_forgetful_one_refuses(plans):
    snapshot = view(job(1, 2), job(2, 3), job(3, 2, alloc=Alloc(parts=(Part(n=2, type="a"),))))
    check = PlanChecker()

    for allocs, order, offer in plans:
        plan = Plan(allocs=allocs, order=tuple(order), offer=offer)
        assert refused(check, snapshot, plan) == refused(check_plan, snapshot, plan)


def refused(check, snapshot, plan):
    try:
        check(snapshot, plan)
    except IllegalPlanError:
        return True
    return False
