"""Guests of a round: who becomes one, who leaves, and that nothing else changes."""

from dataclasses import fields, replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.policy_interface import Plan
from scheduling.core.round.decide import decide
from scheduling.core.round.replaying import replay_round
from scheduling.core.round.stored import read_stored
from scheduling.core.round_result import RoundResult
from scheduling.core.sharing.hosts import Consent, GuestNeed, Host, SharingMode
from scheduling.core.values import ClusterSnapshot, HeldGuest, HeldLeaf, HoldingJob, QueuedJob
from scheduling.rounds.services.evidence import spelled_round
from tessera.reasons import ReasonCode
from tests.factories.policies import making
from tests.factories.rounds import (
    LANGUAGE,
    VISION,
    VISION_MINE,
    cluster_snapshot,
    jobs_started_by,
    queued_job,
)
from tests.strategies.waiting_clusters import clusters

NEED = GuestNeed(floor=4, wants=8)
OF_GUESTS = {"guests", "guest_leaves", "promotions", "reasons"}


def host_of(job: HoldingJob, *, leaf: int = 0, **changes: object) -> Host:
    """A device of a running job as a place for guests."""
    address = job.members[0][leaf].address
    host = Host(
        address=address,
        node=address.split("/")[0],
        index=leaf,
        holder=job.id,
        type="a",
        mode=SharingMode.COOPERATIVE,
        isolation="user",
        tenant=job.tenant,
        consent=Consent.ANY,
        slots=(),
        most_guests=1,
        memory_free=8,
        steady_seconds=60.0,
        steps=50,
        account_empty=False,
        pace=0.4,
        seconds_left=100.0,
    )
    return replace(host, **changes)  # type: ignore[arg-type]


def held_guest(number: int, host: Host, **changes: object) -> HeldGuest:
    """A running guest of a host."""
    demand = Demand(members=(MemberDemand(role="worker", count=1, devices=1),))
    job = HoldingJob(
        id=number,
        vc=VISION.id,
        tenant=VISION.tenant,
        owner=1,
        priority=-1,
        job_class=JobClass.OPPORTUNISTIC,
        demand=demand,
        submitted=0.0,
        since=0.0,
        leaving=False,
        members=((HeldLeaf(address=host.address, virtual=""),),),
    )
    guest = HeldGuest(
        job=job, address=host.address, node=host.node, index=host.index, slot=1, holder=host.holder
    )
    return replace(guest, **changes)  # type: ignore[arg-type]


def full_cluster(*waiting: QueuedJob, **changes: object) -> ClusterSnapshot:
    """All 24 devices are held by three jobs of 8 devices."""
    owners = (VISION, LANGUAGE, LANGUAGE)
    holding = jobs_started_by(
        cluster_snapshot(*(queued_job(n, 8, vc=vc) for n, vc in enumerate(owners, 1)))
    )
    needs = {job.id: NEED for job in waiting}
    return cluster_snapshot(*waiting, holding=holding, guest_needs=needs, **changes)


def with_host(snapshot: ClusterSnapshot, holder: int = 0, **changes: Any) -> ClusterSnapshot:
    return replace(snapshot, hosts=(host_of(snapshot.holding[holder], **changes),))


def test_a_job_without_an_idle_device_becomes_a_guest_of_the_best_host():
    snapshot = full_cluster(queued_job(9, borrow=True))
    hosts = tuple(
        host_of(snapshot.holding[0], leaf=leaf, pace=pace)
        for leaf, pace in enumerate((0.1, 0.4, 0.3))
    )

    result = decide(replace(snapshot, hosts=hosts))

    (guest,) = result.guests
    assert (guest.job_id, guest.holder, guest.slot) == (9, snapshot.holding[0].id, 1)
    assert guest.member.leaves == (HeldLeaf(address=hosts[1].address, virtual=""),)
    assert (guest.floor, guest.most) == (4, 8)
    assert 9 not in result.reasons
    assert result.starts == ()


def test_an_idle_device_is_taken_before_a_seat_beside_a_holder():
    snapshot = full_cluster(queued_job(9, borrow=True))
    snapshot = replace(with_host(snapshot), holding=snapshot.holding[:2])

    result = decide(snapshot)

    assert [start.job_id for start in result.starts] == [9]
    assert result.guests == ()


def test_without_a_device_that_takes_it_the_reason_counts_the_causes():
    snapshot = with_host(full_cluster(queued_job(9, borrow=True)), memory_free=3)

    result = decide(snapshot)

    reason = result.reasons[9]
    assert result.guests == ()
    assert reason.code is ReasonCode.NO_HOST_FOR_GUEST
    assert "1 has too little free memory" in reason.text


FULL = {"slots": (1,)}
UNSHARED = {"mode": SharingMode.EXCLUSIVE}


