"""Rounds of the rules ``crius``: arrivals, progress, charges, suspensions and records."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproductions.crius.policies import CriusPolicy, ElasticFlowPolicy, FifoPolicy
from benchmarks.reproductions.crius.world import CriusWorld
from benchmarks.reproductions.driver import simulate
from scheduling.core.policies.queues.ordered import Fifo
from scheduling.core.workloads.traces import SimulationError
from tests.benchmarks.reproductions.crius.toys import CLUSTER, SLOW_MODEL, setup, trace_job


def run(jobs, policy, on_round=None):
    """Run a trace, and return its result; the policy must not fail."""
    world = CriusWorld(setup(jobs, policy))
    result = simulate(
        world,
        policy,
        rules="crius",
        workload="toy",
        timer=time.perf_counter,
        on_round=None if on_round is None else lambda state: on_round(world),
    )
    assert result.fallbacks == ()
    return result


def test_a_round_knows_the_jobs_that_arrive_before_the_next_one():
    jobs = [
        trace_job("a", 1_000),
        trace_job("b", 1_300),
        trace_job("c", 1_301),
        trace_job("d", 1_900),
        trace_job("e", 1_901),
    ]

    result = run(jobs, FifoPolicy())

    assert [job.submitted for job in result.jobs] == [1_000, 1_000, 1_300, 1_600, 1_900]


def test_jobs_end_on_rounds_after_a_fifth_of_their_iterations():
    # 500 / 5 steps at 3.2 s each are 320 s: two rounds.
    (job,) = run([trace_job("a", 0, "a100", 1)], FifoPolicy()).jobs
    (whole,) = run([trace_job("a", 0, "a100", 1)], FifoPolicy(divisor=1)).jobs

    assert (job.started, job.finished, job.gpu_seconds) == (0, 600, 600)
    assert whole.finished == 1_800


@pytest.mark.parametrize(("charged", "finished"), [(True, 600), (False, 300)])
def test_a_long_search_for_a_plan_costs_a_round_without_progress(charged, finished):
    policy = FifoPolicy(charged=charged)

    (job,) = run([trace_job("a", 0, "a100", 4)], policy).jobs

    assert job.finished == finished


def test_fifo_waits_for_the_requested_type_and_keeps_the_order():
    jobs = [
        trace_job("a", 0, "a100", 8),
        trace_job("b", 1, "a100", 8),
        trace_job("c", 2, "a100", 1),
        trace_job("d", 3, "a40", 1),
    ]

    a, b, c, d = run(jobs, FifoPolicy()).jobs

    assert (a.started, d.started) == (0, 0)
    assert b.started == a.finished
    assert c.started == b.finished


def test_crius_moves_a_job_to_the_fastest_type_and_size():
    seen = []

    run(
        [trace_job("a", 0, "a40", 1, steps=5_000)],
        CriusPolicy(),
        lambda world: seen.append(dict(world.holdings)),
    )

    shapes = [(span.type, span.devices) for state in seen for span in state.values()]
    assert shapes[0] == ("a100", 8)


@pytest.mark.parametrize(
    ("policy", "shapes"),
    [
        (CriusPolicy(types=False), {("a40", 8)}),
        (CriusPolicy(scaling=False), {("a100", 1)}),
        (CriusPolicy(scaling=False, types=False), {("a40", 1)}),
    ],
)
def test_ablations_leave_out_scaling_and_changes_of_type(policy, shapes):
    seen: set[tuple[str, int]] = set()

    run(
        [trace_job("a", 0, "a40", 1)],
        policy,
        lambda world: seen.update((s.type, s.devices) for s in world.holdings.values()),
    )

    assert seen == shapes


def test_honest_progress_counts_seconds_at_the_step_time_that_they_had():
    # The second job takes the first one's a100 devices only after its end.
    jobs = [
        trace_job("first", 0, "a100", 8, steps=2_000, model=SLOW_MODEL),
        trace_job("second", 1, "v100", 8, steps=12_000, model=SLOW_MODEL),
    ]
    usual = run(jobs, CriusPolicy(scaling=False)).jobs[1]
    honest = run(jobs, CriusPolicy(scaling=False, honest=True)).jobs[1]

    assert usual.restarts == honest.restarts == 1
    assert usual.finished < honest.finished


def test_jobs_after_the_last_round_are_not_complete():
    jobs = [trace_job("a", 0), trace_job("b", 600, steps=50_000), trace_job("c", 90_000)]

    a, b, c = run(jobs, FifoPolicy(rounds=10)).jobs

    assert a.finished == 600
    assert b.started == 300
    assert (b.finished, c.started) == (None, None)


def test_a_job_that_cannot_run_as_asked_is_refused_by_fifo():
    (job,) = run([trace_job("a", 0, "a100", 1, model="bert__39B")], FifoPolicy()).jobs

    assert (job.finished, job.started) == (None, None)
    assert job.refused == "it cannot run on the devices that it asks for"


def test_late_jobs_are_not_restarted():
    late = trace_job("late", 0, "a100", 8, steps=40_000)
    policy = CriusPolicy(deadline=True, types=False, scaling=False)
    (job,) = run([replace(late, deadline=10.0)], policy).jobs

    assert (job.started, job.finished) == (None, None)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (trace_job("a", 0, "h100"), "the cluster has no devices of type 'h100'"),
        (trace_job("a", 0, "a100", 3), "asks for 3 devices; use 1, 2, 4, 8 or 16"),
    ],
)
def test_unsuitable_jobs_are_refused_by_name(job, message):
    with pytest.raises(SimulationError, match=f"^a: {message}$"):
        CriusWorld(setup([job], FifoPolicy()))


def test_policies_of_other_rules_are_refused():
    with pytest.raises(SimulationError, match="the rules crius run crius, elasticflow-l, fcfs"):
        CriusWorld(setup([trace_job("a", 0)], Fifo()))


POLICIES = st.sampled_from(
    [
        FifoPolicy(),
        FifoPolicy(relaxed=True),
        CriusPolicy(depth=1),
        CriusPolicy(depth=2),
        CriusPolicy(depth=1, opportunistic=False),
        CriusPolicy(depth=1, honest=True, recounts=False),
        CriusPolicy(depth=1, deadline=True),
        CriusPolicy(depth=1, types=False),
    ]
)
JOBS = st.lists(
    st.tuples(
        st.integers(0, 2_000),
        st.sampled_from(["a100", "v100", "a40"]),
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from([100, 1_000, 4_000]),
        st.sampled_from(["bert__760M", SLOW_MODEL]),
    ),
    min_size=1,
    max_size=14,
)


@given(JOBS, POLICIES)
def test_every_round_is_sound_and_every_run_is_the_same(drawn, policy):
    jobs = [
        trace_job(f"j{place}", *values[:3], steps=values[3], model=values[4])
        for place, values in enumerate(sorted(drawn))
    ]
    capacity = CLUSTER.capacity
    most = {job.name: job.devices for job in jobs}
    states = []

    def check(world):
        held = dict.fromkeys(capacity, 0)
        for name, span in world.holdings.items():
            assert span.devices in {1, 2, 4, 8, 16}
            assert span.each <= CLUSTER.groups[span.type].devices
            held[span.type] += span.devices
            if isinstance(policy, FifoPolicy):
                assert span.devices == most[name]
        assert all(held[kind] <= capacity[kind] for kind in capacity)
        assert world.busy == sum(held.values())
        states.append(dict(world.holdings))

    first = run(jobs, policy, check)
    before, states = states, []
    second = run(jobs, policy, check)

    assert before == states
    assert first.jobs == second.jobs
    for job in first.jobs:
        if not (isinstance(policy, CriusPolicy) and policy.deadline):
            assert job.finished is not None
        if job.finished is not None:
            assert (job.finished - job.submitted) % 300 == 0
            assert job.submitted <= job.started < job.finished


def test_elasticflow_starts_with_the_filter_by_memory():
    # The toy has no table of memory, so that no job can be admitted.
    (job,) = run([trace_job("a", 0)], ElasticFlowPolicy()).jobs

    assert job.started is None
