"""The curve of a job over its sizes."""

from dataclasses import replace

import pytest

from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.performance.saturation import predicted
from scheduling.core.policy_interface import JobPhase, PolicyJob, Scale, Step, Terms
from scheduling.core.values import JobFacts, RunObservation


def a_job(devices=8, least=1, most=16):
    return PolicyJob(
        id=1,
        owner=1,
        priority=10,
        job_class=JobClass.GUARANTEED,
        submitted=0.0,
        demand=Demand(members=(MemberDemand(role="worker", count=1, devices=devices),)),
        phase=JobPhase.QUEUED,
        since=0.0,
        terms=Terms(scale=Scale(minimum=least, maximum=most)),
    )


def seen(devices, step):
    return RunObservation(
        type="a", nodes=1, devices=devices, seconds=100 * step, steps=100, samples=6_400.0
    )


def test_a_job_that_scales_no_further_saturates_at_the_first_size_that_is_as_good():
    known = JobFacts(seen=(seen(1, 0.8), seen(2, 0.4), seen(4, 0.2), seen(8, 0.2), seen(16, 0.2)))

    found = predicted(a_job(), known)

    assert found is not None
    assert (found.requested, found.type, found.seen) == (8, "a", (1, 2, 4, 8, 16))
    assert found.saturates == 4
    assert dict(found.sizes)[2] == pytest.approx(2.5)


def test_a_job_that_gains_from_every_device_saturates_at_its_largest_measured_size():
    found = predicted(a_job(), JobFacts(seen=(seen(1, 0.8), seen(4, 0.2))))

    assert found is not None
    assert found.saturates == 4
    assert [n for n, _ in found.sizes] == list(range(1, 17))


def test_a_job_none_of_whose_sizes_is_allowed_keeps_the_one_it_asks_for():
    job = a_job(devices=6, least=5, most=7)
    job = replace(job, terms=Terms(scale=replace(job.terms.scale, step=Step.POWER_OF_TWO)))

    found = predicted(job, JobFacts(seen=(seen(6, 0.2),)))

    assert found is not None
    assert [n for n, _ in found.sizes] == [6]


def test_of_many_sizes_the_first_the_last_and_the_one_asked_for_are_told():
    found = predicted(a_job(devices=38, most=1_000), JobFacts(seen=(seen(1, 0.8),)))

    assert found is not None
    sizes = [n for n, _ in found.sizes]
    assert {1, 38, 1_000} <= set(sizes)
    assert len(sizes) <= 64


def test_nothing_is_predicted_before_a_job_has_told_of_steps():
    assert predicted(a_job(), JobFacts()) is None
