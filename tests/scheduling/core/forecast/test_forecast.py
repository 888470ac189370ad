"""Run times from what was seen, worlds that live on, and quantiles that learn from errors."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scheduling.core.forecast.calibration import pinball
from scheduling.core.forecast.durations import RunTime, RunTimes, lineage_of
from scheduling.core.forecast.futures import Past, try_futures
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.round.decide import Line, decide_with_queue_order
from scheduling.core.simulation import SimulatedCluster, SimulationSettings
from scheduling.core.values import ClusterSnapshot, NodeFacts, QueuedJob, VcFacts
from tests.strategies.waiting_clusters import SPEC

MINE = lineage_of(vc=1, owner=1, application="bert", name="train-7", devices=4)
OTHER = lineage_of(vc=2, owner=2, application=None, name="other", devices=4)
SETTINGS = SimulationSettings(horizon=1e7)


def job(number: int, devices: int = 4, **facts: object) -> QueuedJob:
    return QueuedJob(
        id=number,
        vc=1,
        tenant=1,
        owner=1,
        owner_name="alice",
        priority=10,
        job_class=JobClass.GUARANTEED,
        demand=Demand(members=(MemberDemand(role="worker", count=1, devices=devices),)),
        submitted=float(number),
        **facts,  # type: ignore[arg-type]
    )


def cluster(*queued: QueuedJob, **changes: object) -> ClusterSnapshot:
    base = ClusterSnapshot(
        now=1000.0,
        round_number=1,
        round_seconds=10.0,
        seed=1,
        topology_version=1,
        spec=SPEC,
        vcs=(VcFacts(id=1, name="v1", tenant=1, policy="fifo"),),
        nodes=tuple(
            NodeFacts(
                name=name,
                placeable=True,
                healthy=True,
                has_docker=True,
                cpus_per_device=4.0,
                memory_per_device=8,
            )
            for name in ("a0", "a1", "b0")
        ),
        queued=queued,
        holding=(),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def walk(world: SimulatedCluster) -> None:
    world.decide()
    while (due := world.next_time()) is not None:
        world.advance(due)
        world.decide()


def test_a_group_with_many_runs_is_detected_by_them_and_one_without_by_the_others() -> None:
    times = RunTimes([RunTime(lineage=MINE, seconds=1000.0) for _ in range(60)])

    p10, p50, p90 = times.remaining(MINE, [0.1, 0.5, 0.9])
    _, other, _ = times.remaining(OTHER, [0.1, 0.5, 0.9])

    assert 700.0 < p10 < p50 < p90 < 1400.0
    assert 500.0 < other < 2000.0


def test_runs_that_still_go_on_make_run_times_longer() -> None:
    ended = [RunTime(lineage=MINE, seconds=100.0) for _ in range(20)]
    open_ones = [RunTime(lineage=MINE, seconds=5000.0, ended=False) for _ in range(20)]

    (short,) = RunTimes(ended).remaining(MINE, [0.6])
    (long,) = RunTimes(ended + open_ones).remaining(MINE, [0.6])

    assert long > 10.0 * short


def test_what_is_left_counts_from_now_and_ends_with_the_limit() -> None:
    times = RunTimes([RunTime(lineage=MINE, seconds=float(s)) for s in range(100, 4000, 50)])

    left = times.remaining(MINE, [0.1, 0.5, 0.9], elapsed=3000.0)
    capped = times.remaining(MINE, [0.1, 0.5, 0.9], elapsed=3000.0, most=3100.0)

    assert np.all(np.diff(left) > 0.0)
    assert left[1] < 2000.0
    assert np.all(capped <= 100.0)


def test_a_world_starts_jobs_when_those_before_them_end() -> None:
    world = SimulatedCluster(
        cluster(job(1), job(2), job(3)), lambda number: 100.0 * number, settings=SETTINGS
    )

    walk(world)

    assert world.record.starts == {1: 1000.0, 2: 1100.0, 3: 1300.0}
    assert world.record.ends == {1: 1100.0, 2: 1300.0, 3: 1600.0}


def test_a_preempted_job_goes_on_where_it_was() -> None:
    urgent = replace(job(2), priority=100, submitted=1050.0)
    world = SimulatedCluster(
        cluster(job(1)),
        lambda _number: 200.0,
        settings=replace(SETTINGS, grace=10.0),
        arrivals=[(urgent, None)],  # type: ignore[list-item]
    )

    walk(world)

    assert world.record.starts[2] == pytest.approx(1060.0)
    assert world.record.ends[2] == pytest.approx(1260.0)
    assert world.record.ends[1] == pytest.approx(1260.0 + 150.0)


def test_gates_and_jobs_that_come_first_open_in_a_world() -> None:
    late = replace(job(1), not_before=1500.0)
    after = replace(job(2), after=(1,))
    world = SimulatedCluster(cluster(late, after), lambda _number: 50.0, settings=SETTINGS)

    walk(world)

    assert world.record.starts == {1: 1500.0, 2: 1550.0}


def test_futures_are_the_same_for_the_same_seed_and_know_no_start_of_a_held_job() -> None:
    snapshot = cluster(job(1), job(2), job(3, held=True))
    pasts = {number: Past(lineage=MINE) for number in (1, 2, 3)}
    times = RunTimes([RunTime(lineage=MINE, seconds=500.0) for _ in range(30)])

    one, two = (
        try_futures(snapshot, times, pasts, futures=5, seed=7, settings=SETTINGS) for _ in range(2)
    )

    assert one == two
    assert one.quantiles(1) == (0.0, 0.0, 0.0)
    second = one.quantiles(2)
    assert second is not None
    assert 50.0 < second[0] <= second[1] <= second[2] < 5000.0
    assert one.quantiles(3) is None


def test_a_future_that_is_cut_short_counts_only_if_it_is_the_first() -> None:
    snapshot = cluster(job(1), job(2))
    steps = iter([False])

    found = try_futures(
        snapshot, RunTimes([]), {}, futures=5, seed=7, settings=SETTINGS, go_on=lambda: next(steps)
    )

    assert found.tried == 1
    assert found.quantiles(1) == (0.0, 0.0, 0.0)
    assert found.quantiles(2) is None


def test_who_waits_on_stands_in_the_order_of_the_policy_without_those_who_start() -> None:
    urgent = replace(job(3), priority=100)
    borrower = replace(job(4, 99), job_class=JobClass.OPPORTUNISTIC)
    gated = replace(job(5), held=True)

    result, lines = decide_with_queue_order(
        cluster(job(1), job(2), job(6), urgent, borrower, gated)
    )

    assert {start.job_id for start in result.starts} == {3}
    assert lines == {1: Line(guaranteed=[1, 2, 6], opportunistic=[4])}


def test_the_pinball_loss_is_that_of_the_definition() -> None:
    assert pinball((0.0, 10.0, 20.0), 10.0) == pytest.approx((1.0 + 0.0 + 1.0) / 3.0)
    assert math.isclose(pinball((10.0, 10.0, 10.0), 0.0), (9.0 + 5.0 + 1.0) / 3.0)


def test_means_of_remaining_run_times_are_those_of_the_distribution() -> None:
    """The longest of 60 runs say little about longer ones; these do not last for months."""
    rng = np.random.default_rng(8)
    chances = (np.arange(200) + 0.5) / 200
    ratios, late = [], []
    for _ in range(40):
        seconds = 3600.0 * np.exp(0.6 * rng.standard_normal(60))
        times = RunTimes(
            [RunTime(lineage=MINE, seconds=float(one)) for one in seconds]
        ).for_means()
        ratios.append(times.remaining(MINE, chances).mean() / (3600.0 * math.exp(0.18)))
        age = 3600.0 * math.exp(0.6 * 0.8416)
        drawn = 3600.0 * np.exp(0.6 * rng.standard_normal(20_000))
        truth = (drawn[drawn > age] - age).mean()
        late.append(times.remaining(MINE, chances, elapsed=age).mean() / truth)

    assert 0.9 < np.mean(ratios) < 1.15
    assert max(ratios) < 2.0
    assert np.exp(np.mean(np.log(late))) < 2.0


def test_a_group_whose_runs_go_on_is_expected_to_go_on() -> None:
    alike = [RunTime(lineage=MINE, seconds=1000.0 * 1.1**n) for n in range(30)]
    open_ones = [RunTime(lineage=MINE, seconds=9e5, ended=False) for _ in range(30)]

    (ended,) = RunTimes(alike).for_means().remaining(MINE, [0.9])
    (going_on,) = RunTimes(alike + open_ones).for_means().remaining(MINE, [0.9])

    assert going_on > 10.0 * ended


@pytest.mark.parametrize("runs", [0, 1])
def test_hazards_without_runs_that_have_ended_are_those_of_the_wider_group(runs: int) -> None:
    open_ones = [RunTime(lineage=MINE, seconds=60.0, ended=False)] * runs

    (found,) = RunTimes(open_ones).for_means().remaining(MINE, [0.5])

    assert 0.0 < found < 120 * 86400.0
