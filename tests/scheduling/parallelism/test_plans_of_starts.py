"""The plans of attempts on the database: choice, failures, and the next plan."""

import pytest

from scheduling.clusters.models import VirtualCluster
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job, JobEvent
from scheduling.parallelism.models import AttemptPlan
from scheduling.rounds.snapshot import take_snapshot
from scheduling.runs.models import Attempt, AttemptProgress
from tests.factories.attempts import end_member, members_of, run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.hybrid import BATCH, STAGES, hybrid_job, plan_with, profiled
from tests.factories.scheduling import CONFIG, run_round
from tests.factories.tenants import make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)


def plan_of(job: Job) -> AttemptPlan:
    return AttemptPlan.objects.unscoped().get(attempt__job=job, attempt__ended_at=None)


def fail(job: Job, failure: str, *, steps: int = 0) -> None:
    run_members(job)
    attempt = Attempt.objects.get(job=job, ended_at=None)
    if steps:
        AttemptProgress.objects.create(attempt=attempt, steps=steps, seconds=1.0 * steps)
    (member,) = [one for one in members_of(job) if one.exited_at is None]
    end_member(member, 1, failure=failure)
    Job.objects.unscoped().filter(pk=job.pk).update(backoff_until=None)
    job.refresh_from_db()


def test_the_plan_of_a_profile_is_stored_with_the_attempt_and_its_prediction():
    job = hybrid_job()
    profiled(job, {1: 0.5, 2: 0.25})

    run_round()

    found = plan_of(job)
    assert (found.source, found.predicted, found.device_type) == ("profiled", 0.25, "a")
    assert found.plan == plan_with(2).document()


def test_a_profile_of_another_tenant_is_not_used():
    job = hybrid_job(stages=STAGES)
    profiled(job, {2: 0.25}, tenant=make_tenant("other"))

    run_round()

    assert take_snapshot(number=9, now=NOW, config=CONFIG).snapshot.grids == {}
    assert plan_of(job).source == "given"


def test_a_job_without_profile_and_stages_leaves_the_plan_to_its_training():
    job = hybrid_job()

    run_round()

    assert Attempt.objects.get(job=job).devices == 4
    assert not AttemptPlan.objects.unscoped().exists()


def test_a_job_whose_plans_are_all_barred_waits_for_another_plan():
    job = hybrid_job()
    profiled(job, {1: 0.5})
    run_round()
    fail(job, "resource-limit")

    run_round()

    job.refresh_from_db()
    assert (job.state, job.reason_code) == (JobState.QUEUED, "no-parallel-plan")
    assert Attempt.objects.filter(job=job).count() == 1


def test_a_profile_job_needs_no_plan():
    job = hybrid_job()
    profiled(job, {1: 0.5})
    profile = make_job(
        name="profile", worker={"devices": 1}, parallel={**BATCH, "profile": "only"}
    )
    assert profile.model_fingerprint == job.model_fingerprint

    tables = take_snapshot(number=9, now=NOW, config=CONFIG).snapshot.grids

    assert list(tables) == [job.pk]


def test_a_profile_without_computed_grids_delays_no_job():
    job = hybrid_job()
    profiled(job, {})

    run_round()

    assert Attempt.objects.get(job=job).devices == 4


@pytest.mark.parametrize(("failure", "steps"), [("resource-limit", 50), ("user", 0)])
def test_a_failed_plan_is_replaced_without_a_retry(failure, steps):
    job = hybrid_job(stages=STAGES)
    profiled(job, {1: 0.5, 2: 0.25})
    run_round()

    fail(job, failure, steps=steps)
    assert (job.state, job.failures) == (JobState.QUEUED, {failure: 0})
    run_round()
    assert plan_of(job).plan == plan_with(1).document()

    fail(job, failure, steps=steps)
    assert job.state == JobState.QUEUED
    run_round()
    assert plan_of(job).source == "given"
    fail(job, failure, steps=steps)
    assert job.state == JobState.FAILED


def test_a_new_plan_is_an_event_with_the_reason_of_the_change():
    job = hybrid_job(stages=STAGES)
    profiled(job, {1: 0.5, 2: 0.25})
    run_round()
    assert not JobEvent.objects.filter(job=job, kind="replanned").exists()
    fail(job, "resource-limit")

    run_round()

    event = JobEvent.objects.get(job=job, kind="replanned")
    assert event.attempt == 2
    assert event.text == (
        "New parallel plan: 4 data on 4 x a, before 2 x (2 data) on 4 x a. "
        "Barred: a run ran out of memory."
    )


def test_a_restart_under_the_same_plan_is_no_event():
    job = hybrid_job()
    profiled(job, {2: 0.25})
    run_round()
    fail(job, "node")

    run_round()

    assert plan_of(job).attempt.number == 2
    assert not JobEvent.objects.filter(job=job, kind="replanned").exists()


def test_a_failure_after_steps_is_a_failure_of_the_training():
    job = hybrid_job()
    profiled(job, {1: 0.5, 2: 0.25})
    run_round()

    fail(job, "user", steps=3)

    assert job.state == JobState.FAILED


def test_a_round_without_hybrid_jobs_reads_no_profiles():
    make_job()
    with_none = count_of(lambda: take_snapshot(number=9, now=NOW, config=CONFIG))
    hybrid_job()

    assert count_of(lambda: take_snapshot(number=9, now=NOW, config=CONFIG)) == with_none + 2


def count_of(work) -> int:
    from django.db import connections
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connections[CONFIG.using]) as queries:
        work()
    return len(queries)


@pytest.mark.parametrize("policy", ["sia", "tessera"])
def test_a_job_with_grids_only_above_its_requested_size_starts_on_one(policy):
    VirtualCluster.objects.unscoped().update(policy=policy)
    job = hybrid_job(worker={"devices": 2})
    profiled(job, {1: 0.5})

    run_round()

    assert Attempt.objects.get(job=job).devices == 4
