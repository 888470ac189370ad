"""The rules without rounds, on queues whose course is worked out by hand."""

import itertools
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.policies import POLICIES, make_policy
from scheduling.core.policy_interface import Alloc, Part, Plan
from scheduling.core.simulator import (
    Conditions,
    Knowledge,
    Setup,
    SimulationError,
    Trace,
    TraceJob,
    read_cluster,
    simulate,
)
from scheduling.core.simulator.faults import NodeChange
from scheduling.core.simulator.rules.event_inputs import interpolated, read_gavel
from scheduling.core.simulator.rules.events import EventWorld


def world_of(*rows, cluster="a:1x4", interval=None, **setup):
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
            **setup,
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


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 6), st.integers(1, 90)),
        min_size=1,
        max_size=10,
    ),
    policy=st.sampled_from([name for name in sorted(POLICIES) if not POLICIES[name].needs]),
)
def test_a_policy_that_needs_no_facts_decides_the_same_without_them(rows, policy):
    told = run(world_of(*rows, cluster="a:2x4,b:1x2"), policy)
    untold = run(world_of(*rows, cluster="a:2x4,b:1x2", needs=frozenset()), policy)

    assert told.jobs == untold.jobs


def test_a_job_that_no_empty_cluster_can_hold_is_refused_and_holds_nobody_back():
    result = run(world_of((0.0, 5, 10.0), (1.0, 4, 10.0)), backfill=False)

    assert result.jobs[0].refused == "asks for 5 devices, of which there are 4 of one type"
    assert (result.jobs[0].started, result.jobs[1].finished) == (None, 11.0)
    assert result.to_json()["refused"] == 1


def test_jobs_run_as_fast_as_their_table_says_on_each_type():
    table = {"a": {"('LM (batch size 5)', 2)": {"null": 4.0}}}
    table["b"] = {"('LM (batch size 5)', 2)": {"null": 1.0}}
    job = TraceJob(
        name="j", submitted=0.0, devices=2, steps=400.0, application="LM (batch size 5)", batch=5
    )
    files = {"simulation_throughputs.json": json.dumps(table)}.get

    ends = {}
    for cluster in ("a:1x2", "b:1x2"):
        trace = Trace(name="t", format="gavel", jobs=(job,))
        world = EventWorld(Setup(trace=trace, cluster=read_cluster(cluster), files=files))
        ends[cluster] = run(world).jobs[0].finished

    assert ends == {"a:1x2": 100.0, "b:1x2": 400.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no duration; give --profiles a directory with simulation_throughputs.json"),
        ("{", "simulation_throughputs.json:1: is no JSON"),
        ("[]", "simulation_throughputs.json: is not a table of step times"),
        ('{"a": {"LM": {"null": 1}}}', "'LM' is not a job and a number of devices"),
        ('{"a": {"(\'LM\', 1)": {"null": "fast"}}}', "'fast' is not a valid rate"),
        ('{"a": {"(\'LM\', 1)": {"null": -3}}}', "-3 is not a valid rate"),
    ],
)
def test_a_table_of_step_times_that_is_none_is_refused_by_name(text, message):
    job = TraceJob(name="j", submitted=0.0, devices=2, steps=400.0, application="LM")

    with pytest.raises(SimulationError, match=message):
        EventWorld(
            Setup(
                trace=Trace(name="t", format="gavel", jobs=(job,)),
                cluster=read_cluster("a:1x2"),
                files=lambda _path: text,
            )
        )


def test_measured_sizes_are_exact_and_others_lie_between():
    sizes = {1: 6.0, 2: 10.0, 4: 14.0}

    assert interpolated(sizes, 2) == 10.0
    assert interpolated(sizes, 3) == pytest.approx(10.0 + 4.0 * math.log2(1.5))
    assert interpolated(sizes, 8) == 0.0
    assert interpolated({}, 1) == 0.0


def test_rates_on_more_nodes_than_are_needed_are_left_out():
    key = "('A', 16)"
    document = {"v100": {key: {"null": 30.0}}, "v100_unconsolidated": {key: {"null": 20.0}}}

    assert read_gavel(document) == {("A", None): {"v100": {16: 30.0}}}


