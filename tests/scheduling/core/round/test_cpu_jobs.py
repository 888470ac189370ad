"""Jobs without devices in a round: placement, preemption, fairness; no other job changes."""

from collections import Counter
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.canaries import VIRTUAL_CLUSTER
from scheduling.core.cpu_pools import (
    Amount,
    CpuPool,
    PoolLease,
    fitted,
    in_use,
    pool_of,
    sizes_of,
)
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.round.cpu_jobs import (
    AGED_SECONDS,
    MOST_AGED,
    MOST_TRIALS,
    RESERVED_SECONDS,
    amounts_of,
)
from scheduling.core.round.decide import decide
from scheduling.core.round.replaying import replay_round
from scheduling.core.round.stored import read_stored
from scheduling.core.round_result import RoundResult, Start
from scheduling.core.values import ClusterSnapshot, QueuedJob
from scheduling.rounds.services.evidence import spelled_round
from tessera.reasons import ReasonCode
from tests.factories.cpu_jobs import cpu_job, cpu_work, held, pools, snapshot_of
from tests.factories.rounds import LANGUAGE, NOW, VISION, cluster_snapshot, queued_job
from tests.strategies.waiting_clusters import clusters

GIB = 1 << 30
OF_CPU_JOBS = {"cpu_starts", "cpu_preemptions", "reasons"}


def started(result: RoundResult) -> dict[int, list[str]]:
    return {one.job_id: [member.node for member in one.members] for one in result.cpu_starts}


