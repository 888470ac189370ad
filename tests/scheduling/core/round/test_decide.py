"""One round as a pure function."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.jobspec import Demand, MemberDemand, Requirements, Within
from scheduling.core.messages import english
from scheduling.core.policies import POLICIES
from scheduling.core.round.decide import decide
from scheduling.core.values import (
    QueuedJob,
)
from tessera.reasons import ReasonCode
from tests.factories.rounds import (
    LANGUAGE,
    NOW,
    TYPES,
    VISION,
    cluster_snapshot,
    jobs_started_by,
    queued_job,
)


def test_a_gang_is_placed_whole_with_ranks_and_cells():
    result = decide(cluster_snapshot(queued_job(1, devices=4, count=2)))

    (start,) = result.starts
    assert [(m.role, m.rank, m.node_rank, len(m.leaves)) for m in start.members] == [
        ("worker", 0, 0, 4),
        ("worker", 1, 1, 4),
    ]
    leaves = [leaf.address for member in start.members for leaf in member.leaves]
    assert len(set(leaves)) == 8
    assert all(leaf.virtual.startswith("vision-a/") for m in start.members for leaf in m.leaves)
    assert result.reasons == {}


def test_a_guaranteed_job_beyond_the_guarantee_waits_though_devices_are_idle():
    first = cluster_snapshot(queued_job(1, devices=8))
    result = decide(cluster_snapshot(queued_job(2, devices=1), holding=jobs_started_by(first)))

    assert result.starts == ()
    assert result.reasons[2].code is ReasonCode.VC_GUARANTEE_IN_USE
    assert result.reasons[2].blocked_by == (1,)


def test_an_opportunistic_job_takes_what_others_leave_and_gives_it_back():
    borrowed = cluster_snapshot(*(queued_job(n, devices=8, borrow=True) for n in (1, 2, 3)))
    holding = jobs_started_by(borrowed)
    assert len(holding) == 3

    result = decide(cluster_snapshot(queued_job(9, devices=8, vc=LANGUAGE), holding=holding))

    assert result.starts == ()
    assert len(result.preemptions) == 1
    assert result.reasons[9].code is ReasonCode.WAITING_VICTIM_CHECKPOINT
    assert result.reasons[9].blocked_by == (result.preemptions[0].job_id,)


@pytest.mark.parametrize("saver", [1, 2, 3])
def test_of_equal_victims_goes_who_has_saved_last(saver):
    borrowed = cluster_snapshot(*(queued_job(n, devices=8, borrow=True) for n in (1, 2, 3)))
    holding = tuple(
        replace(held, since=NOW - 3600, saved=NOW - (60 if held.id == saver else 600))
        for held in jobs_started_by(borrowed)
    )

    result = decide(cluster_snapshot(queued_job(9, devices=8, vc=LANGUAGE), holding=holding))

    assert [victim.job_id for victim in result.preemptions] == [saver]


def test_a_victim_that_is_leaving_is_not_ordered_again_and_nobody_slips_in():
    borrowed = cluster_snapshot(*(queued_job(n, devices=8, borrow=True) for n in (1, 2, 3)))
    waiting = queued_job(9, devices=8, vc=LANGUAGE)
    (victim,) = decide(cluster_snapshot(waiting, holding=jobs_started_by(borrowed))).preemptions
    holding = jobs_started_by(borrowed, leaving=frozenset({victim.job_id}))

    result = decide(cluster_snapshot(waiting, queued_job(10, borrow=True), holding=holding))

    assert result.preemptions == ()
    assert result.starts == ()
    assert result.reasons[9].blocked_by == (victim.job_id,)


def test_within_a_virtual_cluster_the_higher_priority_preempts():
    first = cluster_snapshot(queued_job(1, devices=8, priority=10))

    result = decide(
        cluster_snapshot(queued_job(2, devices=8, priority=120), holding=jobs_started_by(first))
    )

    assert [p.job_id for p in result.preemptions] == [1]


def test_order_is_priority_then_arrival():
    result = decide(
        cluster_snapshot(
            queued_job(1, devices=8, priority=10),
            queued_job(2, devices=8, priority=120),
            queued_job(3, devices=8),
        )
    )

    assert [start.job_id for start in result.starts] == [2]


def test_without_backfill_the_head_holds_back_whoever_stands_behind_it():
    strict = replace(VISION, policy_args={"backfill": False})
    big, small = queued_job(2, devices=8), queued_job(3, devices=1)
    holding = jobs_started_by(cluster_snapshot(queued_job(1, devices=4)))

    free = decide(cluster_snapshot(big, small, holding=holding))
    held = decide(cluster_snapshot(big, small, holding=holding, vcs=(LANGUAGE, strict)))

    assert [start.job_id for start in free.starts] == [3]
    assert held.starts == ()
    assert held.reasons[3].code is ReasonCode.BEHIND_HIGHER_PRIORITY
    assert held.reasons[3].blocked_by == (2,)


def test_a_cap_counts_what_starts_in_the_same_round():
    capped = replace(VISION, max_devices_per_user=4)

    result = decide(
        cluster_snapshot(
            queued_job(1, devices=3),
            queued_job(2, devices=2),
            queued_job(3, devices=5),
            vcs=(LANGUAGE, capped),
        )
    )

    assert [start.job_id for start in result.starts] == [1]
    assert result.reasons[2].code is ReasonCode.USER_CAP_REACHED
    assert result.reasons[3].code is ReasonCode.EXCEEDS_USER_MAX


def test_idle_devices_go_to_the_tenant_that_borrows_least():
    mine = [queued_job(n, devices=8, borrow=True) for n in (1, 2, 3)]
    theirs = queued_job(4, devices=8, borrow=True, vc=LANGUAGE)

    result = decide(cluster_snapshot(*mine, theirs))

    assert 4 in {start.job_id for start in result.starts}
    assert len(result.starts) == 3


def test_idle_devices_are_split_by_what_the_tenants_are_guaranteed():
    mine = [queued_job(n, devices=1, borrow=True) for n in range(1, 25)]
    theirs = [queued_job(n, devices=1, borrow=True, vc=LANGUAGE) for n in range(25, 49)]

    result = decide(cluster_snapshot(*mine, *theirs))

    started = [start.job_id for start in result.starts]
    assert sum(n < 25 for n in started) * 2 == sum(n >= 25 for n in started)


def test_a_role_stays_in_one_rack_and_another_need_not():
    racks = tuple(
        PhysicalCell(type="a-rack", children=(PhysicalCell(address=a), PhysicalCell(address=b)))
        for a, b in (("n1", "n2"), ("n3", "n4"))
    )
    spec = ClusterSpec(
        cell_types={**TYPES, "a-rack": CellType(child="a-node", count=2)},
        physical=racks,
        virtual_clusters={
            "vision-a": VcSpec(quotas=(Quota(chain="a-rack", level="a-node", count=4),)),
            "language-a": VcSpec(),
        },
    )
    worker = MemberDemand(role="worker", count=2, devices=8, within=Within.RACK)
    server = MemberDemand(role="server", count=2, devices=8)
    asked = replace(queued_job(1), demand=Demand(members=(server, worker)))
    nodes = tuple(
        replace(node, name=name)
        for node, name in zip(cluster_snapshot().nodes * 2, ("n1", "n2", "n3", "n4"), strict=False)
    )

    (start,) = decide(replace(cluster_snapshot(asked), spec=spec, nodes=nodes)).starts

    found = {member.node for member in start.members if member.role == "worker"}
    assert found in ({"n1", "n2"}, {"n3", "n4"})


def test_a_waiting_job_is_told_the_smallest_change_that_lets_it_start():
    holding = jobs_started_by(cluster_snapshot(queued_job(1, devices=2), queued_job(2, devices=6)))

    result = decide(cluster_snapshot(queued_job(3, devices=4), holding=holding))

    reason = result.reasons[3]
    assert reason.code is ReasonCode.VC_GUARANTEE_IN_USE
    assert "is guaranteed 1 × a node" in reason.text
    assert reason.blocked_by[0] == 2
    assert english(reason.unblock[0]) == "One blocking job ends; it has 6 devices."


def test_a_type_that_is_not_there_is_refused_in_words_for_people():
    wanted = MemberDemand(role="worker", count=1, devices=1, device_types=("h100",))
    asked = replace(queued_job(1), demand=Demand(members=(wanted,)))

    reason = decide(cluster_snapshot(asked)).reasons[1]

    assert reason.code is ReasonCode.UNKNOWN_TYPE
    assert reason.text == "No node has devices of type h100."
    assert [english(step) for step in reason.unblock] == ["Use one of a."]


def test_a_cordoned_node_gets_nothing_new_and_a_bad_device_is_left_out():
    nodes = tuple(
        replace(node, placeable=node.name == "node-2") for node in cluster_snapshot().nodes
    )
    result = decide(
        cluster_snapshot(
            queued_job(1, devices=4, count=1), nodes=nodes, bad_devices=frozenset({("node-2", 0)})
        )
    )

    (start,) = result.starts
    assert start.members[0].node == "node-2"
    assert 0 not in start.members[0].device_indices


def test_devices_of_one_instance_stay_inside_the_cell_it_asks_for():
    holding = jobs_started_by(cluster_snapshot(queued_job(1, devices=1)))

    result = decide(
        cluster_snapshot(queued_job(2, devices=2, within=Within.PCIE), holding=holding)
    )

    (start,) = result.starts
    assert len({index // 2 for index in start.members[0].device_indices}) == 1


def test_a_job_that_wants_more_memory_than_its_devices_bring_is_told_so():
    member = MemberDemand(role="worker", count=1, devices=1, memory=64 << 30)
    hungry = replace(queued_job(1), demand=Demand(members=(member,)))

    result = decide(cluster_snapshot(hungry))

    assert result.reasons[1].code is ReasonCode.CPU_OR_MEMORY


def test_an_image_needs_a_node_with_an_engine():
    member = MemberDemand(role="worker", count=1, devices=1, image=True)
    wants_image = replace(queued_job(1), demand=Demand(members=(member,)))

    assert decide(cluster_snapshot(wants_image)).reasons[1].code is ReasonCode.NO_NODE_WITH_DOCKER
    assert decide(cluster_snapshot(wants_image, images_required=False)).starts


def with_container(**needs: Any) -> QueuedJob:
    member = MemberDemand(role="worker", count=1, devices=1, image=True, **needs)
    return replace(queued_job(1), demand=Demand(members=(member,)))


def test_a_container_with_rdma_runs_only_where_infiniband_is():
    job = with_container(rdma=True)
    plain = tuple(replace(node, has_docker=True) for node in cluster_snapshot().nodes)
    fast = (*plain[:-1], replace(plain[-1], has_rdma=True))

    nowhere = decide(cluster_snapshot(job, nodes=plain))
    (start,) = decide(cluster_snapshot(job, nodes=fast)).starts

    assert nowhere.reasons[1].code is ReasonCode.NO_NODE_WITH_RDMA
    assert start.members[0].node == fast[-1].name
    assert decide(cluster_snapshot(job, images_required=False)).starts


def test_requirements_on_gpus_select_nodes_and_name_what_is_missing():
    required = Requirements(driver="535.104", cuda="12.4", device_memory=40 << 30)
    old = Requirements(driver="535.54.03", cuda="12.2", device_memory=80 << 30)
    new = Requirements(driver="550", cuda="12.10", device_memory=40 << 30)
    member = MemberDemand(role="worker", count=1, devices=1, requires=required)
    job = replace(queued_job(1), demand=Demand(members=(member,)))
    silent = cluster_snapshot().nodes
    behind = tuple(replace(node, gpus=old) for node in silent)

    nowhere = decide(cluster_snapshot(job, nodes=behind)).reasons[1]
    unknown = decide(cluster_snapshot(job, nodes=silent)).reasons[1]
    ready = (*behind[:-1], replace(behind[-1], gpus=new))
    (start,) = decide(cluster_snapshot(job, nodes=ready)).starts

    assert nowhere.code is unknown.code is ReasonCode.GPU_REQUIREMENT
    assert nowhere.message.code == "driver-too-low"
    assert nowhere.message.params == {"least": "535.104", "most": "535.54.03"}
    assert unknown.message.code == "no-gpu-facts"
    assert start.members[0].node == ready[-1].name


def test_a_container_with_the_ipc_of_its_node_runs_only_on_a_node_of_its_tenant_alone():
    job = with_container(host_ipc=True)
    plain = tuple(replace(node, has_docker=True) for node in cluster_snapshot().nodes)
    shared = replace(plain[0], tenants=frozenset({job.tenant, job.tenant + 1}))
    own = replace(plain[-1], tenants=frozenset({job.tenant}))

    nowhere = decide(cluster_snapshot(job, nodes=(shared, *plain[1:])))
    (start,) = decide(cluster_snapshot(job, nodes=(shared, *plain[1:-1], own))).starts

    assert nowhere.reasons[1].code is ReasonCode.NODE_DEDICATED
    assert start.members[0].node == own.name


def test_a_policy_that_does_not_exist_is_replaced_and_said():
    result = decide(
        cluster_snapshot(queued_job(1), vcs=(LANGUAGE, replace(VISION, policy="no-such")))
    )

    assert [start.job_id for start in result.starts] == [1]
    assert "no-such" in result.fallbacks[0]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_every_policy_jobs_that_fit_start_at_once_and_run_on(policy: str):
    chosen = replace(VISION, policy=policy)
    fresh = [
        replace(queued_job(n, devices), submitted=NOW) for n, devices in ((1, 1), (2, 4), (3, 1))
    ]
    first = cluster_snapshot(*fresh, vcs=(LANGUAGE, chosen))

    begun, later = decide(first), decide(replace(first, queued=(), holding=jobs_started_by(first)))

    assert {start.job_id for start in begun.starts} == {1, 2, 3}
    assert (begun.fallbacks, later.fallbacks) == ((), ())
    assert later.preemptions == ()


JOBS = st.lists(
    st.builds(
        lambda devices, count, vc, priority, borrow: (devices, count, vc, priority, borrow),
        st.sampled_from([1, 2, 4, 8]),
        st.integers(1, 3),
        st.sampled_from([VISION, LANGUAGE]),
        st.sampled_from([10, 120]),
        st.booleans(),
    ),
    max_size=12,
)


@given(shapes=JOBS, seed=st.integers(0, 1000))
def test_the_order_of_the_queue_does_not_matter_and_no_device_is_given_twice(shapes, seed):
    queued = tuple(
        queued_job(n, devices, count, vc=vc, priority=priority, borrow=borrow)
        for n, (devices, count, vc, priority, borrow) in enumerate(shapes, 1)
    )
    shuffled = tuple(random.Random(seed).sample(queued, len(queued)))

    result = decide(cluster_snapshot(*queued))

    again = decide(cluster_snapshot(*shuffled))
    assert (again.starts, again.preemptions, dict(again.reasons)) == (
        result.starts,
        result.preemptions,
        dict(result.reasons),
    )
    leaves = [leaf.address for s in result.starts for m in s.members for leaf in m.leaves]
    assert len(leaves) == len(set(leaves))
    started = {start.job_id for start in result.starts}
    assert started | result.reasons.keys() == {j.id for j in queued}
    assert not started & result.reasons.keys()
    by_id = {j.id: j for j in queued}
    for start in result.starts:
        assert [len(m.leaves) for m in start.members] == [
            by_id[start.job_id].demand.members[0].devices
        ] * by_id[start.job_id].demand.members[0].count


@given(shapes=JOBS)
def test_a_round_after_a_round_starts_nothing_that_the_first_could_have_started(shapes):
    queued = tuple(
        queued_job(n, devices, count, vc=vc, priority=priority, borrow=borrow)
        for n, (devices, count, vc, priority, borrow) in enumerate(shapes, 1)
    )
    first = cluster_snapshot(*queued)
    holding = jobs_started_by(first)
    left = tuple(j for j in queued if j.id not in {h.id for h in holding})

    second = decide(cluster_snapshot(*left, holding=holding))

    assert second.starts == ()


def with_ports(one: QueuedJob, ports: int) -> QueuedJob:
    (member,) = one.demand.members
    return replace(one, demand=Demand(members=(replace(member, ports=ports),)))


def test_ports_are_given_out_in_order_and_who_lacks_them_holds_nobody_up():
    queued = [with_ports(queued_job(number), 4) for number in (1, 2, 3)]

    result = decide(cluster_snapshot(*queued, queued_job(4), ports_left=11))

    assert [start.job_id for start in result.starts] == [1, 2, 4]
    assert result.reasons[3].code is ReasonCode.BEHIND_HIGHER_PRIORITY
    assert result.reasons[3].text.endswith("it needs 5, and 1 are free.")


def test_nobody_has_to_leave_for_a_job_that_lacks_ports():
    first = jobs_started_by(cluster_snapshot(queued_job(1, devices=8)))
    second = with_ports(queued_job(2, devices=8, priority=20), 4)

    enough = decide(cluster_snapshot(second, holding=first, ports_left=5))
    short = decide(cluster_snapshot(second, holding=first, ports_left=4))

    assert [one.job_id for one in enough.preemptions] == [1]
    assert short.preemptions == ()
    assert short.reasons[2].code is ReasonCode.BEHIND_HIGHER_PRIORITY


def test_a_job_that_lacks_ports_lets_go_of_what_it_has_claimed():
    held = cluster_snapshot(queued_job(1, devices=8))
    second = with_ports(queued_job(2, devices=8, priority=20), 4)
    asked = decide(cluster_snapshot(second, holding=jobs_started_by(held)))
    waiting = replace(second, claims=asked.reasons[2].claims)

    result = decide(cluster_snapshot(waiting, queued_job(3, devices=8, priority=5), ports_left=4))

    assert waiting.claims
    assert [start.job_id for start in result.starts] == [3]
