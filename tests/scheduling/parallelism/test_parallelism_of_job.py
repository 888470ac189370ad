"""Grids, plans and profiles of one job, through queries, REST, page and command line."""

import pytest
from django.test import Client as Browser

from scheduling.jobs.models import Job
from scheduling.parallelism.models import AttemptPlan
from scheduling.parallelism.queries import parallelism_of_job
from scheduling.runs.models import Attempt, AttemptProgress
from tenants.errors import NotFoundError
from tenants.models import User
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.hybrid import STAGES, hybrid_job, plan_with, profiled
from tests.factories.scheduling import run_round
from tests.factories.tenants import make_tenant, make_user, make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)


def started(**parallel) -> Job:
    job = hybrid_job(**parallel)
    profiled(job, {1: 0.5, 2: 0.25, 4: 0.3})
    run_round()
    return job


def of(job: Job):
    return parallelism_of_job(make_viewer("alice"), job.pk)


def progress(job: Job, *, steps: int, seconds: float) -> None:
    AttemptProgress.objects.create(
        attempt=Attempt.objects.get(job=job), steps=steps, seconds=seconds
    )


def test_the_plan_in_force_is_explained_by_the_next_best_plan():
    found = of(started())

    assert found.why == "2 x (2 data) on 4 x a gives 128 samples/s, 20% more than 4 x (1)."
    assert [(one.stages, one.state, one.is_running) for one in found.grids] == [
        (1, "possible", False),
        (2, "possible", True),
        (4, "possible", False),
    ]
    assert found.in_force is not None
    assert (found.in_force.predicted, found.in_force.measured) == (0.25, None)


def test_measured_times_and_bars_are_shown():
    job = started()
    progress(job, steps=200, seconds=100.0)

    found = of(job)

    slow = found.grids[1]
    assert (slow.state, slow.measured, slow.samples_per_second) == ("barred", 0.5, 64.0)
    assert "1.5 times" in slow.reason
    assert found.why.startswith("2 x (2 data) on 4 x a was the fastest plan at its start")
    assert found.plans[0].measured == 0.5


@pytest.mark.parametrize(
    ("parallel", "words"),
    [({"stages": STAGES, "plan": "auto"}, "stages of the job's document"), ({}, "No plan yet")],
)
def test_a_job_without_a_profile_has_no_grids_but_a_reason(parallel, words):
    job = hybrid_job(**parallel)
    run_round()

    found = of(job)

    assert found.grids == ()
    assert words in found.why


def test_other_jobs_and_other_viewers_have_nothing_to_see():
    job = started()
    plain = make_job()
    make_tenant("language")

    with pytest.raises(NotFoundError):
        of(plain)
    stranger = make_user("mallory")
    with pytest.raises(NotFoundError):
        parallelism_of_job(make_viewer(stranger.username), job.pk)


def test_rest_and_page_show_the_same_grids(client: Browser):
    job = started()
    client.force_login(User.objects.get(username="alice"))

    body = client.get(f"/api/v1/jobs/{job.pk}/grids/").json()
    page = client.get(f"/jobs/{job.pk}/parallelism/").content.decode()

    assert [one["shape"] for one in body["grids"]] == ["4 data", "2 x (2 data)", "4 x (1)"]
    assert body["plans"][0]["plan"] == plan_with(2).document()
    for text in ("20% more than 4 x (1)", "Table of all grids", 'class="num heat-5"', "Stage 1"):
        assert text in page
    assert AttemptPlan.objects.unscoped().get().plan_id == body["plans"][0]["plan"]["id"]


def test_only_hybrid_jobs_have_the_tab(client: Browser):
    job, plain = hybrid_job(), make_job()
    client.force_login(User.objects.get(username="alice"))

    assert "/parallelism/" in client.get(f"/jobs/{job.pk}/").content.decode()
    assert "/parallelism/" not in client.get(f"/jobs/{plain.pk}/").content.decode()
    assert client.get(f"/jobs/{plain.pk}/parallelism/").status_code == 404


def test_a_profile_can_be_requested_by_the_owner_only(client: Browser):
    job = hybrid_job()
    client.force_login(User.objects.get(username="alice"))

    first = client.post(f"/api/v1/jobs/{job.pk}/profile/", content_type="application/json")
    again = client.post(f"/api/v1/jobs/{job.pk}/profile/", content_type="application/json")

    assert (first.status_code, again.json()) == (200, {"jobs": []})
    (new,) = first.json()["jobs"]
    assert Job.objects.unscoped().get(pk=new).devices == 1
