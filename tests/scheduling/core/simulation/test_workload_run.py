"""The rules ``events``, on queues whose course is worked out by hand."""

import itertools
import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies import make_policy
from scheduling.core.policies.base import rigid_alloc
from scheduling.core.policy_interface import Alloc, Kind, Part, Plan, Scale
from scheduling.core.round.decide import decide
from scheduling.core.simulation import HealthChange
from scheduling.core.simulation.job_table import RETRY_SECONDS
from scheduling.core.simulation.setups import Conditions, Setup
from scheduling.core.simulation.workload_jobs import workload_jobs
from scheduling.core.simulation.workload_run import WorkloadRun, node_faults, run_workload
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import Knowledge, Trace, TraceJob
from tests.factories.policies import Says


def setup_of(*rows, cluster="a:1x4", trace=None, **setup):
    jobs = tuple(
        TraceJob(name=f"j{n}", submitted=submitted, devices=devices, duration=duration)
        for n, (submitted, devices, duration) in enumerate(rows)
    )
    return Setup(
        trace=trace or Trace(name="t.csv", format="events", jobs=jobs),
        cluster=read_cluster(cluster),
        files=setup.pop("files", lambda _path: None),
        **setup,
    )


def run(setup, policy="fifo", **args):
    ticks = itertools.count()
    if isinstance(policy, str):
        policy = make_policy(policy, args)
    return run_workload(
        setup, policy, rules="events", workload="t.csv", timer=lambda: float(next(ticks))
    )


def test_jobs_start_the_moment_they_come_and_the_moment_another_one_ends():
    result = run(setup_of((5.0, 3, 100.0), (10.0, 4, 20.0), (12.0, 1, 30.0)), backfill=False)

    assert [(job.started, job.finished) for job in result.jobs] == [
        (5.0, 105.0),
        (105.0, 125.0),
        (125.0, 155.0),
    ]


def test_with_backfill_the_small_one_passes():
    result = run(setup_of((5.0, 3, 100.0), (10.0, 4, 20.0), (12.0, 1, 30.0)))

    assert [job.started for job in result.jobs] == [5.0, 105.0, 12.0]
    assert result.rounds == 5  # after the last completion there is nothing to decide
    assert result.busy == pytest.approx((300 + 80 + 30) / 120)
    assert result.ended == 125.0


def allocated(*turns):
    """A policy that gives a number of devices from a time on, from the last one that has come."""

    def plan(view):
        n = next(n for at, n in reversed(turns) if view.now >= at)
        allocs = {job.id: Alloc(parts=(Part(n=n, type="a"),)) for job in view.jobs if n}
        return Plan(allocs=allocs, order=tuple(allocs), wake=later(view.now))

    def later(now):
        return min((at for at, _n in turns if at > now), default=None)

    return Says(plan)


def test_work_survives_a_preemption_and_the_next_start_costs_the_restart_time():
    result = run(setup_of((0.0, 2, 400.0)), allocated((0.0, 2), (100.0, 0), (170.0, 2)))

    (job,) = result.jobs
    assert job.finished == pytest.approx(170.0 + 30.0 + 300.0)
    assert (job.restarts, job.gpu_seconds) == (1, pytest.approx(2 * (100.0 + 330.0)))


def test_an_elastic_job_runs_in_proportion_to_its_devices():
    jobs = (
        TraceJob(
            name="j",
            submitted=0.0,
            devices=2,
            duration=1000.0,
            kind=Kind.ELASTIC,
            scale=Scale(minimum=1, maximum=4),
        ),
    )
    trace = Trace(name="t", format="events", jobs=jobs)

    result = run(setup_of(trace=trace), allocated((0.0, 2), (400.0, 4)))

    assert result.fallbacks == ()
    assert result.jobs[0].finished == pytest.approx(400.0 + 30.0 + 300.0)


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 5.0]), st.integers(1, 4), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    ),
    policy=st.sampled_from(["fifo", "srtf", "tiresias", "drf"]),
)
def test_every_job_is_served_its_work_and_no_more(rows, policy):
    result = run(setup_of(*rows), policy)

    assert result.fallbacks == ()
    for record, (submitted, devices, duration) in zip(result.jobs, rows, strict=True):
        assert record.finished >= submitted + duration - 1e-6
        work = devices * (duration + 30.0 * record.restarts)
        assert record.gpu_seconds <= work + 1e-6
        assert record.gpu_seconds >= devices * duration - 1e-3


