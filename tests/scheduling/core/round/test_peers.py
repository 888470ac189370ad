"""Jobs that share a device as equals: groups of a plan, seats, separation and promotion."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from scheduling.core.forecast.durations import RunTime, RunTimes
from scheduling.core.forecast.futures import Past, try_futures
from scheduling.core.policies.plans import IllegalPlanError
from scheduling.core.policy_interface import Facts, Plan, Share
from scheduling.core.round.decide import decide
from scheduling.core.round.peers import check_groups
from scheduling.core.round.stored import read_stored
from scheduling.core.sharing.hosts import Consent, SharingMode
from scheduling.core.sharing.pairs import Paces, PairRecord
from scheduling.core.simulation.cluster import SimulatedCluster, SimulationSettings
from scheduling.core.simulation.guests import GuestRules
from scheduling.core.values import JobFacts
from scheduling.rounds.services.evidence import spelled_round
from tests.factories.peers import NEED, OFFER, decided, host_of, peer_of, plan_of, running
from tests.factories.policies import making
from tests.factories.rounds import (
    LANGUAGE,
    NOW,
    VISION,
    cluster_snapshot,
    queued_job,
)


def test_the_first_job_of_a_group_gets_the_device_and_the_other_waits_for_it() -> None:
    result, _ = decided(plan_of((1, 2)), 1, 2)

    assert [start.job_id for start in result.starts] == [1]
    assert result.peers == ()
    assert result.reasons[2].text.startswith("Its policy runs it on the device of job 1")
    assert result.wake == NOW + 5.0


def test_the_second_job_starts_on_the_device_of_the_first_as_soon_as_that_runs() -> None:
    result, snapshot = decided(
        plan_of((1, 2), turn_seconds=60.0),
        2,
        holding=running(1),
        of=lambda one: {"hosts": (host_of(one, 1),)},
    )

    (start,) = result.peers
    assert (start.seat.job_id, start.seat.holder, start.seat.slot) == (2, 1, 1)
    assert (start.seat.floor, start.seat.most, start.turn_seconds) == (4, 4, 60.0)
    assert start.seat.member.leaves[0].address == snapshot.hosts[0].address
    assert result.starts == ()
    assert not result.preemptions
    assert 2 not in result.reasons


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_free": 3},
        {"consent": Consent.NONE},
        {"mode": SharingMode.EXCLUSIVE},
    ],
)
def test_a_job_that_cannot_run_there_gets_a_device_of_its_own(changes: Any) -> None:
    refused, _ = decided(
        plan_of((1, 2)),
        2,
        holding=running(1),
        of=lambda one: {"hosts": (host_of(one, 1, **changes),)},
    )

    assert [start.job_id for start in refused.starts] == [2]
    assert refused.peers == ()


def test_a_device_without_consent_of_its_holder_is_never_offered_for_pairs() -> None:
    def answer(view: Any) -> Plan:
        seen.append({job.id: job.terms.shareable for job in view.jobs})
        return plan_of((1,), (2,))

    seen: list[dict[int, bool]] = []
    decided(answer, 2, holding=running(1))
    decided(answer, 2, holding=running(1), of=lambda one: {"hosts": (host_of(one, 1),)})
    decided(answer, 2, holding=running(1), peer_needs={})

    assert seen == [{1: False, 2: True}, {1: True, 2: True}, {1: False, 2: False}]


def test_a_plan_that_pairs_jobs_without_permission_is_refused_as_before() -> None:
    result, _ = decided(plan_of((1, 2)), 1, 2, peer_needs={})

    assert "no node supports" in result.policy_faults[VISION.id]
    assert [start.job_id for start in result.starts] == [1, 2]


def test_an_opportunistic_guest_leaves_the_device_of_a_pair() -> None:
    def of(one: Any) -> dict[str, Any]:
        guest = peer_of(one, 1, 31).guest
        return {"hosts": (host_of(one, 1, slots=(1,)),), "guests": (guest,)}

    result, _ = decided(plan_of((1, 2)), 2, holding=running(1), of=of)

    assert result.guest_leaves == (31,)
    assert result.peers == ()


@pytest.mark.parametrize("plan", [plan_of((1, 2)), plan_of((2, 1))])
def test_a_running_pair_stays_as_it_is(plan: Plan) -> None:
    result, _ = decided(
        plan,
        holding=running(1),
        of=lambda one: {
            "hosts": (host_of(one, 1, slots=(1,)),),
            "peers": (peer_of(one, 1, 2),),
        },
    )

    assert not result.preemptions
    assert not result.guest_leaves
    assert not result.promotions


def test_a_third_job_waits_until_the_second_one_has_left_the_device() -> None:
    def of(one: Any) -> dict[str, Any]:
        peer = peer_of(one, 1, 30)
        job = replace(peer.guest.job, since=NOW - 10.0)
        peer = replace(peer, guest=replace(peer.guest, job=job))
        return {"hosts": (host_of(one, 1, slots=(1,)),), "peers": (peer,)}

    pair, _ = decided(plan_of((1, 3), (30,)), 3, holding=running(1), of=of)
    turns, _ = decided(plan_of((1, 30, 3), turn_seconds=60.0), 3, holding=running(1), of=of)

    assert not any((*pair.policy_faults.values(), *turns.policy_faults.values()))
    assert pair.preemptions == ()
    assert pair.peers == ()
    assert [one.seat.job_id for one in turns.peers] == [3]


def test_a_pair_that_the_policy_separates_loses_the_second_job() -> None:
    result, _ = decided(
        plan_of((1,), (2,)),
        holding=running(1),
        of=lambda one: {
            "hosts": (host_of(one, 1, slots=(1,)),),
            "peers": (peer_of(one, 1, 2),),
        },
    )

    assert [one.job_id for one in result.preemptions] == [2]
    assert "no longer runs it on the device of job 1" in result.preemptions[0].rule


def test_the_second_job_gets_the_device_when_the_policy_stops_the_first() -> None:
    def of(one: Any) -> dict[str, Any]:
        return {
            "hosts": (host_of(one, 1, slots=(1,)),),
            "peers": (peer_of(one, 1, 2),),
        }

    stopped, snapshot = decided(plan_of((2,)), holding=running(1), of=of)
    left = decide(replace(snapshot, holding=(), hosts=()), make=making(plan_of((2,))))

    assert [one.job_id for one in stopped.preemptions] == [1]
    assert stopped.promotions == ()
    assert stopped.guest_leaves == ()
    assert left.promotions == (2,)


def test_a_job_leaves_if_the_policy_of_its_virtual_cluster_never_pairs_jobs() -> None:
    result, _ = decided(
        plan_of((1, 2)),
        holding=running(1),
        vcs=(LANGUAGE, VISION),
        of=lambda one: {
            "hosts": (host_of(one, 1, slots=(1,)),),
            "peers": (peer_of(one, 1, 2),),
        },
    )

    assert result.guest_leaves == (2,)


def test_the_policy_sees_the_pair_and_its_measured_paces() -> None:
    seen: dict[int, Any] = {}

    def answer(view: Any) -> Plan:
        seen.update({job.id: job for job in view.jobs})
        return plan_of((1, 2))

    decided(
        answer,
        holding=running(1),
        of=lambda one: {
            "hosts": (host_of(one, 1, slots=(1,)),),
            "peers": (peer_of(one, 1, 2, paces=Paces(0.7, 0.6)),),
            "known": {1: JobFacts(facts=Facts(step_time=0.2, util=0.9))},
        },
    )

    assert seen[1].alloc.share == Share(fraction=0.5, group="1+2")
    assert seen[2].alloc == seen[1].alloc
    assert (seen[1].pace, seen[2].pace) == (0.7, 0.6)
    assert (seen[1].beside, seen[2].beside) == (0, 1)
    assert seen[1].facts.step_time is None
    assert seen[1].facts.util is None


@pytest.mark.parametrize(
    "plan",
    [
        plan_of((1, 2, 3)),
        plan_of((1, 2, 3, 4, 5), turn_seconds=60.0),
        replace(plan_of((1, 2)), allocs={1: plan_of((1, 2)).allocs[1]}),
    ],
)
def test_a_group_that_no_node_can_run_is_refused(plan: Plan) -> None:
    with pytest.raises(IllegalPlanError):
        check_groups(plan)

    check_groups(plan_of((1, 2, 3, 4), turn_seconds=60.0))


def test_a_stored_round_with_pairs_decides_the_same_again() -> None:
    record = PairRecord(holder=0.7, guest=0.6, observations=3.0)
    result, snapshot = decided(
        plan_of((1, 2)),
        2,
        holding=running(1),
        of=lambda one: {
            "hosts": (host_of(one, 1),),
            "pair_paces": {"1:name:a": {"a": {"1:name:a": record}}},
        },
    )
    document = orjson.loads(spelled_round(snapshot, result))

    again, stored = read_stored(document)
    assert (again, stored) == (snapshot, result)
    assert decide(again, make=making(plan_of((1, 2)))) == stored


def test_a_round_without_pairs_stores_nothing_about_them() -> None:
    snapshot = cluster_snapshot(queued_job(1))
    document = orjson.loads(spelled_round(snapshot, decide(snapshot)))

    assert not {"peers", "peer_needs", "pair_paces"} & {*document["snapshot"], *document["result"]}


GAVEL = replace(VISION, policy="gavel", policy_args={"sharing": True})


def simulated(vc: Any, count: int, util: float, paces: Paces, seconds: float = 3_000.0) -> Any:
    """Jobs of one device in a virtual cluster with 8 devices."""
    jobs = [queued_job(n, vc=vc) for n in range(1, count + 1)]
    known = {job.id: JobFacts(facts=Facts(util=util)) for job in jobs}
    return SimulatedCluster(
        cluster_snapshot(*jobs, vcs=(LANGUAGE, vc), known=known),
        lambda _job: seconds,
        settings=SimulationSettings(grace=10.0, tick=60.0, ticks_always=True),
        guests=GuestRules(
            offer=lambda _job, _address: replace(OFFER, most_guests=3, memory_free=100),
            peer_needs={job.id: NEED for job in jobs},
            paces=lambda _holder, _other, _type: paces,
        ),
    )


def played(world: Any, until: float) -> Any:
    world.decide()
    while (due := world.next_time()) is not None and due < NOW + until:
        world.advance(due)
        world.decide()
    return world


def test_gavel_pairs_jobs_that_leave_their_devices_half_idle() -> None:
    world = played(simulated(GAVEL, 30, 0.4, Paces(0.9, 0.9)), 200.0)

    assert world.record.faults == []
    assert len(world.guests) >= 4
    shared = {guest.holder for guest in world.guests.values()}
    assert shared <= world.holding.keys()


def test_each_job_of_a_pair_is_charged_half_of_the_device() -> None:
    world = played(simulated(GAVEL, 32, 0.4, Paces(0.9, 0.9), seconds=400.0), 5_000.0)
    used = sum(world.record.device_seconds.values())

    assert len(world.record.ends) == 32
    assert min(world.record.device_seconds.values()) > 0
    assert used <= 24 * (max(world.record.ends.values()) - NOW)
    assert used < 32 * 400.0


def test_gavel_separates_a_pair_that_is_slower_than_its_jobs_alone() -> None:
    world = played(simulated(GAVEL, 30, 0.4, Paces(0.4, 0.4)), 200.0)
    first = set(world.guests)
    assert first

    played(world, 400.0)
    state = world.snapshot().vcs[1].policy_state

    assert state["barred"]
    assert not first & {job for job, guest in world.guests.items() if guest.job.since < NOW + 130}


def test_gandiva_suspends_jobs_on_their_devices_in_turns() -> None:
    vc = replace(VISION, policy="gandiva", policy_args={"turns": "device", "quantum": 60.0})
    world = played(simulated(vc, 30, 0.9, Paces(0.5, 0.5)), 200.0)

    assert world.record.faults == []
    assert len(world.holding) + len(world.guests) == 30
    assert sum(world.record.preemptions.values()) == 0


def test_start_estimates_know_the_pairs_of_jobs_that_have_not_started() -> None:
    jobs = [queued_job(n, vc=GAVEL) for n in range(1, 41)]
    snapshot = cluster_snapshot(
        *jobs,
        vcs=(LANGUAGE, GAVEL),
        known={job.id: JobFacts(facts=Facts(util=0.4)) for job in jobs},
        peer_needs={job.id: NEED for job in jobs},
    )
    pasts = {job.id: Past(lineage=("a",), most=600.0) for job in jobs}
    times = RunTimes([RunTime(lineage=("a",), seconds=600.0)] * 30)

    def starts(of: Any) -> int:
        futures = try_futures(
            of, times, pasts, futures=1, seed=1, settings=SimulationSettings(grace=10.0, tick=60.0)
        )
        return sum(waits[0] < 500.0 for waits in futures.waits.values() if waits)

    alone, paired = starts(replace(snapshot, peer_needs={})), starts(snapshot)

    assert alone < paired