@pytest.mark.parametrize(
    ("hosts", "code"),
    [
        ((FULL,), ReasonCode.GUEST_CAP_REACHED),
        ((FULL, {"consent": Consent.NONE}, UNSHARED), ReasonCode.GUEST_CAP_REACHED),
        ((FULL, {"account_empty": True}), ReasonCode.NO_HOST_FOR_GUEST),
        ((UNSHARED, UNSHARED), ReasonCode.NO_DEVICE_WITH_SHARING_MODE),
        ((UNSHARED, {"type": "b", "consent": Consent.NONE}), ReasonCode.NO_HOST_FOR_GUEST),
        (({"consent": Consent.NONE},), ReasonCode.NO_HOST_FOR_GUEST),
    ],
)
def test_one_cause_of_all_refusals_has_its_own_code(hosts, code):
    snapshot = full_cluster(queued_job(9, borrow=True))
    devices = tuple(
        host_of(snapshot.holding[0], leaf=leaf, **changes) for leaf, changes in enumerate(hosts)
    )

    reason = decide(replace(snapshot, hosts=devices)).reasons[9]

    assert reason.code is code


def test_a_job_to_which_its_policy_gives_no_device_may_be_a_guest():
    waiting = queued_job(9, borrow=True)
    snapshot = with_host(full_cluster(waiting, vcs=(LANGUAGE, VISION_MINE)))

    result = decide(snapshot, make=making(Plan(allocs={}, order=())))

    assert [guest.job_id for guest in result.guests] == [9]
    assert 9 not in result.reasons


def test_tenants_take_turns_for_the_seats():
    jobs = [
        queued_job(n, borrow=True, vc=vc) for n, vc in ((7, VISION), (8, VISION), (9, LANGUAGE))
    ]
    snapshot = full_cluster(*jobs)
    hosts = tuple(host_of(snapshot.holding[0], leaf=leaf) for leaf in range(2))

    result = decide(replace(snapshot, hosts=hosts))

    assert {guest.job_id for guest in result.guests} == {7, 9}


def test_a_device_takes_at_most_its_guests_each_in_its_own_slot():
    snapshot = full_cluster(*(queued_job(n, borrow=True) for n in (6, 7, 8, 9)))

    result = decide(with_host(snapshot, most_guests=3, memory_free=100))

    assert sorted(guest.slot for guest in result.guests) == [1, 2, 3]


def test_a_guest_stays_beside_its_holder_and_leaves_when_consent_ends():
    snapshot = with_host(full_cluster(), slots=(1,))
    guest = held_guest(20, snapshot.hosts[0])

    stays = decide(replace(snapshot, guests=(guest,)))
    leaves = decide(replace(snapshot, hosts=(), guests=(guest,)))

    assert (stays.guest_leaves, stays.promotions) == ((), ())
    assert (leaves.guest_leaves, leaves.promotions) == ((20,), ())


@pytest.mark.parametrize(
    "change",
    [
        {"consent": Consent.SAME_TENANT, "tenant": LANGUAGE.tenant},
        {"consent": Consent.NONE},
        {"mode": SharingMode.EXCLUSIVE},
        {"most_guests": 0},
        {"holder": 77},
    ],
)
def test_a_guest_leaves_when_its_host_does_not_take_it_any_more(change):
    snapshot = with_host(full_cluster(), slots=(1,))
    guest = held_guest(20, snapshot.hosts[0])
    changed = replace(snapshot.hosts[0], **change)

    result = decide(replace(snapshot, hosts=(changed,), guests=(guest,)))

    assert result.guest_leaves == (20,)


def test_a_guest_gets_its_device_when_the_holder_has_left():
    snapshot = full_cluster()
    guest = held_guest(20, host_of(snapshot.holding[0]))

    result = decide(replace(snapshot, holding=snapshot.holding[1:], guests=(guest,)))

    assert (result.guest_leaves, result.promotions) == ((), (20,))


def test_a_waiting_job_gets_the_device_before_the_guest_that_runs_on_it():
    waiting = queued_job(9, 8, borrow=True)
    snapshot = full_cluster()
    guest = held_guest(20, host_of(snapshot.holding[0]))

    result = decide(
        replace(snapshot, holding=snapshot.holding[1:], guests=(guest,), queued=(waiting,))
    )

    assert [start.job_id for start in result.starts] == [9]
    assert (result.guest_leaves, result.promotions) == ((20,), ())


def test_of_two_guests_of_a_device_the_first_gets_it_and_the_other_leaves():
    snapshot = full_cluster()
    host = host_of(snapshot.holding[0])
    guests = (held_guest(21, host, slot=2), held_guest(20, host))

    result = decide(replace(snapshot, holding=snapshot.holding[1:], guests=guests))

    assert (result.guest_leaves, result.promotions) == ((21,), (20,))


def test_a_cap_on_borrowed_devices_prevents_a_promotion():
    vcs = (LANGUAGE, replace(VISION, max_opportunistic_devices=0))
    snapshot = full_cluster(vcs=vcs)
    guest = held_guest(20, host_of(snapshot.holding[0]))

    result = decide(replace(snapshot, holding=snapshot.holding[1:], guests=(guest,)))

    assert (result.guest_leaves, result.promotions) == ((20,), ())


