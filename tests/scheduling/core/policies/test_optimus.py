"""Optimus: marginal gains in completion time, against all ways to share the devices."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.performance.live import LiveModel
from scheduling.core.policies.optimus import Optimus
from scheduling.core.policy_interface import JobPhase, LinearModel, Scale, Step
from tests.strategies.policy_views import make_job, make_view


class Curves(LinearModel):
    """Step times by job and devices; steps left at the requested batch where they are given."""

    def __init__(self, seconds, left=None):
        super().__init__()
        self.seconds = seconds
        self.left = left or {}

    def rate(self, job, shape, batch=None):
        table = self.seconds[job.id]
        return 1.0 / table[shape.devices - 1] if shape.devices <= len(table) else 0.0

    def steps_left(self, job, batch):
        return self.left.get(job.id)


def elastic(job_id, most=4, left=100.0, done=1000.0, **rest):
    facts = {"steps_left": left, "steps_done": done}
    return make_job(job_id, scale=Scale(minimum=1, maximum=most), facts=facts, **rest)


def sizes(jobs, seconds, devices, policy=None, left=None):
    view = make_view(jobs, {"a": devices}, model=Curves(seconds, left))
    plan, _ = (policy or Optimus()).plan(view, {})
    return {job_id: alloc.devices for job_id, alloc in plan.allocs.items()}


@st.composite
def falling(draw):
    """Step times whose savings shrink with every device."""
    savings = sorted(draw(st.lists(st.integers(0, 9), min_size=3, max_size=3)), reverse=True)
    times = [50]
    for saving in savings:
        times.append(times[-1] - saving)
    return [float(seconds) for seconds in times]


@given(curves=st.lists(falling(), min_size=1, max_size=3), spare=st.integers(0, 6))
def test_with_falling_returns_the_sum_of_remaining_times_is_least(curves, spare):
    jobs = [elastic(i) for i in range(len(curves))]
    devices = len(curves) + spare

    found = sizes(jobs, dict(enumerate(curves)), devices)

    def total(counts):
        return sum(curve[n - 1] for curve, n in zip(curves, counts, strict=True))

    best = min(
        total(counts)
        for counts in itertools.product(range(1, 5), repeat=len(curves))
        if sum(counts) <= devices
    )
    assert total([found[i] for i in range(len(curves))]) == best


def test_the_first_to_come_have_a_device_each_and_the_rest_wait():
    found = sizes([elastic(i) for i in range(3)], {i: [9.0, 1.0] for i in range(3)}, 2)

    assert found == {0: 1, 1: 1}


def test_a_device_that_does_not_help_stays_free():
    assert sizes([elastic(1)], {1: [9.0, 8.0, 8.0, 1.0]}, 4) == {1: 2}


def test_equal_gains_go_to_the_earlier_job():
    assert sizes([elastic(1), elastic(2)], {i: [9.0, 5.0] for i in (1, 2)}, 3) == {1: 2, 2: 1}


@pytest.mark.parametrize(("young", "larger"), [(1.0, 1), (0.5, 2)])
def test_gains_of_jobs_that_have_just_begun_count_less(young, larger):
    jobs = [elastic(1, left=100.0, done=0.0), elastic(2, left=80.0, done=80.0)]

    found = sizes(jobs, {i: [9.0, 5.0] for i in (1, 2)}, 3, Optimus(young=young))

    assert found[larger] == 2


def test_a_model_that_counts_steps_at_the_batch_is_asked_first():
    jobs = [elastic(1, left=100.0, batch=8), elastic(2, left=1.0, batch=8)]
    curves = {i: [9.0, 5.0] for i in (1, 2)}

    assert sizes(jobs, curves, 3) == {1: 2, 2: 1}
    assert sizes(jobs, curves, 3, left={1: 1.0, 2: 100.0}) == {1: 1, 2: 2}


def test_of_live_jobs_without_declared_steps_losses_tell_who_is_nearly_done():
    def trained(job_id, speed):
        losses = tuple((100.0 * k, 1.0 / (speed * k + 1.0) + 0.2) for k in range(1, 9))
        facts = {"losses": losses, "steps_done": 800.0}
        return make_job(job_id, scale=Scale(minimum=1, maximum=4), facts=facts)

    jobs = [trained(1, speed=9.0), trained(2, speed=0.1)]
    view = make_view(jobs, {"a": 3}, model=LiveModel(jobs, {}))

    plan, _ = Optimus().plan(view, {})

    assert {job_id: alloc.devices for job_id, alloc in plan.allocs.items()} == {1: 1, 2: 2}


def test_sizes_are_those_that_a_job_allows_and_rigid_jobs_get_their_gang():
    scale = Scale(minimum=1, maximum=4, step=Step.POWER_OF_TWO)
    jobs = [make_job(1, scale=scale), make_job(2, 2, phase=JobPhase.QUEUED)]

    found = sizes(jobs, {1: [9.0, 6.0, 4.0, 3.0], 2: [5.0, 4.0]}, 6)

    assert found == {1: 4, 2: 2}


def test_of_steps_of_several_devices_the_gain_of_each_device_counts():
    doubling = make_job(1, 2, scale=Scale(minimum=2, maximum=4, step=Step.POWER_OF_TWO))
    curves = {1: [20.0, 20.0, 20.0, 10.0], 2: [20.0, 14.0]}

    assert sizes([doubling, elastic(2, most=2, left=1.0)], curves, 5) == {1: 2, 2: 2}


def test_small_jobs_are_placed_first():
    view = make_view(
        [elastic(1), elastic(2)], {"a": 3}, model=Curves({1: [9.0, 1.0], 2: [9.0, 8.0]})
    )

    plan, _ = Optimus().plan(view, {})

    assert plan.order == (2, 1)


def test_a_job_starts_at_the_smallest_size_that_it_allows():
    scale = Scale(minimum=3, maximum=4, step=Step.POWER_OF_TWO)
    facts = {"steps_left": 10.0, "steps_done": 100.0}

    assert sizes([make_job(1, 4, scale=scale, facts=facts)], {1: [4.0, 3.0, 2.5, 2.0]}, 3) == {}
    assert sizes([make_job(1, 4, scale=scale, facts=facts)], {1: [4.0, 3.0, 2.5, 2.0]}, 5) == {
        1: 4
    }
