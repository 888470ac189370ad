"""Profile jobs and their reports, on the database."""

from datetime import timedelta

import pytest

from scheduling.core.jobspec import parse_stored
from scheduling.jobs.models import Job, JobEvent
from scheduling.parallelism import services
from scheduling.parallelism.models import AttemptPlan, ModelProfile
from scheduling.parallelism.services import (
    PAUSE,
    VALID,
    ProfileConfig,
    plan_profiles,
    request_profile,
    store_profile,
    submit_profiles,
)
from scheduling.runs.models import Attempt
from tests.factories.attempts import end_member, members_of, run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.hybrid import hybrid_job, profile_document
from tests.factories.scheduling import run_round

pytestmark = pytest.mark.django_db
CONFIG = ProfileConfig(images_ignored=False, host_network=True)


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)


def secret_job(name="gpt", **parallel) -> Job:
    return hybrid_job(
        name=name, worker={"env": {"DEPTH": "8"}, "secrets": {"token": "s3cret"}}, **parallel
    )


def submitted(at=NOW) -> list[Job]:
    return [Job.objects.unscoped().get(pk=pk) for pk in submit_profiles(config=CONFIG, now=at)]


def measure(job: Job, found: dict | None = None, at=NOW) -> None:
    run_round(at)
    run_members(job)
    store_profile(job_id=job.pk, attempt=1, document=found or profile_document(), now=at)
    for member in members_of(job):
        end_member(member, 0, at=at)


def test_a_profile_job_is_the_program_on_one_device_and_nothing_else():
    job = secret_job()

    (new,) = submitted()

    spec = parse_stored(new.spec)
    (role,) = spec.roles.values()
    assert (new.devices, new.job_class, new.owner_id) == (1, "opportunistic", job.owner_id)
    assert (role.device_types, role.env, new.labels) == (
        ("a",),
        {"DEPTH": "8"},
        {"profile-of": str(job.pk)},
    )
    assert spec.parallel is not None
    assert (spec.parallel.profile, spec.elastic, spec.parallel.stages) == ("only", None, ())
    assert new.model_fingerprint == job.model_fingerprint
    assert "s3cret" not in str(new.spec)
    assert submitted() == []


def test_the_profile_becomes_the_plan_of_the_next_start():
    job = secret_job()
    (new,) = submitted()

    measure(new)
    assert plan_profiles(now=NOW) == 1
    assert plan_profiles(now=NOW) == 0

    (attempt,) = Attempt.objects.filter(job=job)  # which began before its profile
    assert not AttemptPlan.objects.unscoped().filter(attempt=attempt).exists()
    later = secret_job("again")
    run_round()
    plan = AttemptPlan.objects.unscoped().get(attempt__job=later)
    assert (plan.source, plan.device_type) == ("profiled", "a")
    assert plan.predicted is not None
    texts = JobEvent.objects.filter(job=new, kind="profile").values_list("text", flat=True)
    assert list(texts) == ["Profile of the model on a measured in 6 s."]


def test_a_hostile_profile_is_refused_with_an_event_and_changes_nothing():
    secret_job()
    (new,) = submitted()

    measure(new, {**profile_document(), "layers": ["x"] * 10_000})

    (profile,) = ModelProfile.objects.unscoped().all()
    assert (profile.document, profile.measured_at, plan_profiles(now=NOW)) == ({}, None, 0)
    event = JobEvent.objects.get(job=new, kind="profile")
    assert "layers" in event.text


def test_only_a_profile_job_can_report_a_profile():
    job = secret_job()
    plain = make_job()
    run_round()

    for other in (job, plain):
        store_profile(job_id=other.pk, attempt=1, document=profile_document(), now=NOW)

    assert not ModelProfile.objects.unscoped().exclude(document={}).exists()


def test_a_failed_profile_is_tried_again_after_a_pause_and_a_valid_one_after_its_time():
    job = secret_job()
    (failed,) = submitted()
    run_round()
    run_members(failed)
    end_member(members_of(failed)[0], 1)

    assert submitted(NOW + PAUSE - timedelta(seconds=1)) == []
    (second,) = submitted(NOW + PAUSE)
    measure(second, at=NOW + PAUSE)
    plan_profiles(now=NOW + PAUSE)

    assert submitted(NOW + PAUSE + VALID - timedelta(seconds=1)) == []
    (third,) = request_profile(job=job, config=CONFIG, now=NOW + 2 * PAUSE)
    assert request_profile(job=job, config=CONFIG, now=NOW + 2 * PAUSE) == []
    assert Job.objects.unscoped().get(pk=third).devices == 1


@pytest.mark.parametrize(
    "parallel",
    [{"profile": "none"}, {"plan": "fixed", "stages": [{"first": 0, "last": 4, "data": 4}]}],
)
def test_some_jobs_are_not_profiled(parallel):
    make_job(parallel={"batch": 32, **parallel}, worker={"devices": 4})

    assert submitted() == []


def reported(job: Job, fingerprint: str, document: dict, after: int) -> ModelProfile:
    return ModelProfile.objects.create(
        tenant=job.tenant,
        fingerprint=fingerprint,
        device_type="a",
        job=job,
        requested_at=NOW + timedelta(seconds=after),
        document=document,
    )


def test_a_profile_without_computable_grids_does_not_stop_the_others():
    job = secret_job()
    bad = reported(job, "bad", {"version": 0}, 0)
    good = reported(job, "good", profile_document(), 1)

    assert plan_profiles(now=NOW) == 2

    bad.refresh_from_db()
    good.refresh_from_db()
    assert (bad.grids, bad.measured_at, good.measured_at) == ([], NOW, NOW)
    assert good.grids


def test_one_call_plans_few_profiles_and_the_oldest_report_first(monkeypatch):
    monkeypatch.setattr(services, "MOST_PLANNED", 1)
    job = secret_job()
    late = reported(job, "late", profile_document(), 2)
    early = reported(job, "early", profile_document(), 1)

    assert plan_profiles(now=NOW) == 1

    late.refresh_from_db()
    early.refresh_from_db()
    assert (early.measured_at, late.measured_at) == (NOW, None)


def test_old_jobs_without_profiles_do_not_displace_later_jobs(monkeypatch):
    monkeypatch.setattr(services, "MOST_JOBS", 1)
    secret_job("old", profile="none")
    secret_job("new", batch=64)

    turns = [submitted(NOW + timedelta(seconds=seconds)) for seconds in (0, services.TURN_SECONDS)]

    assert sorted(map(len, turns)) == [0, 1]


def test_no_profile_job_is_submitted_as_a_deactivated_user():
    job = secret_job()
    job.owner.is_active = False
    job.owner.save()

    assert submitted() == []


def test_at_most_three_profiles_are_measured_at_a_time():
    for batch in (8, 16, 32, 64):
        secret_job(f"gpt-{batch}", batch=batch)

    assert len(submitted()) == 3
    assert submitted() == []