def test_a_guest_of_another_tenant_needs_a_node_without_an_owner():
    job = queued_job(9, borrow=True, vc=LANGUAGE)
    snapshot = with_host(full_cluster(job))
    owned = tuple(replace(node, owner=VISION.tenant) for node in snapshot.nodes)

    assert len(decide(snapshot).guests) == 1
    assert decide(replace(snapshot, nodes=owned)).guests == ()


def test_a_round_without_guests_is_stored_without_their_fields():
    snapshot = full_cluster()

    text = spelled_round(replace(snapshot, guest_needs={}), decide(snapshot)).decode()

    assert "guest" not in text
    assert "hosts" not in text


def test_a_stored_round_with_guests_is_read_and_decided_again():
    snapshot = with_host(full_cluster(queued_job(8, borrow=True), queued_job(9, borrow=True)))
    snapshot = replace(snapshot, guests=(held_guest(20, host_of(snapshot.holding[1])),))
    result = decide(snapshot)

    read, stored = read_stored(orjson.loads(spelled_round(snapshot, result)))

    assert (len(result.guests), result.guest_leaves) == (1, (20,))
    assert read.hosts == snapshot.hosts
    assert replay_round(read, stored) == stored


@st.composite
def shared(draw: st.DrawFn) -> tuple[ClusterSnapshot, ClusterSnapshot]:
    """A cluster with running and waiting jobs, and the same one with hosts and guests."""
    first = draw(clusters())
    queued = {job.id: job for job in first.queued}
    running = tuple(
        HoldingJob(
            id=start.job_id,
            vc=job.vc,
            tenant=job.tenant,
            owner=job.owner,
            priority=job.priority,
            job_class=job.job_class,
            demand=job.demand,
            submitted=job.submitted,
            since=900.0,
            leaving=draw(st.booleans()),
            members=tuple(member.leaves for member in start.members),
        )
        for start in decide(first).starts
        for job in [queued[start.job_id]]
    )
    waiting = [job for job in first.queued if job.id not in {one.id for one in running}]
    for number in range(50, 50 + draw(st.integers(1, 6))):
        like = draw(st.sampled_from(first.queued))
        (member,) = like.demand.members
        one = replace(member, count=1, devices=1)
        waiting.append(
            replace(
                like,
                id=number,
                demand=Demand(members=(one,)),
                priority=-1,
                job_class=JobClass.OPPORTUNISTIC,
            )
        )
    alone = replace(first, round_number=2, queued=tuple(waiting), holding=running)
    hosts: list[Host] = []
    guests: list[HeldGuest] = []
    for job in running:
        for leaf in (leaf for leaves in job.members for leaf in leaves):
            host = host_of(job, consent=draw(st.sampled_from(Consent)), most_guests=2)
            host = replace(host, address=leaf.address, node=leaf.address.split("/")[1])
            if draw(st.booleans()):
                hosts.append(host)
            if draw(st.integers(0, 3)) == 0:
                guest = held_guest(100 + len(guests), host, holder=draw(st.integers(1, 12)))
                vc = draw(st.sampled_from(first.vcs))
                guests.append(replace(guest, job=replace(guest.job, vc=vc.id, tenant=vc.tenant)))
    both = replace(
        alone,
        hosts=tuple(hosts),
        guests=tuple(guests),
        guest_needs={job.id: NEED for job in waiting if job.demand.devices == 1},
    )
    return alone, both


def check_same_decision(pair: tuple[ClusterSnapshot, ClusterSnapshot]) -> RoundResult:
    """Check that guests change nothing for other jobs; return the decision with guests."""
    alone, both = pair
    without, result = decide(alone), decide(both)
    for field in fields(RoundResult):
        if field.name not in OF_GUESTS:
            assert getattr(result, field.name) == getattr(without, field.name), field.name
    for job_id, reason in without.reasons.items():
        if job_id not in both.guest_needs:
            assert result.reasons[job_id] == reason
    started = {guest.job_id for guest in result.guests}
    assert started | result.reasons.keys() == without.reasons.keys()
    assert not started & result.reasons.keys()
    assert set(result.guest_leaves).isdisjoint(result.promotions)
    taken = [leaf for start in result.starts for m in start.members for leaf in m.leaves]
    held = {leaf.address for leaf in taken} | {
        leaf.address for job in both.holding for leaves in job.members for leaf in leaves
    }
    promoted = [g.address for g in both.guests if g.job.id in result.promotions]
    assert len(set(promoted)) == len(promoted)
    assert not held & set(promoted)
    return result


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(pair=shared())
def test_decisions_about_other_jobs_are_the_same_with_and_without_guests(pair):
    check_same_decision(pair)


@pytest.mark.soak
@settings(settings.get_profile("soak"), max_examples=10_000)
@given(pair=shared())
def test_decisions_about_other_jobs_are_the_same_on_10_000_snapshots(pair):
    check_same_decision(pair)
