"""Running jobs with barred plans leave, and start under the next plan."""

from datetime import timedelta

import pytest

from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job, JobEvent
from scheduling.parallelism.models import AttemptPlan
from scheduling.parallelism.replanning import MOST_RESTARTS, replace_barred_plans
from scheduling.runs.models import Attempt, AttemptProgress, Preemption
from tessera import protocol
from tests.factories.attempts import end_member, members_of, run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.hybrid import BATCH, STAGES, hybrid_job, profiled
from tests.factories.scheduling import run_round

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)


def running(*, step: float) -> Job:
    job = hybrid_job()
    profiled(job, {1: 0.5, 2: 0.25})
    return run_with_steps(job, step)


def run_with_steps(job: Job, step: float) -> Job:
    run_round()
    run_members(job)
    attempt = Attempt.objects.get(job=job)
    AttemptProgress.objects.create(attempt=attempt, steps=200, seconds=200 * step)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    return job


def test_a_running_job_with_a_slow_plan_restarts_under_the_next_one():
    job = running(step=1.0)

    assert replace_barred_plans(now=NOW) == 1
    assert replace_barred_plans(now=NOW) == 0

    receipt = Preemption.objects.get(job=job)
    assert receipt.cause == "policy"
    assert receipt.rule == (
        "Barred: a run took more than 1.5 times as long as predicted. "
        "The job saves a checkpoint and restarts under 4 data."
    )
    for member in members_of(job):
        end_member(member, None, protocol.CAUSE_STOPPED, signal=15)
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    run_round()
    job.refresh_from_db()
    assert job.reason_code == ""
    plan = AttemptPlan.objects.unscoped().get(attempt__job=job, attempt__ended_at=None)
    assert [stage["data"] for stage in plan.plan["stages"]] == [4]
    assert JobEvent.objects.filter(job=job, kind="replanned").exists()


@pytest.mark.parametrize(("hours", "replaced"), [(23, 0), (25, 1)])
def test_a_job_restarts_at_most_four_times_in_a_day(hours: int, replaced: int):
    job = running(step=1.0)
    asked = NOW - timedelta(hours=hours)
    for number in range(2, 2 + MOST_RESTARTS):
        attempt = Attempt.objects.create(
            job=job,
            number=number,
            uid=f"earlier-{number}",
            round_number=1,
            port=20_000 + number,
            created_at=asked,
            ended_at=asked,
        )
        Preemption.objects.create(
            attempt=attempt, job=job, cause="policy", grace_seconds=5, asked_at=asked
        )

    assert replace_barred_plans(now=NOW) == replaced


def test_a_running_job_with_a_good_plan_stays():
    job = running(step=0.25)

    assert replace_barred_plans(now=NOW) == 0
    job.refresh_from_db()
    assert job.state == JobState.RUNNING


def test_the_fixed_plan_of_an_owner_is_never_replaced():
    parallel = {**BATCH, "stages": STAGES, "plan": "fixed"}
    job = make_job(parallel=parallel, worker={"devices": 4})
    profiled(job, {1: 0.5, 2: 0.25})
    run_with_steps(job, 9.0)

    assert replace_barred_plans(now=NOW) == 0
