"""Hybrid jobs of a trace on the engine, with times that are worked out by hand."""

import itertools
import json
from dataclasses import replace

import pytest

from scheduling.core.policies import make_policy
from scheduling.core.simulation.setups import Conditions, Setup
from scheduling.core.simulation.workload_run import run_workload
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import Knowledge, Trace, TraceJob

#: Seconds of a step; 4 devices of type a are twice as fast as 2, and b is slower.
TIMES = {
    "bert_1B_64": {
        "1_a_1_n_2_d": 1.0,
        "1_a_1_n_4_d": 0.5,
        "1_b_1_n_2_d": 2.0,
        "1_b_1_n_1_d": -1,
    }
}


def simulated(policy, *jobs, cluster="a:1x4,b:1x2", sized=False, **args):
    trace = Trace(
        name="t.csv",
        format="crius",
        jobs=tuple(
            TraceJob(
                name=f"j{n}",
                submitted=at,
                devices=devices,
                steps=steps,
                application="bert__1B",
                batch=64,
                wish=wish,
            )
            for n, (at, devices, steps, wish) in enumerate(jobs)
        ),
    )
    made, ticks = make_policy(policy, args), itertools.count()
    setup = Setup(
        trace=trace,
        cluster=read_cluster(cluster),
        files=lambda name: json.dumps({"optimal": TIMES}) if "prof" in name else None,
        conditions=Conditions(restart_seconds=60.0),
        knowledge=Knowledge(size_aware=sized),
        policy=made,
        hybrid=True,
    )
    result = run_workload(
        setup, made, rules="events", workload="t.csv", timer=lambda: float(next(ticks))
    )
    assert result.fallbacks == ()
    return result


@pytest.mark.parametrize(("wish", "seconds"), [("a", 100.0), ("b", 200.0)])
def test_a_policy_of_fixed_sizes_runs_the_grid_of_the_requested_type(wish, seconds):
    (job,) = simulated("fifo", (0.0, 2, 100.0, wish)).jobs

    assert job.finished == pytest.approx(seconds)


@pytest.mark.parametrize("policy", ["crius", "tessera", "sia"])
def test_a_policy_of_grids_starts_a_lone_job_on_the_fastest_one(policy):
    (job,) = simulated(policy, (0.0, 2, 100.0, "b")).jobs

    assert job.finished == pytest.approx(50.0)


def test_a_halved_job_pays_its_restart_and_both_complete():
    jobs = [(0.0, 4, 2000.0, "a"), (400.0, 2, 100.0, "a")]

    first, second = simulated("crius", *jobs, cluster="a:1x4").jobs

    # No change within 10 restarts (600 s), so the first job is halved by the decision at 700 s,
    # after 1,400 steps, and continues from 760 s on.
    assert second.started == pytest.approx(700.0)
    assert second.finished == pytest.approx(800.0)
    assert first.restarts == 1
    assert first.finished == pytest.approx(760.0 + 600.0)


def test_declared_steps_are_iterations():
    (job,) = simulated("tessera", (0.0, 2, 100.0, "a"), sized=True).jobs

    assert job.finished == pytest.approx(50.0)


def test_a_run_is_deterministic():
    jobs = [(40.0 * n, 2, 300.0 + n, "ab"[n % 2]) for n in range(12)]
    one, again = (simulated("crius", *jobs) for _ in range(2))

    assert replace(one, wall_seconds=0.0) == replace(again, wall_seconds=0.0)
