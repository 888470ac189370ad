"""The rules of Sia's artefact, on a made-up application whose times are known exactly."""

import itertools
from dataclasses import replace

import pytest

from benchmarks.reproductions.driver import simulate
from benchmarks.reproductions.placement import keep, pack, shape_of, spread_evenly
from benchmarks.reproductions.sia.world import SiaWorld
from scheduling.core.policies import make_policy
from scheduling.core.policy_interface import Alloc, Kind, Part, Plan
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import Knowledge, SimulationError, Trace, TraceJob
from tests.benchmarks.reproductions.made_up import profiles

RESTART = 50
#: Without noise a larger batch is worth nothing: 100 epochs of 100 steps of 1.28 s, slowed by 1.8.
STEP = 1.28 * 1.8


def job(name="cifar10-0", submitted=0.0, devices=1, batch=128, kind=Kind.ADAPTIVE):
    return TraceJob(
        name=name,
        submitted=submitted,
        devices=devices,
        application="cifar10",
        batch=batch,
        kind=kind,
    )


def world_of(*jobs, cluster="a:2x4", **more):
    types = read_cluster(cluster).types
    return SiaWorld(
        Setup(
            trace=Trace(name="w.csv", format="sia", jobs=jobs),
            cluster=read_cluster(cluster),
            files=profiles(*types),
            **more,
        )
    )


def run(world, policy="sia", **args):
    ticks = itertools.count()
    return simulate(
        world,
        make_policy(policy, args),
        rules="sia",
        workload="w.csv",
        timer=lambda: float(next(ticks)),
    )


def give(world, **devices):
    """Plan by hand: devices of type a by job."""
    snapshot = world.snapshot()
    allocs = {
        int(name[1:]): Alloc(parts=(Part(n=n, type="a", level="node"),), batch=128)
        for name, n in devices.items()
    }
    world.apply(Plan(allocs=allocs, order=tuple(allocs)))
    return snapshot


def test_the_first_decision_is_one_interval_after_the_start():
    world = world_of(job())

    assert world.next_time(None) == 60.0
    world.advance(60.0)
    assert [seen.id for seen in world.snapshot().jobs] == [0]


def test_rounds_in_which_there_is_no_job_are_passed_over():
    world = world_of(job(submitted=1000.0))

    assert world.next_time(None) == 1020.0


def test_a_start_is_paid_in_full_and_progress_is_exact():
    world = world_of(job())
    world.advance(60.0)
    give(world, j0=1)

    world.advance(120.0)

    state = world.timeline()["jobs"]["cifar10-0"]
    assert state["placement"] == [1]
    seen = world.snapshot().jobs[0]
    assert seen.facts.steps_done == pytest.approx((60 - RESTART) / STEP)
    assert seen.facts.restarts == 0
    assert not seen.facts.recovering


def test_a_job_that_keeps_its_shape_on_other_nodes_pays_nothing():
    world = world_of(job(), job("cifar10-1"))
    world.advance(60.0)
    give(world, j0=1, j1=4)
    world.advance(120.0)

    give(world, j0=1)
    world.advance(180.0)

    assert world.snapshot().jobs[0].facts.restarts == 0


def test_another_size_and_a_pause_are_starts():
    world = world_of(job())
    world.advance(60.0)
    give(world, j0=1)
    world.advance(120.0)
    give(world, j0=2)
    world.advance(180.0)
    give(world)
    world.advance(240.0)
    give(world, j0=2)
    world.advance(300.0)

    seen = give(world, j0=2).jobs[0]

    assert seen.facts.restarts == 2
    assert seen.facts.gpu_seconds == 60 * (1 + 2 + 2)


def test_one_job_alone_takes_the_time_of_its_epochs_in_whole_seconds():
    world = world_of(job(kind=Kind.RIGID), cluster="a:1x1")

    result = run(world, "fifo")

    (record,) = result.jobs
    assert record.started == 60.0
    assert record.finished == 60 + RESTART + 100 * round(100 * STEP)
    assert result.ftf == (pytest.approx(1.0, abs=0.01),)


