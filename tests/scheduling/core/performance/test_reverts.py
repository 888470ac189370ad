"""Sizes that made a job slower: found in what was measured, and never given again."""

import itertools
from dataclasses import replace

from scheduling.core.performance.reverts import slower_sizes
from scheduling.core.policy_interface import Facts, Slower
from scheduling.core.round.policy_answers import RESIZE_AFTER_SECONDS
from scheduling.core.values import JobFacts, RunObservation
from tests.factories.rounds import (
    decide_with_policy,
    elastic_facts,
    held_job,
    plan_of_devices,
    queued_job,
)

EIGHT = Slower(type="a", devices=8, back_type="a", back_devices=4)


def seen(devices, pace, *, steps=100, kind="a"):
    return RunObservation(
        type=kind,
        nodes=1,
        devices=devices,
        seconds=100.0,
        steps=steps,
        samples=pace * 100.0,
    )


def test_a_growth_that_made_a_job_slower_is_found():
    assert slower_sizes((seen(4, 10.0), seen(8, 9.0))) == (EIGHT,)


def test_less_than_a_margin_and_less_than_some_steps_report_nothing():
    assert slower_sizes((seen(4, 10.0), seen(8, 9.6))) == ()
    assert slower_sizes((seen(4, 10.0), seen(8, 1.0, steps=19))) == ()
    assert slower_sizes((seen(4, 10.0), replace(seen(8, 1.0), seconds=29.0))) == ()


def test_shrinking_and_other_types_are_no_growth():
    assert slower_sizes((seen(8, 10.0), seen(4, 5.0))) == ()
    assert slower_sizes((seen(4, 10.0), seen(8, 5.0, kind="b"))) == ()


def test_it_goes_back_to_the_smaller_size_with_the_best_pace():
    (found,) = slower_sizes((seen(2, 9.0), seen(4, 10.0), seen(8, 8.0)))

    assert (found.devices, found.back_devices) == (8, 4)


def slow_on(known: JobFacts, *slower: Slower) -> JobFacts:
    return replace(known, facts=Facts(slower=slower))


def test_a_job_goes_back_when_its_policy_wants_it_to_stay():
    known = {1: slow_on(elastic_facts(1, 8, 4), EIGHT)}
    stays = plan_of_devices(j1=8)

    early = decide_with_policy(stays, holding=(held_job(8, ran=10.0),), known=known)
    due = decide_with_policy(stays, holding=(held_job(8, ran=RESIZE_AFTER_SECONDS),), known=known)

    assert early.preemptions == ()
    (one,) = due.preemptions
    assert (one.job_id, one.cause) == (1, "revert")
    assert one.rule == (
        "It is slower on 8 devices of type a than on 4 devices of type a and returns to that size"
    )


def test_a_waiting_job_starts_at_the_size_before_and_stays_there():
    known = {1: slow_on(elastic_facts(1, 8, 4), EIGHT)}

    started = decide_with_policy(plan_of_devices(j1=8), queued_job(1, 4), known=known)
    later = decide_with_policy(
        plan_of_devices(j1=8), holding=(held_job(4, ran=10_000.0),), known=known
    )

    (start,) = started.starts
    assert sum(len(member.leaves) for member in start.members) == 4
    assert later.preemptions == ()


def test_whatever_a_policy_wants_a_job_is_resized_a_bounded_number_of_times():
    """A policy that wants another size in each round, on a job that grows slower with its size."""
    sizes, size, since, resizes = (1, 2, 4, 8), 4, 0.0, []
    runs: list[RunObservation] = []
    for turn in range(600):
        at = turn * 10.0
        known = {1: slow_on(elastic_facts(1, 8, 4), *slower_sizes(runs))}
        wanted = sizes[turn % len(sizes)]
        result = decide_with_policy(
            plan_of_devices(j1=wanted), holding=(held_job(size, ran=at - since),), known=known
        )
        if result.preemptions:
            runs.append(seen(size, 10.0 - size))
            again = decide_with_policy(plan_of_devices(j1=wanted), queued_job(1, 4), known=known)
            size = sum(len(member.leaves) for member in again.starts[0].members)
            since = at
            resizes.append(at)

    pauses = [after - before for before, after in itertools.pairwise(resizes)]
    assert len(resizes) <= 600 * 10.0 / RESIZE_AFTER_SECONDS
    assert min(pauses, default=RESIZE_AFTER_SECONDS) >= RESIZE_AFTER_SECONDS
