"""Profile jobs of jobs with variable batches, on the database."""

from typing import Any

import pytest

from scheduling.core.jobspec import parse_stored
from scheduling.jobs.models import Job, JobEvent
from scheduling.parallelism.models import ModelProfile
from scheduling.parallelism.services import (
    ProfileConfig,
    plan_profiles,
    request_profile,
    store_profile,
    submit_profiles,
)
from scheduling.rounds.snapshot import take_snapshot
from tenants.roles import Role
from tests.factories.attempts import end_member, members_of, run_members
from tests.factories.batch_profiles import batch_profile
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.hybrid import profile_document
from tests.factories.scheduling import CONFIG as ROUNDS
from tests.factories.scheduling import run_round
from tests.factories.tenants import make_tenant

pytestmark = pytest.mark.django_db
CONFIG = ProfileConfig(images_ignored=False, host_network=True)
ADAPTIVE: dict[str, Any] = {
    "mode": "adaptive_batch",
    "min": 1,
    "max": 8,
    "initial_batch": 64,
    "max_batch": 1024,
    "max_local_batch": 256,
    "total_steps": 1000,
}


def cluster(policy: str = "sia") -> None:
    make_cluster()
    make_priority_classes()
    tenant = make_tenant("vision", alice=Role.MEMBER, bob=Role.MEMBER)
    make_virtual_cluster(tenant=tenant, cells=2, policy=policy)


def adaptive(**more: Any) -> Job:
    return make_job(elastic={**ADAPTIVE, **more}, worker={"devices": 4})


def submitted() -> list[Job]:
    return [Job.objects.unscoped().get(pk=pk) for pk in submit_profiles(config=CONFIG, now=NOW)]


def measure(job: Job, found: dict[str, Any] | None = None) -> None:
    run_round(NOW)
    run_members(job)
    store_profile(job_id=job.pk, attempt=1, document=found or batch_profile(), now=NOW)
    for member in members_of(job):
        end_member(member, 0, at=NOW)


def facts_of(job: Job) -> Any:
    return take_snapshot(number=99, now=NOW, config=ROUNDS).snapshot.known[job.pk]


def test_a_profile_job_measures_batches_on_one_device_and_ends():
    cluster()
    job = adaptive()

    (new,) = submitted()

    spec = parse_stored(new.spec)
    assert spec.elastic is not None
    assert (new.devices, new.job_class, new.owner_id) == (1, "opportunistic", job.owner_id)
    assert new.labels == {"profile-of": str(job.pk)}
    assert spec.elastic.to_json() == {
        "mode": "adaptive_batch",
        "initial_batch": 64,
        "max_batch": 1024,
        "max_local_batch": 256,
        "profile": "only",
    }
    assert new.model_fingerprint == job.model_fingerprint
    assert submitted() == []


@pytest.mark.parametrize("policy", ["fifo", "crius"])
def test_policies_without_goodputs_get_no_profile_jobs(policy: str):
    cluster(policy)
    adaptive()

    assert submitted() == []


def test_an_owner_can_refuse_profiles():
    cluster()
    adaptive(profile="none")

    assert submitted() == []


def test_the_next_round_knows_the_profile():
    cluster("tessera")
    job = adaptive()
    assert facts_of(job).profile == ()
    (new,) = submitted()

    measure(new)

    known = facts_of(job)
    assert [(one.type, one.batch) for one in known.profile] == [("a", 16), ("a", 32), ("a", 64)]
    assert known.profile_noise == (1.0, 400.0)
    assert plan_profiles(now=NOW) == 0
    event = JobEvent.objects.get(job=new, kind="profile")
    assert event.text == "Profile of the model on a measured in 2 s."
    (again,) = request_profile(job=job, config=CONFIG, now=NOW)
    assert Job.objects.unscoped().get(pk=again).devices == 1


def test_profiles_count_only_for_jobs_of_the_same_person_with_the_same_limits():
    cluster()
    first = adaptive()
    (new,) = submitted()
    measure(new)

    other = make_job("bob", elastic=ADAPTIVE, worker={"devices": 4})
    wider = adaptive(max_batch=2048)
    same = adaptive()

    assert facts_of(other).profile == facts_of(wider).profile == ()
    assert facts_of(same).profile == facts_of(first).profile != ()


@pytest.mark.parametrize(
    "found", [{**batch_profile(), "points": [{}]}, profile_document()], ids=["wrong", "layers"]
)
def test_a_hostile_profile_is_refused_with_an_event(found: dict[str, Any]):
    cluster()
    job = adaptive()
    (new,) = submitted()

    measure(new, found)

    (profile,) = ModelProfile.objects.unscoped().all()
    assert (profile.document, profile.measured_at) == ({}, None)
    assert "not valid" in JobEvent.objects.get(job=new, kind="profile").text
    assert facts_of(job).profile == ()


def test_a_stored_profile_of_another_version_stops_no_round():
    cluster()
    job = adaptive()
    (new,) = submitted()
    measure(new)
    profile = ModelProfile.objects.unscoped().get()
    profile.document["version"] = 9
    profile.save()

    assert facts_of(job).profile == ()


def test_only_a_profile_job_can_report_a_profile():
    cluster()
    job = adaptive()
    run_round()

    store_profile(job_id=job.pk, attempt=1, document=batch_profile(), now=NOW)

    assert not ModelProfile.objects.unscoped().exists()
