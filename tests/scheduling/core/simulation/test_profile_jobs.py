"""Profile jobs in simulated traces, with times that are worked out by hand."""

import itertools

import pytest

from scheduling.core.policies import make_policy
from scheduling.core.policy_interface import Kind, Scale
from scheduling.core.simulation.setups import Setup
from scheduling.core.simulation.workload_run import WorkloadRun, run_workload
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import Trace, TraceJob


def setup(seconds, *, kind=Kind.ELASTIC, jobs=1, cluster="a:1x4,b:1x4"):
    trace = Trace(
        name="t.csv",
        format="tessera",
        jobs=tuple(
            TraceJob(
                name=f"j{n}",
                submitted=0.0,
                devices=2,
                duration=3_600.0,
                kind=kind,
                scale=None if kind is Kind.RIGID else Scale(minimum=1, maximum=2),
            )
            for n in range(jobs)
        ),
    )
    return Setup(
        trace=trace,
        cluster=read_cluster(cluster),
        files=lambda _name: None,
        profile_seconds=seconds,
    )


def test_profile_jobs_run_on_one_device_of_each_type_and_teach_their_job():
    run = WorkloadRun(setup(60.0), make_policy("tessera", {}), lambda: 0.0)
    run.step()

    while run.now < 70.0:
        run.step()

    snapshot = run.world.snapshot()
    known = snapshot.known[1]
    assert sorted(one.type for one in known.profile) == ["a", "b"]
    assert {one.steps / one.seconds for one in known.profile} == {1.0}
    assert run.done == 0


@pytest.mark.parametrize(
    ("seconds", "kind"), [(None, Kind.ELASTIC), (60.0, Kind.RIGID)], ids=["off", "rigid"]
)
def test_other_jobs_get_no_profile_jobs(seconds, kind):
    run = WorkloadRun(setup(seconds, kind=kind), make_policy("tessera", {}), lambda: 0.0)
    run.step()

    assert set(run.world.holding) | set(run.world.waiting) <= {1}


def test_results_contain_only_jobs_of_the_trace():
    ticks, policy = itertools.count(), make_policy("tessera", {})

    result = run_workload(
        setup(60.0, jobs=3),
        policy,
        rules="events",
        workload="t.csv",
        timer=lambda: float(next(ticks)),
    )

    assert [job.name for job in result.jobs] == ["j0", "j1", "j2"]
    assert all(job.finished is not None for job in result.jobs)
    assert result.fallbacks == ()
