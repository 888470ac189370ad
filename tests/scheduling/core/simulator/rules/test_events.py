"""The rules without rounds, on queues whose course is worked out by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.planning import Alloc, Part, Plan
from scheduling.core.policies import make_policy
from scheduling.core.simulator import (
    Setup,
    SimulationError,
    Trace,
    TraceJob,
    read_cluster,
    simulate,
)
from scheduling.core.simulator.rules.events import EventWorld


def world_of(*rows, cluster="a:1x4", interval=None):
    jobs = tuple(
        TraceJob(name=f"j{n}", submitted=submitted, devices=devices, duration=duration)
        for n, (submitted, devices, duration) in enumerate(rows)
    )
    return EventWorld(
        Setup(
            trace=Trace(name="t.csv", format="events", jobs=jobs),
            cluster=read_cluster(cluster),
            files=lambda _path: None,
            interval=interval,
        )
    )


def run(world, policy="fifo", **args):
    ticks = itertools.count()
    return simulate(
        world,
        make_policy(policy, args),
        rules="events",
        workload="t.csv",
        timer=lambda: float(next(ticks)),
    )


def test_jobs_start_the_moment_they_come_and_the_moment_another_one_ends():
    result = run(world_of((5.0, 3, 100.0), (10.0, 4, 20.0), (12.0, 1, 30.0)), backfill=False)

    assert [(job.started, job.finished) for job in result.jobs] == [
        (5.0, 105.0),
        (105.0, 125.0),
        (125.0, 155.0),
    ]


def test_with_backfill_the_small_one_passes():
    result = run(world_of((5.0, 3, 100.0), (10.0, 4, 20.0), (12.0, 1, 30.0)))

    assert [job.started for job in result.jobs] == [5.0, 105.0, 12.0]
    assert result.rounds == 5
    assert result.busy == pytest.approx((300 + 80 + 30) / 120)


def test_what_is_done_is_kept_and_going_on_costs_a_restart():
    world = world_of((0.0, 2, 100.0))
    half = Alloc(parts=(Part(n=2, type="a"),))
    for time, allocs in ((0.0, {0: half}), (40.0, {}), (70.0, {0: half})):
        world.advance(time)
        world.snapshot()
        world.apply(Plan(allocs=allocs, order=tuple(allocs)))

    assert world.next_time(None) == pytest.approx(70.0 + 30.0 + 60.0)


def test_a_policy_is_woken_when_it_asked_for_it_and_at_ticks_where_there_are_any():
    world, ticking = world_of((0.0, 1, 100.0)), world_of((0.0, 1, 100.0), interval=7.0)
    for each in (world, ticking):
        each.advance(0.0)
        each.snapshot()
        each.apply(Plan(allocs={0: Alloc(parts=(Part(n=1, type="a"),))}, order=(0,)))

    assert world.next_time(33.0) == 33.0
    assert world.next_time(None) == 100.0
    assert ticking.next_time(33.0) == 7.0


def test_a_job_without_a_duration_is_refused_by_name():
    with pytest.raises(SimulationError, match="j0: has no duration"):
        world_of((0.0, 1, None))


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 5.0]), st.integers(1, 4), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    ),
    policy=st.sampled_from(["fifo", "srtf", "tiresias", "drf"]),
)
def test_every_job_is_served_its_work_and_no_more(rows, policy):
    result = run(world_of(*rows), policy)

    assert result.fallbacks == ()
    for record, (submitted, devices, duration) in zip(result.jobs, rows, strict=True):
        assert record.finished >= submitted + duration - 1e-6
        work = devices * (duration + 30.0 * record.restarts)
        assert record.gpu_seconds <= work + 1e-6
        assert record.gpu_seconds >= devices * duration - 1e-3