def test_what_is_seen_of_a_job_follows_the_flags():
    plain, aware = world_of(job()), world_of(job(), knowledge=Knowledge(size_aware=True))
    for world in (plain, aware):
        world.advance(60.0)

    assert plain.snapshot().jobs[0].facts.steps_left is None
    assert aware.snapshot().jobs[0].facts.steps_left == 10_000


def test_shared_history_tells_the_second_job_what_the_first_has_shown():
    shared = world_of(job(), job("cifar10-1", 61.0), knowledge=Knowledge(shared_history=True))
    shared.advance(60.0)
    give(shared, j0=1)
    shared.advance(120.0)

    first, second = shared.snapshot().jobs

    model = shared.snapshot().model
    assert model.profiled(first) == model.profiled(second) == {"a": 1}


def test_an_oracle_knows_all_sizes_before_the_first_start():
    world = world_of(job(), knowledge=Knowledge(oracle=True))
    world.advance(60.0)
    snapshot = world.snapshot()

    assert snapshot.model.profiled(snapshot.jobs[0]) == {"a": 12}


@pytest.mark.parametrize("policy", ["sia", "fifo"])
def test_the_same_simulation_gives_the_same_records(policy):
    jobs = [job(f"cifar10-{index}", 37.0 * index, 1 + index % 4) for index in range(6)]

    first, second = (run(world_of(*jobs, cluster="a:2x4,b:1x4"), policy) for _ in range(2))

    assert first.jobs == second.jobs
    assert all(record.finished is not None for record in first.jobs)
    assert first.fallbacks == ()


def test_the_document_has_exactly_the_public_figures():
    document = run(world_of(job(), job("cifar10-1", 30.0))).to_json()

    assert list(document) == [
        "policy", "rules", "workload", "jobs", "completed", "avg_jct_h", "p50_jct_h", "p90_jct_h",
        "p99_jct_h", "makespan_h", "gpu_hours_per_job", "avg_restarts", "worst_ftf",
        "avg_gpus_busy", "rounds", "policy_ms", "wall_s", "censored", "refused",
        "failures", "lost_gpu_hours", "per_job",
    ]  # fmt: skip
    assert list(document["policy_ms"]) == ["median", "p95", "max", "counted"]
    assert list(document["per_job"][0]) == [
        "name", "submit_s", "start_s", "finish_s", "restarts", "gpu_seconds",
    ]  # fmt: skip


def test_jobs_that_nobody_can_run_are_censored_and_not_waited_for():
    result = run(world_of(job(kind=Kind.RIGID, devices=9)), "fifo")

    assert result.to_json()["completed"] == 0
    assert result.to_json()["avg_jct_h"] is None
    assert result.jobs[0].finished is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (replace(job(), application="tetris"), "unknown application 'tetris' for the sia rules"),
        (replace(job(), batch=64), "batch_size is 64; cifar10 takes 128 to 1024"),
    ],
)
def test_jobs_that_the_profiles_do_not_know_are_refused(bad, message):
    with pytest.raises(SimulationError, match=message):
        world_of(bad)


def test_packing_fills_whole_nodes_first_and_powers_of_two_never_straddle():
    group = read_cluster("a:3x8").groups["a"]

    placed = pack(group, [(1, 2), (2, 8), (3, 4), (4, 2), (5, 8)])

    assert {name: shape_of(nodes) for name, nodes in placed.items()} == {
        1: (2,), 2: (8,), 3: (4,), 4: (2,), 5: (8,),
    }  # fmt: skip


def test_keeping_leaves_jobs_where_no_larger_one_has_come():
    group = read_cluster("a:2x4").groups["a"]

    placed = keep(group, [(1, 1), (2, 2), (3, 4)], {1: (7,), 2: (2, 3)})

    assert placed == {3: (0, 1, 2, 3), 2: (4, 5), 1: (7,)}


def test_a_shape_over_too_many_nodes_is_spread_evenly():
    assert spread_evenly(24, 2) == (12, 12)
    assert spread_evenly(10, 4) == (3, 3, 3, 1)
