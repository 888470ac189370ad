"""Guests in simulations: speeds of both jobs, promotion, and no effect without guests."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.forecast.durations import RunTimes
from scheduling.core.forecast.futures import Past, try_futures
from scheduling.core.jobspec import JobClass
from scheduling.core.sharing.hosts import Consent, GuestNeed, Host, SharingMode
from scheduling.core.sharing.pairs import Paces
from scheduling.core.simulation.cluster import SimulatedCluster, SimulationSettings
from scheduling.core.simulation.events import HealthChange
from scheduling.core.simulation.guests import GuestRules
from scheduling.core.simulation.results import SimulationRecord
from scheduling.core.values import ClusterSnapshot, JobFacts, QueuedJob
from tests.factories.rounds import (
    LANGUAGE,
    NOW,
    VISION,
    cluster_snapshot,
    jobs_started_by,
    queued_job,
)
from tests.strategies.waiting_clusters import clusters

NEED = GuestNeed(floor=4, wants=8)
WEEK = 7 * 86_400.0
OFFER = Host(
    address="",
    type="",
    mode=SharingMode.COOPERATIVE,
    isolation="container",
    tenant=0,
    consent=Consent.ANY,
    slots=(),
    most_guests=1,
    memory_free=8,
    steady_seconds=0.0,
    steps=0,
    account_empty=False,
    pace=0.25,
    seconds_left=86_400.0,
)


def run(
    snapshot: ClusterSnapshot, work: Mapping[int, float], rules: GuestRules | None, **more: Any
) -> SimulationRecord:
    world = SimulatedCluster(
        snapshot,
        work.__getitem__,
        settings=more.pop("settings", SimulationSettings(grace=10.0)),
        guests=rules,
        **more,
    )
    world.decide()
    while (due := world.next_time()) is not None:
        world.advance(due)
        world.decide()
    return world.record


def rules(*needs: int, **changes: Any) -> GuestRules:
    """Devices of job 1 admit the jobs ``needs``; a pair has paces of 0.8 and 0.5."""
    values = {
        "offer": lambda job_id, _address: OFFER if job_id == 1 else None,
        "needs": dict.fromkeys(needs, NEED),
        "paces": lambda _holder, _guest, _type: Paces(0.8, 0.5),
    }
    return GuestRules(**{**values, **changes})


def crowded(*waiting: QueuedJob) -> ClusterSnapshot:
    """Three jobs of 8 devices use all 24; the other jobs have to wait."""
    owners = (VISION, LANGUAGE, LANGUAGE)
    jobs = [queued_job(n, 8, vc=vc) for n, vc in enumerate(owners, 1)]
    return cluster_snapshot(*jobs, *waiting)


def test_a_guest_starts_beside_a_steady_holder_and_slows_it_while_it_runs() -> None:
    work = {1: 1_000.0, 2: 9_000.0, 3: 9_000.0, 9: 100.0}

    record = run(crowded(queued_job(9, borrow=True)), work, rules(9))

    assert record.starts[9] == NOW + 60.0
    assert record.ends[9] == pytest.approx(NOW + 60.0 + 100.0 / 0.5)
    assert record.ends[1] == pytest.approx(NOW + 60.0 + 200.0 + (1_000.0 - 60.0 - 200.0 * 0.8))
    assert record.guest_seconds == {9: pytest.approx(200.0)}
    assert 9 not in record.device_seconds


def test_without_a_measurement_the_guest_has_the_pace_of_its_host() -> None:
    work = {1: 1_000.0, 2: 9_000.0, 3: 9_000.0, 9: 100.0}
    unknown = rules(9, paces=lambda _holder, _guest, _type: None)

    record = run(crowded(queued_job(9, borrow=True)), work, unknown)

    assert record.ends[9] == pytest.approx(NOW + 60.0 + 100.0 / 0.25)
    assert record.ends[1] == pytest.approx(NOW + 1_000.0 + 400.0 * 0.04)


def test_a_guest_gets_the_device_of_its_holder_without_a_restart() -> None:
    work = {1: 100.0, 2: 9_000.0, 3: 9_000.0, 9: 1_000.0}

    record = run(crowded(queued_job(9, borrow=True)), work, rules(9))

    ended = NOW + 60.0 + 40.0 / 0.8
    assert record.ends[1] == pytest.approx(ended)
    assert record.ends[9] == pytest.approx(ended + 1_000.0 - 50.0 * 0.5)
    assert record.restarts[9] == 0
    assert record.device_seconds[9] == pytest.approx(1_000.0 - 25.0)


def test_a_new_holder_waits_until_the_guest_has_left() -> None:
    work = {1: 100.0, 2: 9_000.0, 3: 9_000.0, 4: 500.0, 9: 1_000.0}
    jobs = queued_job(4, 8), queued_job(9, borrow=True)

    record = run(crowded(*jobs), work, rules(9))

    ended = NOW + 60.0 + 40.0 / 0.8
    assert record.starts[4] == pytest.approx(ended)
    assert record.ends[4] == pytest.approx(ended + 5.0 + 500.0)
    assert record.preemptions[9] == 1
    assert record.restarts[9] == 1


def test_a_failed_node_ends_the_guest_with_its_holder() -> None:
    work = {1: 1_000.0, 2: 9_000.0, 3: 9_000.0, 9: 400.0}
    failures = [
        HealthChange(at=NOW + 100.0, node=node, healthy=False)
        for node in ("node-1", "node-2", "node-3")
    ]

    record = run(crowded(queued_job(9, borrow=True)), work, rules(9), events=failures)

    assert record.failures == {1: 1, 2: 1, 3: 1, 9: 1}
    assert record.ends == {}


def test_start_estimates_know_the_devices_that_admit_guests() -> None:
    holding = jobs_started_by(crowded())
    (leaf, *_), *_ = holding[0].members
    host = replace(OFFER, address=leaf.address, holder=1, steady_seconds=40.0)
    waiting = queued_job(9, borrow=True)
    alone = cluster_snapshot(waiting, holding=holding)
    shared = replace(alone, hosts=(host,), guest_needs={9: NEED})
    pasts = {job.id: Past(lineage=(), left=5_000.0) for job in holding}

    waits = [
        try_futures(
            snapshot, RunTimes([]), pasts, futures=3, seed=1, settings=SimulationSettings()
        ).waits[9]
        for snapshot in (shared, alone)
    ]

    assert waits[0] == pytest.approx((20.0, 20.0, 20.0))
    assert min(waits[1]) > 1_000.0


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=clusters(), seed=st.integers(0, 1_000))
def test_a_cluster_without_offers_is_simulated_as_one_without_guests(snapshot, seed) -> None:
    chance = random.Random(seed)
    work = {job.id: chance.choice((50.0, 400.0, 2_000.0)) for job in snapshot.queued}
    short = SimulationSettings(horizon=20_000.0)
    needs = dict.fromkeys(work, NEED)
    nobody = GuestRules(offer=lambda _job, _address: None, needs=needs)

    with_rules = run(snapshot, work, nobody, settings=short)

    assert with_rules == run(snapshot, work, None, settings=short)


def week(seed: int, weight: float = 1.0) -> tuple[dict[int, float], dict[int, float], int]:
    """Simulate a week with guests of no cost and no grace, and the same week without guests.

    Returns:
        The starts of guaranteed jobs in both, and the number of guests.
    """
    chance = random.Random(seed)
    arrivals, work, at = [], {}, NOW
    for number in range(1, int(60 * weight)):
        at += chance.expovariate(60 / WEEK)
        job = queued_job(
            number,
            chance.choice((1, 1, 2, 4, 8)),
            vc=chance.choice((VISION, LANGUAGE)),
            borrow=chance.random() < 0.5,
        )
        arrivals.append((replace(job, submitted=at), JobFacts()))
        work[number] = chance.expovariate(1 / 40_000.0)
    guests = GuestRules(
        offer=lambda _job, _address: OFFER,
        needs={job.id: NEED for job, _ in arrivals if job.demand.devices == 1},
        paces=lambda _holder, _guest, _type: Paces(1.0, 0.4),
        grace=0.0,
    )
    found = []
    for one in (guests, None):
        record = run(
            cluster_snapshot(), work, one, arrivals=arrivals, settings=SimulationSettings(grace=0)
        )
        guaranteed = {job.id for job, _ in arrivals if job.job_class is JobClass.GUARANTEED}
        found.append({job_id: at for job_id, at in record.starts.items() if job_id in guaranteed})
        if one is not None:
            seconds = sum(record.guest_seconds.values())
    return found[0], found[1], int(seconds)


def test_guaranteed_jobs_of_a_week_start_at_the_same_times_with_and_without_guests() -> None:
    total = 0
    for seed in range(5):
        shared, alone, seconds = week(seed)
        assert shared == pytest.approx(alone)
        total += seconds
    assert total > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 1_000, 50))
def test_guaranteed_jobs_of_1_000_weeks_start_at_the_same_times(first: int) -> None:
    for seed in range(first, first + 50):
        shared, alone, _ = week(seed)
        assert shared == pytest.approx(alone), seed