class Compared(WorkloadRun):
    """Compares each decision with that of a live round on the same rows."""

    def decide(self):
        restored = decide(self.world.snapshot(), trials=0, explain=())
        result = super().decide()
        assert result.starts == restored.starts
        assert result.preemptions == restored.preemptions
        assert result.rejections == restored.rejections
        return result


@settings(deadline=None, max_examples=25)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 200), st.integers(1, 8), st.integers(1, 900)),
        min_size=1,
        max_size=10,
    ),
    policy=st.sampled_from(["fifo", "srtf", "fair", "tiresias", "gavel"]),
    seed=st.integers(0, 3),
)
def test_each_decision_is_that_of_a_live_round_on_the_same_rows(rows, policy, seed):
    conditions = Conditions(node_mtbf=2000.0, node_repair=300.0, checkpoint_seconds=60.0)
    setup = setup_of(*rows, cluster="a:2x4,b:1x2", conditions=conditions, seed=seed)
    run = Compared(setup, make_policy(policy, {}), lambda: 0.0)
    while run.step():
        pass
    assert all(record.finished is not None for record in run.records() if record.refused is None)


def test_a_job_that_no_empty_cluster_can_hold_is_refused_and_holds_nobody_back():
    result = run(setup_of((0.0, 5, 10.0), (1.0, 4, 10.0)), backfill=False)

    assert result.jobs[0].refused == "asks for 5 devices, of which there are 4 of one type"
    assert (result.jobs[0].started, result.jobs[1].finished) == (None, 11.0)
    assert result.to_json()["refused"] == 1


def gavel_setup(cluster, **knowledge):
    table = {"a": {"('LM (batch size 5)', 2)": {"null": 4.0}}}
    table["b"] = {"('LM (batch size 5)', 2)": {"null": 1.0}}
    job = TraceJob(
        name="j", submitted=0.0, devices=2, steps=400.0, application="LM (batch size 5)", batch=5
    )
    return setup_of(
        cluster=cluster,
        trace=Trace(name="t", format="gavel", jobs=(job,)),
        files={"simulation_throughputs.json": json.dumps(table)}.get,
        knowledge=Knowledge(**knowledge),
    )


def test_jobs_run_as_fast_as_their_table_says_on_each_type():
    ends = {cluster: run(gavel_setup(cluster)).jobs[0].finished for cluster in ("a:1x2", "b:1x2")}

    assert ends == {"a:1x2": 100.0, "b:1x2": 400.0}


def test_a_job_never_gets_a_type_without_a_measured_speed():
    result = run(gavel_setup("c:4x2,b:1x2"))

    assert result.jobs[0].finished == 400.0


@pytest.mark.parametrize("oracle", [True, False])
def test_an_oracle_knows_the_speeds_of_all_types_and_others_those_that_ran(oracle):
    rates = []

    def plan(view):
        (job,) = view.jobs
        rates.append({kind: view.model.speed(job, kind) for kind in ("a", "b")})
        allocs = {job.id: rigid_alloc(job)}
        return Plan(allocs=allocs, order=(job.id,), wake=60.0 if view.now < 60.0 else None)

    run(gavel_setup("a:1x2,b:1x2", oracle=oracle), Says(plan))

    assert rates[0] == {"a": 1.0, "b": 0.25 if oracle else 1.0}
    assert rates[-1]["a"] == 1.0


class Failing(WorkloadRun):
    """The node fails at a time, and is repaired at another."""

    def __init__(self, setup, policy, at, back):
        super().__init__(setup, policy, lambda: 0.0)
        self.world.schedule(HealthChange(at=at, node="a#0", healthy=False))
        self.world.schedule(HealthChange(at=back, node="a#0", healthy=True))


