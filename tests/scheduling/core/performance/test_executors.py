"""Several processes on a device: tried once, kept where they pay, taken back where they do not."""

from dataclasses import replace

import pytest

from scheduling.core.jobspec import Demand, MemberDemand
from scheduling.core.performance.executors import (
    HOPE,
    executors_in,
    executors_on,
    shared_by,
    sharing_of,
)
from scheduling.core.policy_interface import Alloc, Facts, Part, Plan, Terms
from scheduling.core.round.gang_sizes import scale_of
from scheduling.core.round.policy_answers import RESIZE_AFTER_SECONDS
from scheduling.core.values import JobFacts, RunObservation
from tests.factories.rounds import decide_with_policy, held_job, plan_of_devices, queued_job


def seen(executors, steps, *, devices=1, kind="a", seconds=100.0):
    return RunObservation(
        type=kind,
        nodes=1,
        devices=devices,
        seconds=seconds,
        steps=steps,
        samples=float(steps),
        executors=executors,
    )


def test_without_leave_or_measurement_one_process_has_a_device_alone():
    assert sharing_of((seen(1, 100),), 8, 1) == {}
    assert sharing_of((), 8, 4) == {}
    assert sharing_of((seen(1, 19),), 8, 4) == {}
    assert sharing_of((seen(1, 100, seconds=29.0),), 8, 4) == {}


def test_when_one_has_been_measured_a_second_is_hoped_for():
    assert sharing_of((seen(1, 100),), 8, 2) == {"a": (1.0, HOPE / 2)}


def test_what_was_measured_counts_and_not_what_was_hoped():
    # Two processes with four workers each make 120 steps where one with eight makes 100.
    assert sharing_of((seen(1, 100), seen(2, 120)), 8, 2) == {"a": (1.0, 0.6)}


def test_a_third_is_tried_where_the_second_pays_and_only_there():
    pays = sharing_of((seen(1, 100), seen(2, 120)), 8, 3)
    fails = sharing_of((seen(1, 100), seen(2, 80)), 8, 3)

    assert pays == {"a": (1.0, 0.6, 1.2 * HOPE / 3)}
    assert fails == {"a": (1.0, 0.4)}


def test_types_are_distinguished():
    runs = (seen(1, 100), seen(2, 80), seen(1, 300, kind="b"))

    assert sharing_of(runs, 8, 2) == {"a": (1.0, 0.4), "b": (1.0, HOPE / 2)}


def test_a_number_with_which_a_run_has_failed_is_not_tried_again():
    assert sharing_of((seen(1, 100),), 8, 4, failed=2) == {}
    assert sharing_of((seen(1, 100), seen(2, 120)), 8, 4, failed=3) == {"a": (1.0, 0.6)}


def test_uneven_layouts_report_nothing():
    assert sharing_of((seen(0, 100),), 8, 2) == {}


@pytest.mark.parametrize(
    ("workers", "devices", "paces", "wanted"),
    [
        (8, 1, (1.0,), 1),
        (8, 1, (1.0, 0.6), 2),
        (8, 1, (1.0, 0.5), 1),  # as fast as alone: fewer processes then
        (8, 1, (1.0, 0.6, 0.3), 2),
        (3, 1, (1.0, 0.6), 1),  # the one with two workers takes longer than the one with three
        (3, 2, (1.0, 0.9), 1),  # a fourth process would have no worker
        (2, 4, (1.0, 0.9), 1),
    ],
)
def test_as_many_share_a_device_as_make_the_step_shortest(workers, devices, paces, wanted):
    assert executors_on(workers, devices, paces) == wanted


@pytest.mark.parametrize(
    ("layout", "devices", "wanted"),
    [
        (None, 4, 1),
        ([[2, 2], [2, 2]], 4, 1),
        ([[2, 2], [2, 2]], 2, 2),
        ([[1, 1, 1]], 2, 0),
        ([[1]], 0, 0),
    ],
)
def test_a_layout_reports_how_many_share_a_device(layout, devices, wanted):
    assert executors_in(layout, devices) == wanted


@pytest.mark.parametrize(
    ("layout", "devices", "wanted"),
    [
        (None, 4, 0),
        (None, 0, 0),
        ([[4], [4]], 2, 0),
        ([[2, 2], [2, 2]], 2, 2),
        ([[2, 2, 2], [2]], 3, 2),
        ([[1, 1, 1], [1, 1, 1]], 2, 3),
    ],
)
def test_a_layout_that_shares_a_device_says_so_even_where_not_all_are_shared(
    layout, devices, wanted
):
    assert shared_by(layout, devices) == wanted


# -- in rounds -----------------------------------------------------------------------------------


def training(*, now=1, **facts):
    """Four devices, eight logical workers, and leave for two processes per device."""
    demand = Demand(members=(MemberDemand(role="worker", count=1, devices=4),))
    terms = Terms(scale=scale_of(demand, 4, 4), logical_workers=8, executors=2)
    return JobFacts(terms=terms, facts=Facts(executors=now, **facts))


def wants(executors, devices=4):
    alloc = Alloc(parts=(Part(n=devices, type="a", executors=executors),))
    return Plan(allocs={1: alloc}, order=(1,))


def left(plan, known, ran=RESIZE_AFTER_SECONDS):
    return decide_with_policy(plan, holding=(held_job(4, ran=ran),), known={1: known}).preemptions


def test_another_number_of_processes_is_a_restart_at_the_same_size_and_no_sooner_than_a_resize():
    hoped = training(sharing={"a": (1.0, HOPE / 2)})

    (one,) = left(wants(2), hoped)

    assert (one.job_id, one.cause) == (1, "resize")
    assert one.rule == (
        "Its policy runs it with 2 processes per device instead of 1 process per device"
    )
    assert left(wants(2), hoped, ran=RESIZE_AFTER_SECONDS - 1) == ()
    assert left(wants(None), hoped) == ()
    assert left(wants(2), training(now=2, sharing={"a": (1.0, 0.6)})) == ()


def test_whatever_its_policy_says_a_job_that_several_processes_slow_down_goes_back():
    slow = training(now=2, sharing={"a": (1.0, 0.4)})

    for plan in (plan_of_devices(j1=4), wants(2)):
        (one,) = left(plan, slow)
        assert one.cause == "revert"
        assert one.rule == (
            "It is slower with 2 processes per device than with 1 process per device and "
            "returns to that"
        )
    assert left(plan_of_devices(j1=4), slow, ran=10.0) == ()
    assert left(plan_of_devices(j1=4), training(now=2, sharing={"a": (1.0, 0.49)})) == ()
    kept = replace(slow, terms=replace(slow.terms, preemptible=False))
    assert left(plan_of_devices(j1=4), kept) == ()


def test_fewer_processes_that_are_faster_by_a_hair_are_no_reason_to_restart():
    slower = training(now=2, sharing={"a": (1.0, 0.49)})

    assert left(wants(1), slower) == ()
    (one,) = left(wants(1), replace(slower, terms=replace(slower.terms, executors=1)))
    assert one.cause == "resize"  # the owner allows no second one any more


def test_a_number_that_has_only_been_hoped_for_is_not_taken_back():
    assert left(plan_of_devices(j1=4), training(now=2, sharing={"a": (1.0, HOPE / 2)})) == ()


def test_a_job_that_waits_is_tried_whatever_processes_its_policy_wants():
    result = decide_with_policy(wants(2), queued_job(1, 4), known={1: training()})

    (start,) = result.starts
    assert sum(len(member.leaves) for member in start.members) == 4
