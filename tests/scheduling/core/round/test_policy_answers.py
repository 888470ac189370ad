"""What the policies of virtual clusters may do to a live round, and what they may not."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from scheduling.common.time_limits import time_limit
from scheduling.core.jobspec import Demand, MemberDemand
from scheduling.core.policy_interface import (
    Alloc,
    Facts,
    Part,
    Plan,
    Reservation,
    Share,
    Snapshot,
    Terms,
)
from scheduling.core.reasons import Reason
from scheduling.core.round.decide import decide
from scheduling.core.round.gang_sizes import sized
from scheduling.core.round.policy_answers import RESIZE_AFTER_SECONDS, SUSPEND_AFTER_SECONDS
from scheduling.core.values import JobFacts, RunObservation
from tessera.messages import plain
from tessera.reasons import ReasonCode
from tests.factories.policies import making
from tests.factories.rounds import (
    LANGUAGE,
    NOW,
    VISION,
    VISION_MINE,
    cluster_snapshot,
    decide_with_policy,
    elastic_facts,
    held_job,
    jobs_started_by,
    plan_of_devices,
    queued_job,
)


def failing(_view: Snapshot) -> Plan:
    raise RuntimeError("no idea")


def hanging(_view: Snapshot) -> Plan:
    raise TimeoutError


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (failing, "failed with RuntimeError: no idea"),
        (hanging, "took too long"),
        (plan_of_devices(j1=99), "illegal plan: job 1 cannot run on 99 devices"),
        (plan_of_devices(j77=1), "illegal plan: job 77 is unknown"),
        (Plan(allocs={}, order=(1, 1)), "illegal plan: the order contains a job twice"),
    ],
)
def test_a_policy_that_fails_is_replaced_by_first_in_first_out_in_the_same_round(answer, words):
    result = decide_with_policy(answer, queued_job(1), queued_job(2), queued_job(3, vc=LANGUAGE))

    assert {start.job_id for start in result.starts} == {1, 2, 3}
    assert words in result.policy_faults[VISION_MINE.id]
    assert result.policy_faults[LANGUAGE.id] == ""
    assert result.fallbacks[0].endswith("first in, first out instead")
    assert VISION_MINE.id not in result.policy_states


def test_the_time_of_a_policy_is_bounded_by_whoever_has_the_clock():
    @contextmanager
    def limit():
        try:
            yield
        finally:
            raise TimeoutError

    result = decide(
        cluster_snapshot(queued_job(1), vcs=(LANGUAGE, VISION_MINE)),
        limit=limit,
        make=making(plan_of_devices(j1=1)),
    )

    assert "took too long" in result.policy_faults[VISION_MINE.id]
    assert [start.job_id for start in result.starts] == [1]


def test_a_plan_that_shares_a_device_is_refused_with_the_reason():
    shared = Alloc(parts=(Part(n=1, type="a"),), share=Share(fraction=0.5))
    plan = Plan(allocs={1: shared, 2: shared}, order=(1, 2))

    result = decide_with_policy(plan, queued_job(1), queued_job(2))

    assert "jobs 1, 2 would share a device" in result.policy_faults[VISION_MINE.id]
    assert len(result.starts) == 2


def test_an_elastic_job_starts_at_the_size_that_its_policy_gives_it():
    known = {1: elastic_facts(1, 16, 8)}
    for size, members in ((4, [(4,)]), (8, [(8,)]), (1, [(1,)])):
        result = decide_with_policy(plan_of_devices(j1=size), queued_job(1, 8), known=known)

        (start,) = result.starts
        assert [(len(m.leaves),) for m in start.members] == members
        assert (start.demand is None) == (size == 8)


def test_a_size_beyond_one_instance_is_several_instances_with_ranks():
    language = replace(LANGUAGE, policy="mine")

    result = decide_with_policy(
        plan_of_devices(j1=16),
        queued_job(1, 8, vc=LANGUAGE),
        vcs=(language, VISION),
        known={1: elastic_facts(4, 16, 8)},
    )

    (start,) = result.starts
    assert [(m.rank, m.node_rank, len(m.leaves)) for m in start.members] == [(0, 0, 8), (1, 1, 8)]
    assert start.demand is not None
    assert start.demand.devices == 16


def test_a_resize_is_a_notice_to_leave_and_nothing_takes_its_place_meanwhile():
    one = held_job(4, ran=RESIZE_AFTER_SECONDS)
    known = {1: elastic_facts(1, 8, 4)}

    result = decide_with_policy(plan_of_devices(j1=8), holding=(one,), known=known)

    (leaving,) = result.preemptions
    assert (leaving.job_id, leaving.for_job) == (1, 0)
    assert leaving.rule == (
        "Its policy gives it 8 devices of type a instead of 4 devices of type a"
    )
    assert result.starts == ()


def test_a_job_is_not_resized_again_before_it_has_run_for_a_while():
    known = {1: elastic_facts(1, 8, 4)}

    fresh = decide_with_policy(
        plan_of_devices(j1=8), holding=(held_job(4, ran=RESIZE_AFTER_SECONDS - 1),), known=known
    )

    assert fresh.preemptions == ()


def test_a_job_that_is_slow_to_start_is_resized_less_often():
    slow = {1: replace(elastic_facts(1, 8, 4), start_seconds=120.0)}

    early = decide_with_policy(
        plan_of_devices(j1=8), holding=(held_job(4, ran=1199.0),), known=slow
    )
    late = decide_with_policy(
        plan_of_devices(j1=8), holding=(held_job(4, ran=1200.0),), known=slow
    )

    assert early.preemptions == ()
    assert len(late.preemptions) == 1


def test_a_job_that_its_policy_leaves_out_is_suspended_but_not_at_once():
    early = decide_with_policy(
        plan_of_devices(), holding=(held_job(4, ran=SUSPEND_AFTER_SECONDS - 1),)
    )
    late = decide_with_policy(plan_of_devices(), holding=(held_job(4, ran=SUSPEND_AFTER_SECONDS),))

    assert early.preemptions == ()
    assert [p.job_id for p in late.preemptions] == [1]


def test_a_job_that_must_not_be_preempted_is_safe_from_its_policy():
    known = {1: JobFacts(terms=Terms(preemptible=False))}

    result = decide_with_policy(plan_of_devices(), holding=(held_job(4, ran=1e6),), known=known)

    assert result.preemptions == ()
    assert "is running and cannot be preempted" in result.policy_faults[VISION_MINE.id]


def test_policies_are_asked_while_something_runs_though_nobody_waits():
    seen: list[Snapshot] = []

    def look(view: Snapshot) -> Plan:
        seen.append(view)
        return plan_of_devices(j1=4)

    facts = Facts(gpu_seconds=77.0, restarts=2)
    run = RunObservation(type="a", nodes=1, devices=4, seconds=10.0, steps=20, samples=640.0)
    result = decide_with_policy(
        look,
        holding=(held_job(4, ran=9.0),),
        known={1: JobFacts(facts=facts, seen=(run,), start_seconds=12.0)},
    )

    (view,) = seen
    assert result.preemptions == ()
    assert view.jobs[0].alloc == Alloc(parts=(Part(n=4, type="a", level="node"),))
    assert view.jobs[0].facts == facts
    assert view.pool.capacity == {"a": 8}
    assert view.pool.borrow == {"a": 20}
    assert (view.pool.types["a"].nodes, view.pool.types["a"].node_devices) == (3, 8)
    assert view.model.restart_seconds(view.jobs[0]) == 12.0


def test_a_job_that_is_rejected_or_has_a_reservation_says_so():
    reason = Reason(
        code=ReasonCode.DEADLINE_INFEASIBLE, message=plain("It cannot be done in time.")
    )
    plan = Plan(
        allocs={},
        order=(),
        reject={1: reason},
        hold={2: Reservation(time=NOW + 600, n=8, type="a")},
        why={3: "Not now."},
        wake=NOW + 42.0,
    )

    result = decide_with_policy(plan, queued_job(1), queued_job(2, 8), queued_job(3))

    assert [(r.job_id, r.reason) for r in result.rejections] == [(1, reason)]
    assert result.reasons[2].code is ReasonCode.RESERVATION
    assert "starting in about 10 min" in result.reasons[2].text
    assert (result.reasons[3].code, result.reasons[3].text) == (
        ReasonCode.HELD_BY_POLICY, "Not now.",
    )  # fmt: skip
    assert 1 not in result.reasons
    assert result.wake == NOW + 42.0


def test_a_policy_decides_on_which_of_its_types_a_job_runs_but_an_offer_leaves_it_open():
    member = MemberDemand(role="worker", count=1, devices=2, device_types=("b", "a"))
    asked = replace(queued_job(1), demand=Demand(members=(member,)))

    meant = decide_with_policy(plan_of_devices(j1=2), asked)
    offered = decide(cluster_snapshot(asked))

    assert len(meant.starts) == len(offered.starts) == 1
    assert meant.starts[0].demand is None


@pytest.mark.parametrize(
    ("count", "devices", "parts", "shape"),
    [
        (1, 4, [(2, "a")], [(1, 2)]),
        (1, 4, [(8, "a")], [(2, 4)]),
        (2, 4, [(4, "a")], [(1, 4)]),
        (1, 4, [(6, "a")], None),
        (1, 4, [(4, "a"), (8, "b")], [(1, 4), (2, 4)]),
    ],
)
def test_shapes_of_sizes(count, devices, parts, shape):
    demand = Demand(members=(MemberDemand(role="worker", count=count, devices=devices, cpus=8.0),))

    found = sized(demand, Alloc(parts=tuple(Part(n=n, type=kind) for n, kind in parts)))

    assert (found and [(m.count, m.devices) for m in found.members]) == shape
    if found and shape == [(1, 2)]:
        assert found.members[0].cpus == 4.0


@pytest.mark.parametrize("where", ["the main thread", "another thread"])
def test_a_policy_cannot_make_a_round_wait_for_ever(where):
    def spin(_view: Snapshot) -> Plan:
        while True:
            pass

    def round_() -> Any:
        limit = time_limit(0.2)
        return decide(
            cluster_snapshot(queued_job(1), vcs=(LANGUAGE, VISION_MINE)),
            limit=limit,
            make=making(spin),
        )

    if where == "another thread":
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(round_).result(timeout=120)
    else:
        result = round_()

    assert "took too long" in result.policy_faults[VISION_MINE.id]
    assert len(result.starts) == 1


def test_what_a_job_borrows_is_not_taken_by_the_policy_of_its_own_virtual_cluster():
    (lent,) = jobs_started_by(cluster_snapshot(queued_job(1, 4, borrow=True)))

    result = decide_with_policy(
        plan_of_devices(j2=1), queued_job(2), holding=(replace(lent, since=NOW - 1e6),)
    )

    assert result.preemptions == ()
    assert [start.job_id for start in result.starts] == [2]


@pytest.mark.parametrize(
    ("policy", "args"),
    [
        ("backfill", {}),
        ("tessera", {}),
        ("tiresias", {}),
        ("fifo", {"wrap": {"reserve-head": {"patience": 0.0}}}),
    ],
)
def test_no_policy_keeps_devices_for_a_job_whose_owner_holds_as_many_as_he_may(policy, args):
    vc = replace(VISION, policy=policy, policy_args=args, max_devices_per_user=4)
    alice, bob = queued_job(2, 4), replace(queued_job(3, 4), owner=99, owner_name="bob")
    begun = jobs_started_by(cluster_snapshot(queued_job(1, 4), vcs=(LANGUAGE, vc)))

    result = decide(cluster_snapshot(alice, bob, vcs=(LANGUAGE, vc), holding=begun))

    assert [start.job_id for start in result.starts] == [bob.id]
    assert result.reasons[alice.id].code is ReasonCode.USER_CAP_REACHED


def test_an_elastic_job_that_a_cap_leaves_less_for_is_told_to_its_policy():
    vc = replace(VISION_MINE, max_devices_per_user=4)
    known = {2: elastic_facts(1, 4, 4)}
    begun = jobs_started_by(cluster_snapshot(queued_job(1, 2), vcs=(LANGUAGE, vc)))

    result = decide_with_policy(
        plan_of_devices(j1=2, j2=2),
        queued_job(2, 4),
        vcs=(LANGUAGE, vc),
        holding=begun,
        known=known,
    )

    assert [start.job_id for start in result.starts] == [2]


def test_an_elastic_job_that_could_start_small_waits_for_its_turn_under_the_cap():
    vc = replace(VISION_MINE, max_devices_per_user=3)
    begun = jobs_started_by(cluster_snapshot(queued_job(1, 2), vcs=(LANGUAGE, vc)))
    known = {2: elastic_facts(2, 4, 4)}

    result = decide_with_policy(
        plan_of_devices(j1=2), queued_job(2, 4), vcs=(LANGUAGE, vc), holding=begun, known=known
    )

    assert result.reasons[2].code is ReasonCode.USER_CAP_REACHED


@pytest.mark.parametrize(
    ("left", "bounds", "size"), [(5, (1, 8), 5), (5, (6, 8), None), (8, (1, 8), 8), (3, (2, 4), 3)]
)
def test_an_elastic_job_starts_at_the_largest_size_that_a_cap_leaves(left, bounds, size):
    vc = replace(VISION_MINE, max_devices_per_user=left)
    least, most = bounds

    result = decide_with_policy(
        plan_of_devices(j1=most),
        queued_job(1, most),
        vcs=(LANGUAGE, vc),
        known={1: elastic_facts(least, most, most)},
    )

    begun = [len(m.leaves) for start in result.starts for m in start.members]
    assert begun == ([size] if size else [])


def test_a_member_s_own_cap_and_the_cap_on_borrowing_cut_elastic_jobs_down_too():
    vc = replace(VISION_MINE, max_opportunistic_devices=3)
    mine = replace(queued_job(1, 4), user_cap=2)
    lent = queued_job(2, 4, borrow=True)
    known = {1: elastic_facts(1, 4, 4), 2: elastic_facts(1, 4, 4)}

    result = decide_with_policy(
        plan_of_devices(j1=4, j2=4), mine, lent, vcs=(LANGUAGE, vc), known=known
    )

    assert {start.job_id: len(start.members[0].leaves) for start in result.starts} == {1: 2, 2: 3}


def test_what_a_start_leaves_of_a_cap_is_all_that_the_next_one_may_have():
    language = replace(LANGUAGE, policy="mine", max_devices_per_user=6)
    jobs = [
        queued_job(1, 4, vc=LANGUAGE),
        queued_job(2, 4, vc=LANGUAGE),
        queued_job(3, 8, vc=LANGUAGE),
    ]
    known = {1: elastic_facts(2, 4, 4), 2: elastic_facts(2, 4, 4), 3: elastic_facts(2, 8, 8)}

    result = decide_with_policy(
        plan_of_devices(j1=4, j2=4, j3=8), *jobs, vcs=(language, VISION), known=known
    )

    assert {start.job_id: len(start.members[0].leaves) for start in result.starts} == {1: 4, 2: 2}
    assert result.reasons[3].code is ReasonCode.USER_CAP_REACHED


@pytest.mark.parametrize(
    ("caps", "size"), [((4, None), 4), ((6, None), 6), ((8, 7), 7), ((None, None), 8)]
)
def test_a_job_leaves_to_grow_only_as_far_as_caps_allow(caps, size):
    of_all, own = caps
    vc = replace(VISION_MINE, max_devices_per_user=of_all)
    one = replace(held_job(4, ran=RESIZE_AFTER_SECONDS), user_cap=own)
    known = {1: replace(elastic_facts(2, 8, 8), asked=queued_job(1, 8).demand)}

    result = decide_with_policy(
        plan_of_devices(j1=8), vcs=(LANGUAGE, vc), holding=(one,), known=known
    )

    grown = f"Its policy gives it {size} devices of type a instead of 4 devices of type a"
    assert [leaving.rule for leaving in result.preemptions] == ([grown] if size > 4 else [])


def test_two_jobs_do_not_both_leave_to_grow_into_what_a_cap_leaves_for_one():
    language = replace(LANGUAGE, policy="mine", max_devices_per_user=9)
    begun = jobs_started_by(
        cluster_snapshot(queued_job(1, 2, vc=LANGUAGE), queued_job(2, 2, vc=LANGUAGE))
    )
    known = {n: replace(elastic_facts(2, 8, 8), asked=queued_job(n, 8).demand) for n in (1, 2)}

    result = decide_with_policy(
        plan_of_devices(j1=8, j2=8),
        vcs=(language, VISION),
        holding=tuple(replace(one, since=NOW - RESIZE_AFTER_SECONDS) for one in begun),
        known=known,
    )

    assert [leaving.rule for leaving in result.preemptions] == [
        "Its policy gives it 7 devices of type a instead of 2 devices of type a"
    ]


def test_jobs_of_two_virtual_clusters_do_not_both_leave_to_grow_into_their_owner_s_cap():
    language, vision = (replace(vc, policy="mine") for vc in (LANGUAGE, VISION))
    jobs = (replace(queued_job(n, 2, vc=vc), tenant=1) for n, vc in ((1, language), (2, vision)))
    begun = jobs_started_by(cluster_snapshot(*jobs, vcs=(language, vision)))
    known = {n: replace(elastic_facts(2, 8, 8), asked=queued_job(n, 8).demand) for n in (1, 2)}

    def all_of_it(view: Snapshot) -> Plan:
        return plan_of_devices(**{f"j{one.id}": 8 for one in view.jobs})

    result = decide_with_policy(
        all_of_it,
        vcs=(language, vision),
        holding=tuple(replace(o, since=NOW - RESIZE_AFTER_SECONDS, user_cap=9) for o in begun),
        known=known,
    )

    assert [leaving.rule for leaving in result.preemptions] == [
        "Its policy gives it 7 devices of type a instead of 2 devices of type a"
    ]