def test_a_pool_is_what_the_shares_of_the_devices_leave():
    pool = pool_of("n", cpus=64, memory=512 * GIB, shares=[(6.0, 60 * GIB)] * 8)

    assert pool == CpuPool(node="n", cpus=16.0, memory=32 * GIB)
    assert pool_of("n", cpus=10, memory=GIB + 2, shares=[(10 / 3, (GIB + 2) // 3)] * 3) is None
    assert pool_of("n", cpus=10, memory=0, shares=[]) is None
    assert pool_of("n", cpus=4, memory=GIB, shares=[(8.0, GIB // 2)]) is None


def test_a_job_without_devices_takes_the_pool_that_it_fills_best():
    found = decide(snapshot_of(cpu_job(1, 3.0), pooled=pools(8, 4, 0)))

    (start,) = found.cpu_starts
    (member,) = start.members
    assert (member.node, member.role, member.rank, member.node_rank) == ("node-2", "loader", 0, 0)
    assert (member.leaves, member.device_indices) == ((), ())
    assert found.starts == ()
    assert found.reasons == {}


def test_a_gang_starts_as_a_whole_or_waits_with_the_numbers():
    found = decide(snapshot_of(cpu_job(1, 4.0, 3), cpu_job(2, 4.0, 4), pooled=pools(8, 8, 0)))

    assert started(found) == {2: ["node-1", "node-1", "node-2", "node-2"]} or list(
        started(found)
    ) == [1]
    (waiting,) = found.reasons.values()
    assert waiting.code is ReasonCode.WAITING_FOR_CPUS
    assert waiting.message.params["n"] in (3, 4)
    assert waiting.unblock


def test_memory_alone_lets_a_job_wait():
    full = held(cpu_job(7, 1.0, memory=60 * GIB), "node-1")
    found = decide(snapshot_of(cpu_job(1, memory=8 * GIB), pooled=pools(8), cpu_holding=(full,)))

    assert found.reasons[1].code is ReasonCode.WAITING_FOR_CPUS
    assert found.reasons[1].blocked_by == (7,)
    assert (found.reasons[1].message.params["free"], found.reasons[1].message.params["left"]) == (
        7.0,
        4.0,
    )


@pytest.mark.parametrize(
    ("pooled", "text"),
    [((), "all CPUs and memory of the suitable nodes"), (pools(2, 2), "the largest has 2 CPUs")],
)
def test_a_job_that_fits_in_no_empty_pool_never_starts(
    pooled: tuple[CpuPool, ...], text: str
) -> None:
    found = decide(cluster_snapshot(cpu_queued=(cpu_job(1, 3.0),), cpu_pools=pooled))

    assert found.reasons[1].code is ReasonCode.NO_NODE_WITH_CPUS
    assert text in found.reasons[1].text


def test_closed_nodes_take_no_job_and_gates_stay_closed():
    nodes = tuple(
        replace(node, placeable=node.name == "node-3") for node in cluster_snapshot().nodes
    )
    found = decide(
        snapshot_of(cpu_job(1), cpu_job(2, held=True), pooled=pools(8, 8, 0), nodes=nodes)
    )

    assert {job: reason.code for job, reason in found.reasons.items()} == {
        1: ReasonCode.CELLS_UNHEALTHY,
        2: ReasonCode.HELD,
    }


def test_a_guaranteed_job_preempts_the_fewest_opportunistic_ones_and_keeps_the_room():
    small = [held(cpu_job(n, 1.0, borrow=True), "node-1", since=n) for n in (11, 12)]
    large = held(cpu_job(13, 6.0, borrow=True), "node-1", since=1.0)
    waiting = (cpu_job(1, 8.0), cpu_job(2, 2.0, borrow=True))

    found = decide(snapshot_of(*waiting, pooled=pools(10), cpu_holding=(*small, large)))

    assert [(one.job_id, one.for_job) for one in found.cpu_preemptions] == [(13, 1)]
    assert found.reasons[1].code is ReasonCode.WAITING_VICTIM_CHECKPOINT
    assert found.reasons[1].blocked_by == (13,)
    assert found.cpu_starts == ()  # 2 CPUs are free, and reserved for job 1
    leaving = replace(large, job=replace(large.job, leaving=True))
    again = decide(snapshot_of(*waiting, pooled=pools(10), cpu_holding=(*small, leaving)))
    assert again.cpu_preemptions == ()
    assert again.cpu_starts == ()
    assert again.reasons[1].code is ReasonCode.WAITING_VICTIM_CHECKPOINT


def test_guaranteed_jobs_are_not_preempted_for_others():
    full = held(cpu_job(7, 8.0), "node-1")
    found = decide(snapshot_of(cpu_job(1, priority=1000), pooled=pools(8), cpu_holding=(full,)))

    assert found.cpu_preemptions == ()
    assert found.reasons[1].code is ReasonCode.WAITING_FOR_CPUS


def test_a_smaller_pool_lets_the_least_important_jobs_leave():
    jobs = (
        held(cpu_job(11, 4.0), "node-1", since=1.0),
        held(cpu_job(12, 2.0, borrow=True), "node-1", since=0.0),
        held(cpu_job(13, 2.0), "node-1", since=9.0),
        held(cpu_job(14, 2.0, borrow=True), "node-2", since=9.0),
    )
    found = decide(snapshot_of(pooled=pools(5, 2), cpu_holding=jobs))

    assert [one.job_id for one in found.cpu_preemptions] == [12, 13]
    assert all(one.for_job == 0 for one in found.cpu_preemptions)


def test_the_tenant_with_the_smaller_dominant_share_is_first():
    """Vision holds memory, language CPUs; each counts by the resource of which it has more."""
    vcs = (LANGUAGE, VISION)
    holding = (
        held(cpu_job(11, 1.0, memory=32 * GIB, vc=VISION), "node-1"),
        held(cpu_job(12, 8.0, memory=GIB, vc=LANGUAGE), "node-2"),
    )
    waiting = (cpu_job(1, 8.0, vc=VISION), cpu_job(2, 8.0, vc=LANGUAGE))
    pooled = pools(8, 8, 8)  # 1/6 of the memory for vision, weight 1; 1/3 of the CPUs, weight 2

    found = decide(snapshot_of(*waiting, pooled=pooled, cpu_holding=holding, vcs=vcs))
    assert list(started(found)) == [2]  # 1/6 per weight each: the first by name of the tenant

    more = held(cpu_job(13, 0.5, vc=LANGUAGE), "node-1")
    found = decide(snapshot_of(*waiting, pooled=pooled, cpu_holding=(*holding, more), vcs=vcs))
    assert list(started(found)) == [1]


def test_the_oldest_job_does_not_starve_behind_small_ones():
    old = cpu_job(1, 8.0, submitted=NOW - AGED_SECONDS)
    small = held(cpu_job(7, 1.0), "node-1")
    found = decide(
        snapshot_of(
            cpu_job(2, 1.0), old, cpu_job(3, borrow=True), pooled=pools(8), cpu_holding=(small,)
        )
    )

    assert found.cpu_starts == ()
    assert found.reasons[1].code is ReasonCode.WAITING_FOR_CPUS
    assert {found.reasons[job].blocked_by for job in (2, 3)} == {(1,)}
    young = replace(old, submitted=NOW - AGED_SECONDS + 1)
    found = decide(snapshot_of(cpu_job(2, 1.0), young, pooled=pools(8), cpu_holding=(small,)))
    assert list(started(found)) == [2]


def test_a_reservation_leaves_the_other_nodes_to_younger_jobs():
    """The old job needs two whole nodes; those of which the most is free are reserved."""
    old = cpu_job(1, 8.0, 2, submitted=NOW - AGED_SECONDS)
    small = [held(cpu_job(7, 1.0), "node-1"), held(cpu_job(8, 4.0), "node-2")]
    found = decide(
        snapshot_of(
            cpu_job(2, 4.0), old, cpu_job(3, 2.0), pooled=pools(8, 8, 8), cpu_holding=tuple(small)
        )
    )

    assert started(found) == {2: ["node-2"]}
    assert found.reasons[1].code is ReasonCode.WAITING_FOR_CPUS
    assert found.reasons[3].code is ReasonCode.BEHIND_HIGHER_PRIORITY
    assert found.reasons[3].blocked_by == (1,)


@pytest.mark.parametrize(
    ("hours", "is_reserved"), [(0.9, True), (1.5, False), (2.5, True), (5.0, False)]
)
def test_a_job_behind_one_that_never_ends_reserves_in_turns(hours: float, is_reserved: bool):
    old = cpu_job(1, 8.0, submitted=NOW - AGED_SECONDS - hours * RESERVED_SECONDS)
    endless = held(cpu_job(7, 0.1), "node-1")
    younger = cpu_job(4, 8.0, submitted=old.submitted + 1.0)  # has no turn of its own
    found = decide(
        snapshot_of(cpu_job(2, 1.0), old, younger, pooled=pools(8), cpu_holding=(endless,))
    )

    assert bool(found.cpu_starts) is not is_reserved


def test_jobs_that_fit_nowhere_do_not_hide_the_oldest_one_of_another_tenant():
    hostile = tuple(
        cpu_job(100 + n, 9.0 + n, vc=LANGUAGE, submitted=NOW - 2 * AGED_SECONDS)
        for n in range(MOST_AGED + MOST_TRIALS + 2)
    )
    old = cpu_job(1, 8.0, submitted=NOW - AGED_SECONDS)
    small = held(cpu_job(7, 1.0), "node-1")
    found = decide(snapshot_of(*hostile, old, cpu_job(2), pooled=pools(8), cpu_holding=(small,)))

    assert found.reasons[2].blocked_by == (1,)
    codes = Counter(found.reasons[job.id].code for job in hostile)
    assert codes[ReasonCode.NO_NODE_WITH_CPUS] == MOST_TRIALS
    assert codes[ReasonCode.BEHIND_HIGHER_PRIORITY] == MOST_AGED + 2


def test_a_job_in_a_container_does_not_use_a_node_without_isolation_that_has_no_owner():
    """It would not take the node, and a plain job of a later tenant could read its data."""
    role = replace(cpu_job(1).demand.companions[0], image=True)
    nodes = tuple(replace(node, has_docker=True) for node in without_isolation(None))
    contained = replace(cpu_job(1), demand=Demand(members=(), companions=(role,)))
    alone = (VISION,)
    found = decide(
        snapshot_of(contained, cpu_job(2), nodes=nodes, vcs=alone, images_required=True)
    )

    assert list(started(found)) == [2]
    assert found.cpu_starts[0].members[0].isolation == "none"
    assert found.reasons[1].code is ReasonCode.NODE_NOT_ISOLATED


def test_the_tenant_of_canary_jobs_is_no_other_tenant():
    system = replace(LANGUAGE, name=VIRTUAL_CLUSTER)
    found = decide(snapshot_of(cpu_job(1), nodes=without_isolation(None), vcs=(VISION, system)))

    assert list(started(found)) == [1]


def without_isolation(owner: int | None) -> Any:
    return tuple(replace(node, isolation="none", owner=owner) for node in cluster_snapshot().nodes)


@pytest.mark.parametrize(("owner", "starts"), [(None, False), (1, True), (2, False)])
def test_a_node_without_isolation_takes_only_jobs_of_its_owner(
    owner: int | None, starts: bool
) -> None:
    found = decide(snapshot_of(cpu_job(1), nodes=without_isolation(owner)))

    assert bool(found.cpu_starts) is starts
    if not starts:
        assert found.reasons[1].code is ReasonCode.NODE_NOT_ISOLATED


def test_a_node_without_isolation_and_devices_belongs_to_the_first_tenant():
    bare = replace(cluster_snapshot().nodes[0], name="bare", isolation="none")
    pool = (CpuPool(node="bare", cpus=8.0, memory=8 * GIB),)
    found = decide(
        snapshot_of(
            cpu_job(1), cpu_job(2, vc=LANGUAGE), pooled=pool, nodes=(*without_isolation(2), bare)
        )
    )

    assert len(found.cpu_starts) == 1
    assert found.cpu_starts[0].members[0].isolation == "none"
    (reason,) = found.reasons.values()
    assert reason.code is ReasonCode.NODE_NOT_ISOLATED


def test_a_stored_round_with_jobs_without_devices_replays():
    snapshot = snapshot_of(
        cpu_job(1), cpu_job(2, 8.0), pooled=pools(8), cpu_holding=(held(cpu_job(7), "node-1"),)
    )
    result = decide(snapshot)
    stored, decided = read_stored(orjson.loads(spelled_round(snapshot, result)))

    assert stored == snapshot
    assert decided == result
    assert replay_round(stored, decided) == result


def test_a_cluster_without_such_jobs_stores_the_same_bytes():
    snapshot = cluster_snapshot(queued_job(1))
    text = spelled_round(snapshot, decide(snapshot))

    assert b"cpu_" not in text.replace(b"cpus_per_device", b"")


# -- properties


def leases_of(start: Start, job: QueuedJob) -> list[PoolLease]:
    return [
        PoolLease(node=member.node, cpus=amount.cpus, memory=amount.memory)
        for member, amount in zip(start.members, amounts_of(job.demand), strict=True)
    ]


@given(cpu_work())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_no_round_leases_more_than_a_pool_has(work: dict[str, Any]) -> None:
    snapshot = cluster_snapshot(**work)
    found = decide(snapshot)

    sizes = sizes_of(snapshot.cpu_pools)
    before = [lease for one in snapshot.cpu_holding for lease in one.leases]
    jobs = {job.id: job for job in snapshot.cpu_queued}
    new = [lease for one in found.cpu_starts for lease in leases_of(one, jobs[one.job_id])]
    used, taken = in_use([*before, *new]), in_use(new)
    for node in taken:
        assert used[node].within(sizes[node])
    # All that remains after the departures fits in the pools.
    gone = {one.job_id for one in found.cpu_preemptions}
    gone |= {one.job.id for one in snapshot.cpu_holding if one.job.leaving}
    staying = [x for one in snapshot.cpu_holding if one.job.id not in gone for x in one.leases]
    for node, amount in in_use([*staying, *new]).items():
        assert amount.within(sizes.get(node, Amount(0, 0)))
    # Each waiting job starts as a whole or has a reason, and nobody both leaves and stays.
    begun = Counter(one.job_id for one in found.cpu_starts)
    assert begun.keys() | found.reasons.keys() == jobs.keys()
    assert not begun.keys() & found.reasons.keys()
    assert all(len(one.members) == jobs[one.job_id].demand.instances for one in found.cpu_starts)
    assert not {one.job_id for one in found.cpu_preemptions} & {
        one.job.id for one in snapshot.cpu_holding if one.job.leaving
    }
    for one in found.cpu_preemptions:
        if one.for_job:
            victim = next(x.job for x in snapshot.cpu_holding if x.job.id == one.job_id)
            assert victim.job_class is JobClass.OPPORTUNISTIC
            assert jobs[one.for_job].job_class is JobClass.GUARANTEED


@given(cpu_work(), st.randoms(use_true_random=False))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_the_order_of_the_rows_changes_nothing(work: dict[str, Any], random: Any) -> None:
    snapshot = cluster_snapshot(**work)
    mixed = {name: tuple(random.sample(values, len(values))) for name, values in work.items()}

    assert decide(cluster_snapshot(**mixed)) == decide(snapshot)


@given(clusters(), cpu_work())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_jobs_with_devices_decide_as_if_there_were_no_others(
    cluster: ClusterSnapshot, work: dict[str, Any]
) -> None:
    known = {vc.id for vc in cluster.vcs}
    work = {
        **work,
        "cpu_queued": tuple(job for job in work["cpu_queued"] if job.vc in known),
    }
    alone, together = decide(cluster), decide(replace(cluster, **work))

    others = {job.id for job in work["cpu_queued"]}
    for name in RoundResult.__dataclass_fields__:
        if name not in OF_CPU_JOBS:
            assert getattr(together, name) == getattr(alone, name)
    kept = {job: why for job, why in together.reasons.items() if job not in others}
    assert kept == alone.reasons


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda pair: Amount(*pair)),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4),
)
def test_equal_instances_are_placed_as_one_after_the_other(
    instances: list[Amount], free: list[tuple[int, int]]
) -> None:
    sizes = {f"n{at}": Amount(30, 30) for at in range(len(free))}
    left = {f"n{at}": Amount(*pair) for at, pair in enumerate(free)}
    instances = sorted(instances, key=lambda one: -one.part_of(Amount(30, 30)))
    instances = [one for one in dict.fromkeys(instances) for _ in range(instances.count(one))]
    found = fitted(instances, left, sizes, left.keys())
    expected: list[str] = []
    for one in instances:
        rests = [(left[n].minus(one).parts_of(sizes[n]), n) for n in left if one.within(left[n])]
        if not rests:
            break
        _, name = min(rests)
        left[name] = left[name].minus(one)
        expected.append(name)

    assert found == (tuple(expected) if len(expected) == len(instances) else None)
