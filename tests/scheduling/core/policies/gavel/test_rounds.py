"""Gavel's rounds: fractions come true over time, and what it remembers is small."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.policies import make_policy
from scheduling.core.policy_interface import JobPhase, LinearModel
from tests.strategies.policy_views import NOW, TYPES, applied, make_job, make_view


class FastOnB(LinearModel):
    """Job 1 is four times as fast on b; the others are alike on both."""

    def rate(self, job, shape, batch=None):
        return shape.devices * (4.0 if job.id == 1 and shape.type == "b" else 1.0)

    def pair(self, job, other, device_type):
        return (0.9, 0.8) if {job.id, other.id} == {1, 2} else (0.4, 0.4)


def run(view, rounds, **args):
    """Seconds by job and type over so many rounds of a minute."""
    policy = make_policy("gavel", args)
    state: Mapping[str, Any] = {}
    had: dict[tuple[int, str], int] = {}
    for _ in range(rounds):
        plan, state = policy.plan(view, state)
        view = applied(view, plan)
        for job in view.jobs:
            if job.phase is JobPhase.RUNNING:
                key = (job.id, job.alloc.single.type)
                had[key] = had.get(key, 0) + 1
        view = replace(view, now=view.now + 60.0)
    return had


def test_each_job_gets_its_share_of_the_time():
    view = make_view([make_job(i, 2, types=("a",)) for i in (1, 2, 3)], {"a": 2})

    had = run(view, 90, quantum=60.0)

    assert all(had[(job, "a")] == pytest.approx(30, abs=2) for job in (1, 2, 3))


def test_weights_count():
    jobs = [make_job(1, 2, types=("a",), weight=2.0), make_job(2, 2, types=("a",))]

    had = run(make_view(jobs, {"a": 2}), 90, quantum=60.0)

    assert had[(1, "a")] == pytest.approx(60, abs=2)


def test_the_job_that_is_faster_there_gets_the_fast_type():
    view = make_view([make_job(1), make_job(2)], {"a": 1, "b": 1}, model=FastOnB(TYPES))

    had = run(view, 20)

    assert had == {(1, "b"): 20, (2, "a"): 20}


def test_places_rotate_once_a_quantum_and_no_sooner():
    view = make_view([make_job(i, 2, types=("a",)) for i in (1, 2)], {"a": 2})
    policy, runs = make_policy("gavel", {"quantum": 300.0}), []
    state: Mapping[str, Any] = {}
    for _ in range(20):
        plan, state = policy.plan(view, state)
        runs.append(next(iter(plan.allocs)))
        view = replace(applied(view, plan), now=view.now + 60.0)

    assert runs == [1] * 5 + [2] * 5 + [1] * 5 + [2] * 5


def test_a_pair_that_makes_more_together_shares_and_others_do_not():
    jobs = [make_job(i, types=("a",), shareable=True) for i in (1, 2, 3)]
    view = make_view(jobs, {"a": 2}, model=FastOnB(TYPES))

    plan, _ = make_policy("gavel", {"sharing": True}).plan(view, {})
    without, _ = make_policy("gavel", {}).plan(view, {})

    groups = {job: alloc.share.group for job, alloc in plan.allocs.items() if alloc.share}
    assert groups == {1: "1+2", 2: "1+2"}
    assert 3 in plan.allocs
    assert len(without.allocs) == 2


def test_who_has_gone_is_forgotten():
    policy = make_policy("gavel", {"reset_seconds": 60.0})
    view = make_view([make_job(i, types=("a",)) for i in range(1, 9)], {"a": 2})
    _, state = policy.plan(view, {})
    _, state = policy.plan(replace(view, now=NOW + 600), state)

    _, after = policy.plan(replace(view, now=NOW + 900, jobs=view.jobs[:1]), state)

    assert all(set(after[key]) <= {"1"} for key in ("fractions", "received", "owed", "isolated"))


def test_a_late_job_counts_more_when_ends_are_to_be_fair():
    # Two jobs of equal work; one has waited long, so it must catch up.
    jobs = [
        make_job(1, types=("a",), submitted=NOW - 5000.0, facts={"steps_left": 1000.0}),
        make_job(2, types=("a",), submitted=NOW, facts={"steps_left": 1000.0}),
    ]

    _, state = make_policy("gavel", {"objective": "finish-time"}).plan(
        make_view(jobs, {"a": 1}), {}
    )

    assert state["fractions"]["1"]["a"] > 2 * state["fractions"]["2"]["a"]


def test_a_pair_that_was_slow_is_kept_while_one_of_its_jobs_leaves_its_device():
    view = make_view([make_job(i, types=("a",), shareable=True) for i in (1, 2)], {"a": 1})
    policy = make_policy("gavel", {"sharing": True})
    leaving = replace(view.jobs[1], phase=JobPhase.LEAVING)

    _, state = policy.plan(replace(view, jobs=(view.jobs[0], leaving)), {"barred": [[1, 2]]})
    _, without = policy.plan(replace(view, jobs=view.jobs[:1]), state)

    assert state["barred"] == [[1, 2]]
    assert "barred" not in without