@pytest.mark.parametrize(("checkpoint", "lost"), [(30.0, 10.0), (0.0, 0.0)])
def test_a_failure_takes_the_work_since_the_last_checkpoint(checkpoint, lost):
    conditions = Conditions(restart_seconds=7.0, checkpoint_seconds=checkpoint)
    run = Failing(
        setup_of((0.0, 4, 100.0), conditions=conditions), make_policy("fifo", {}), 70.0, 90.0
    )
    while run.step():
        pass

    (record,) = run.records()
    assert record.failures == 1
    assert record.lost == pytest.approx(4 * lost)
    assert record.finished == pytest.approx(90.0 + 7.0 + 30.0 + lost)


def test_a_job_of_a_failed_node_restarts_soon_on_another():
    conditions = Conditions(restart_seconds=7.0)
    setup = setup_of((0.0, 4, 100.0), cluster="a:2x4", conditions=conditions)
    run = Failing(setup, make_policy("fifo", {}), 70.0, 1e6)
    while run.step():
        pass

    assert run.records()[0].finished == pytest.approx(70.0 + RETRY_SECONDS + 7.0 + 30.0)


@settings(deadline=None, max_examples=60)
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
def test_with_failures_all_work_is_done_once_and_every_run_is_the_same(
    rows, policy, seed, checkpoint
):
    setup = setup_of(
        *rows,
        cluster="a:3x4",
        conditions=Conditions(node_mtbf=200.0, node_repair=40.0, checkpoint_seconds=checkpoint),
        seed=seed,
        knowledge=Knowledge(size_aware=True),
    )
    result = run(setup, policy)

    assert result.fallbacks == ()
    assert result.jobs == run(setup, policy).jobs
    for record, (_submitted, devices, duration) in zip(result.jobs, rows, strict=True):
        assert record.finished is not None
        wasted = record.gpu_seconds - record.lost - devices * duration
        assert -1e-3 <= wasted <= devices * 30.0 * record.restarts + 1e-3


def test_nodes_fail_at_equal_times_for_one_seed():
    cluster = read_cluster("a:3x4,b:1x2")
    conditions = Conditions(node_mtbf=90.0, node_repair=40.0)

    def changes(seed):
        return list(itertools.islice(node_faults(cluster, conditions, seed=seed, start=5.0), 200))

    assert changes(1) == changes(1) != changes(2)
    assert [one.at for one in changes(1)] == sorted(one.at for one in changes(1))
    for name in ("a#0", "a#1", "a#2", "b#0"):
        states = [one.healthy for one in changes(1) if one.node == name]
        assert states == [bool(n % 2) for n in range(len(states))]
    assert not list(node_faults(cluster, Conditions(), seed=0, start=0.0))


def test_declared_sizes_are_wrong_by_the_noise_and_the_same_for_one_seed():
    rows = [(float(n), 1, 100.0) for n in range(200)]

    def estimates(noise, seed=0):
        setup = setup_of(
            *rows,
            seed=seed,
            knowledge=Knowledge(size_aware=True),
            conditions=Conditions(estimate_noise=noise),
        )
        jobs = workload_jobs(setup)
        assert all(job.known.facts.steps_left == job.known.terms.estimate for job in jobs)
        return [job.known.terms.estimate for job in jobs]

    assert set(estimates(0.0)) == {100.0}
    assert estimates(0.5) == estimates(0.5) != estimates(0.5, seed=1)
    logs = [math.log(value / 100.0) for value in estimates(0.5)]
    assert abs(statistics.mean(logs)) < 0.15
    assert 0.4 < statistics.stdev(logs) < 0.6


@pytest.mark.parametrize(("shared", "expected"), [(True, "LM"), (False, None)])
def test_jobs_share_reports_by_application_only_if_they_may(shared, expected):
    job = TraceJob(name="j", submitted=0.0, devices=1, duration=5.0, application="LM")
    trace = Trace(name="t", format="events", jobs=(job,))
    setup = setup_of(trace=trace, knowledge=Knowledge(shared_history=shared))

    assert workload_jobs(setup)[0].known.terms.application == expected


def test_a_policy_that_starts_nothing_ends_the_run_with_incomplete_jobs():
    nothing = Says(lambda view: Plan(allocs={}, order=(), wake=view.now + 1.0))

    result = run(setup_of((0.0, 1, 10.0)), nothing)

    assert result.jobs[0].started is None
    assert result.to_json()["censored"] == 1
