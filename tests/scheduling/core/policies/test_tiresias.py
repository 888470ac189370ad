"""Tiresias: queues by attained service, and the index of past jobs, on numbers made by hand."""

from dataclasses import replace

import pytest

from scheduling.core.policies.tiresias import Tiresias
from scheduling.core.policy_interface import Facts, JobPhase
from scheduling.core.round.decide import decide
from scheduling.core.values import JobFacts
from tests.factories.rounds import (
    LANGUAGE,
    VISION,
    cluster_snapshot,
    jobs_started_by,
    queued_job,
)
from tests.strategies.policy_views import NOW, applied, make_job, make_view

RUNNING = JobPhase.RUNNING


def had(gpu_seconds, executed=None):
    return {"gpu_seconds": gpu_seconds, "executed": executed or gpu_seconds}


def order_of(policy, jobs, state=None, capacity=1):
    plan, after = policy.plan(make_view(jobs, {"a": capacity}), state or {})
    return plan.order, after


def test_who_has_had_less_than_the_threshold_goes_before_who_has_had_more():
    policy = Tiresias(threshold=100.0)
    jobs = [make_job(1, phase=RUNNING, facts=had(100.0)), make_job(2, facts=had(99.0))]

    order, state = order_of(policy, jobs)

    assert order == (2,)
    assert [entry[0] for entry in state["jobs"].values()] == [1, 0]


def test_inside_a_queue_the_first_to_enter_it_is_first_whatever_runs():
    policy = Tiresias(threshold=100.0)
    _, state = order_of(policy, [make_job(2)])
    later = [make_job(1, phase=RUNNING), make_job(2)]
    view = replace(make_view(later, {"a": 1}), now=NOW + 60.0)

    plan, _ = policy.plan(view, state)

    assert plan.order == (2,)


def test_a_large_job_that_does_not_fit_lets_smaller_ones_pass():
    order, _ = order_of(Tiresias(), [make_job(1, 3), make_job(2, 2)], capacity=2)

    assert order == (2,)


def test_thresholds_grow_by_the_factor_and_the_last_queue_has_none():
    policy = Tiresias(queues=3, threshold=100.0, factor=10.0)
    jobs = [make_job(i, facts=had(s)) for i, s in enumerate((99.0, 100.0, 999.0, 1000.0, 1e9))]

    _, state = order_of(policy, jobs)

    assert [entry[0] for entry in state["jobs"].values()] == [0, 1, 1, 2, 2]


def test_it_wakes_when_the_first_running_job_sinks():
    policy = Tiresias(threshold=100.0)
    jobs = [make_job(1, 2, phase=RUNNING, facts=had(60.0)), make_job(2, 1, facts=had(90.0))]

    plan, _ = policy.plan(make_view(jobs, {"a": 2}), {})

    assert plan.wake == NOW + (100.0 - 60.0) / 2


def test_whoever_waits_for_long_starts_again_in_the_first_queue():
    policy = Tiresias(threshold=100.0, promote=2.0)
    patient = make_job(1, facts=had(400.0), since=NOW - 600.0)
    view = make_view([patient], {"a": 0})
    _, state = policy.plan(view, {})
    assert state["jobs"]["1"][0] == 1

    _, before = policy.plan(replace(view, now=NOW + 799.0), state)
    _, after = policy.plan(replace(view, now=NOW + 800.0), before)
    _, much_later = policy.plan(replace(view, now=NOW + 9000.0), after)

    assert before["jobs"]["1"][0] == 1
    assert after["jobs"]["1"] == [0, NOW + 800.0, -1.0, 400.0, 400.0]
    assert much_later == after


def history_of(policy, services):
    """A policy's state after jobs with so much service have come and gone."""
    jobs = [make_job(i + 100, 1, facts=had(s)) for i, s in enumerate(services)]
    _, state = policy.plan(make_view(jobs, {"a": 0}), {})
    _, state = policy.plan(make_view([], {"a": 0}), state)
    return state