def test_the_published_throughputs_are_read(shared_dir):
    path = shared_dir / "data/gavel/simulation_throughputs.json"
    if not path.exists():
        pytest.skip(f"no throughputs of Gavel at {path}")
    document = json.loads(path.read_text())

    rates = read_gavel(document)["ResNet-18 (batch size 16)", None]

    name = "('ResNet-18 (batch size 16)', 1)"
    assert rates["v100"][1] == document["v100"][name]["null"]
    assert rates["v100"][1] > rates["k80"][1] > 0


def test_a_failure_takes_what_came_after_the_last_checkpoint():
    conditions = Conditions(
        node_mtbf=1e12, node_repair=1.0, restart_seconds=7.0, checkpoint_seconds=30.0
    )
    world = world_of((0.0, 4, 100.0), conditions=conditions)
    world.advance(0.0)
    world.snapshot()
    world.apply(Plan(allocs={0: Alloc(parts=(Part(n=4, type="a"),))}, order=(0,)))
    world._faults._changes[:] = [NodeChange(70.0, "a", 0, is_up=False)]

    times = []
    plan = make_policy("fifo", {})
    while not world.finished:
        world.advance(world.next_time(None))
        times.append(world.now)
        snapshot = world.snapshot()
        if snapshot is not None:
            world.apply(plan.plan(snapshot, {})[0])

    (record,) = world.records()
    back = times[1]
    assert (record.failures, record.lost) == (1, pytest.approx(4 * 10.0))
    assert record.finished == pytest.approx(back + 7.0 + 40.0)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 6), st.integers(1, 90)),
        min_size=1,
        max_size=8,
    ),
    policy=st.sampled_from(["fifo", "srtf", "tiresias", "capacity"]),
    seed=st.integers(0, 5),
    checkpoint=st.sampled_from([0.0, 20.0]),
)
def test_with_failures_all_work_is_done_once_and_no_device_is_used_twice(
    rows, policy, seed, checkpoint
):
    conditions = Conditions(node_mtbf=200.0, node_repair=40.0, checkpoint_seconds=checkpoint)
    setup = {
        "cluster": "a:3x4",
        "conditions": conditions,
        "seed": seed,
        "knowledge": Knowledge(size_aware=True),
    }
    world = world_of(*rows, **setup)
    result = run(world, policy)

    assert result.fallbacks == ()
    assert result.jobs == run(world_of(*rows, **setup), policy).jobs
    for record, (_submitted, devices, duration) in zip(result.jobs, rows, strict=True):
        assert record.finished is not None
        wasted = record.gpu_seconds - record.lost - devices * duration
        assert -1e-3 <= wasted <= devices * 30.0 * record.restarts + 1e-3


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 90)),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 3),
)
def test_the_book_of_nodes_never_gives_a_device_twice_nor_one_of_a_node_that_is_down(rows, seed):
    world = world_of(
        *rows, cluster="a:3x4", seed=seed, conditions=Conditions(node_mtbf=90.0, node_repair=40.0)
    )
    policy = make_policy("fifo", {})
    wake = None

    while not world.finished:
        world.advance(world.next_time(wake))
        snapshot = world.snapshot()
        if snapshot is None:
            continue
        world.apply(policy.plan(snapshot, {})[0])
        used = world._book.used()
        assert all(0 <= n <= 4 for n in used.values())
        assert all(used[place] == 0 for place in world._book._down)
        assert sum(used.values()) == world.busy
        assert world.busy <= sum(world._book.capacity().values())


def test_declared_sizes_are_wrong_by_the_noise_and_the_same_for_one_seed():
    rows = [(float(n), 1, 100.0) for n in range(200)]

    def estimates(noise, seed=0):
        world = world_of(
            *rows,
            cluster="a:1x4",
            seed=seed,
            knowledge=Knowledge(size_aware=True),
            conditions=Conditions(estimate_noise=noise),
        )
        return [run.view.terms.estimate for run in world._jobs]

    assert set(estimates(0.0)) == {100.0}
    assert estimates(0.5) == estimates(0.5) != estimates(0.5, seed=1)
    logs = [math.log(value / 100.0) for value in estimates(0.5)]
    assert abs(statistics.mean(logs)) < 0.15
    assert 0.4 < statistics.stdev(logs) < 0.6