def test_the_gittins_index_is_that_of_the_samples():
    policy = Tiresias(form="gittins", threshold=100.0, least_history=4)
    state = history_of(policy, [50.0, 80.0, 150.0, 400.0])

    _, after = policy.plan(make_view([make_job(1), make_job(2, facts=had(60.0))], {"a": 1}), state)

    # From 0 with 100 to go: 2 of 4 end, and min(S, 100) costs 50 + 80 + 100 + 100.
    assert after["jobs"]["1"][2] == pytest.approx(2 / 330)
    # From 60 with 40 to go: 1 of 3 ends, and min(S - 60, 40) costs 20 + 40 + 40.
    assert after["jobs"]["2"][2] == pytest.approx(1 / 100)


def test_the_likeliest_to_end_goes_first_even_if_it_has_had_more():
    policy = Tiresias(form="gittins", threshold=100.0, least_history=4)
    state = history_of(policy, [50.0, 80.0, 150.0, 400.0])

    order, _ = order_of(policy, [make_job(1), make_job(2, facts=had(60.0))], state)

    assert order == (2,)


def test_beyond_all_samples_the_index_is_nothing():
    policy = Tiresias(form="gittins", threshold=100.0, least_history=1)
    state = history_of(policy, [50.0])

    _, after = order_of(policy, [make_job(1, facts=had(70.0))], state)

    assert after["jobs"]["1"][2] == 0.0


def test_without_enough_past_jobs_gittins_is_least_attained_service():
    jobs = [make_job(1, facts=had(100.0)), make_job(2)]

    gittins, _ = order_of(Tiresias(form="gittins", threshold=100.0), jobs)
    las, _ = order_of(Tiresias(threshold=100.0), jobs)

    assert gittins == las == (2,)


def test_a_job_that_ran_and_left_counts_half_of_the_time_since_it_was_seen():
    policy = Tiresias(form="gittins")
    view = make_view([make_job(1, 2, phase=RUNNING, facts=had(100.0))], {"a": 2})
    plan, state = policy.plan(view, {})
    assert applied(view, plan).jobs

    _, after = policy.plan(make_view([], {"a": 2}, now=NOW + 60.0), state)

    assert after["history"] == [100.0 + 2 * 30.0]


def test_the_requested_batch_stays_what_it_is():
    plan, _ = Tiresias().plan(make_view([make_job(1, batch=512)], {"a": 1}), {})

    assert plan.allocs[1].batch == 512


SKEWED = {"skew": 0.74}


def test_only_a_skewed_job_that_fits_a_node_is_consolidated():
    jobs = [
        make_job(1, 2, facts=SKEWED),
        make_job(2, 2, facts={"skew": 0.1}),
        make_job(3, 2),
        make_job(4, 3, facts=SKEWED),
    ]

    plan, _ = Tiresias().plan(make_view(jobs, {"a": 9}), {})

    assert {i: alloc.one_node for i, alloc in plan.allocs.items()} == {
        1: True,
        2: False,
        3: False,
        4: False,  # a node has two devices of this type
    }


def test_a_skewed_job_that_runs_or_has_waited_long_is_not_moved():
    jobs = [make_job(1, 2, phase=RUNNING, facts=SKEWED), make_job(2, 2, facts=SKEWED)]

    plan, _ = Tiresias(pack_seconds=600.0).plan(make_view(jobs, {"a": 4}), {})

    assert [alloc.one_node for alloc in plan.allocs.values()] == [False, False]


@pytest.mark.parametrize(
    ("skew", "nodes"), [(0.74, set()), (0.1, {"node-1", "node-2"}), (None, {"node-1", "node-2"})]
)
def test_a_round_starts_a_skewed_job_on_one_node_only(skew, nodes):
    """Two nodes have three free devices each; the gang needs twice two."""
    busy = jobs_started_by(
        cluster_snapshot(*(queued_job(n, 5, vc=LANGUAGE) for n in (8, 9)), vcs=(LANGUAGE, VISION))
    )
    gang = queued_job(1, 2, 2, vc=LANGUAGE)
    known = {1: JobFacts(facts=Facts(skew=skew), asked=gang.demand)}

    result = decide(
        cluster_snapshot(
            replace(gang, submitted=NOW - 10.0),
            holding=busy,
            vcs=(replace(LANGUAGE, policy="tiresias"), VISION),
            known=known,
        )
    )

    started = {member.node for start in result.starts for member in start.members}
    assert started == nodes
