"""Grids, plans and profiles of one job, through queries, REST, page and command line."""

import pytest
from django.test import Client as Browser

from scheduling.core.round.parallel_plans import GridRow, rows_to_json
from scheduling.jobs.models import Job
from scheduling.parallelism.models import AttemptPlan, ModelProfile
from scheduling.parallelism.queries import parallelism_of_job
from scheduling.runs.models import Attempt, AttemptProgress
from tenants.errors import NotFoundError
from tenants.models import User
from tessera.train.hybrid.plans import ParallelPlan, Stage
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.hybrid import STAGES, hybrid_job, plan_with, profiled
from tests.factories.scheduling import run_round
from tests.factories.tenants import make_member, make_tenant, make_user, make_viewer

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


def store_grids(job: Job, rows: list[GridRow]) -> None:
    ModelProfile.objects.create(
        tenant=job.tenant,
        fingerprint=job.model_fingerprint,
        device_type="a",
        requested_at=NOW,
        measured_at=NOW,
        grids=rows_to_json(rows),
    )


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
    for text in ("20% more than 4 x (1)", "Table of all grids", 'class="gc u5 on"', "Stage 1"):
        assert text in page
    assert "node-1 / 3" in page
    assert 'href="#grid-a-4-2"' in page
    assert 'id="grid-a-4-2"' in page
    assert AttemptPlan.objects.unscoped().get().plan_id == body["plans"][0]["plan"]["id"]


def test_values_of_unmeasured_sizes_are_projected_and_memory_has_its_limit(client: Browser):
    job = hybrid_job()
    rows = [
        GridRow(
            type="a",
            devices=devices,
            stages=1,
            state=state,
            step_seconds=step,
            plan=plan_with(1).document() if step else {},
            stage_bytes=(4e9, size),
            is_projected=devices > 1,
        )
        for devices, state, step, size in (
            (1, "possible", 0.5, 6e9),
            (4, "possible", 0.25, 5e9),
            (8, "too-large", 0.0, 12e9),
            (16, "possible", 0.125, 5e9),
        )
    ]
    store_grids(job, rows)
    client.force_login(User.objects.get(username="alice"))

    found = of(job).grids
    page = client.get(f"/jobs/{job.pk}/parallelism/").content.decode()

    assert [(one.source, one.fullest_stage) for one in found] == [
        ("profiled", 1),
        ("projected", 1),
        ("", 1),
        ("projected", 1),
    ]
    assert found[0].memory_share == pytest.approx(6e9 / (8 << 30))
    assert found[2].reason == "The fullest stage needs 12 of 8.59 GB of a device."
    assert page.count('<span class="fig">projected</span>') == 1
    assert "12.0\N{NO-BREAK SPACE}GB of 8.6\N{NO-BREAK SPACE}GB" in page
    # The job may have at most 8 devices: the larger grid is in the table only.
    assert 'href="#grid-a-16-1"' not in page
    assert 'id="grid-a-16-1"' in page


def test_older_rows_of_several_devices_are_projected():
    job = hybrid_job()
    profiled(job, {1: 0.5})
    profile = ModelProfile.objects.unscoped().get()
    del profile.grids[0]["is_projected"]
    profile.save()

    assert of(job).grids[0].source == "projected"


def test_the_reason_names_the_gain_of_twice_the_devices():
    job = hybrid_job()
    plans = {size: plan_with(1) for size in (4, 8)}
    plans[8] = ParallelPlan((Stage(0, 6, data=8),), micro_batches=4, batch=32)
    rows = [
        GridRow(
            type="a",
            devices=size,
            stages=1,
            state="possible",
            step_seconds=step,
            plan=plans[size].document(),
        )
        for size, step in ((4, 0.25), (8, 0.2))
    ]
    store_grids(job, rows)
    run_round()

    assert of(job).why == (
        "4 data on 4 x a: the only plan of this size that can run. "
        "8 x a would give 25% more for twice the devices."
    )


def test_the_accuracy_of_predictions_counts_the_runs_of_the_tenant_only(client: Browser):
    job = started()
    progress(job, steps=200, seconds=60.0)
    client.force_login(User.objects.get(username="alice"))

    (one,) = of(job).accuracy
    page = client.get(f"/jobs/{job.pk}/parallelism/").content.decode()
    body = client.get(f"/api/v1/jobs/{job.pk}/grids/").json()
    AttemptPlan.objects.unscoped().update(tenant=make_tenant("language"))

    assert (one.type, one.runs) == ("a", 1)
    assert one.median_error == pytest.approx(0.2)
    assert "median error 20\N{NO-BREAK SPACE}%" in page
    assert body["accuracy"][0]["bias"] == pytest.approx(0.2)
    assert of(job).accuracy == ()


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


def test_the_plan_of_a_document_has_its_grids(client: Browser):
    job = started()
    client.force_login(User.objects.get(username="alice"))
    hidden = ("compat", "schema_version")
    document = {key: value for key, value in job.spec.items() if key not in hidden}
    plain = {key: value for key, value in document.items() if key not in ("parallel", "elastic")}

    found, without, wrong = (
        client.post("/api/v1/jobs/plan/", body, content_type="application/json")
        for body in (document, plain, {**document, "parallel": {}})
    )

    (grid,) = found.json()["grids"]["grids"]
    assert (grid["devices"], grid["shape"]) == (4, "2 x (2 data)")
    assert (grid["samples_per_second"], grid["is_measured"]) == (128.0, False)
    assert found.json()["grids"]["sizes"] == [1, 2, 4, 8]
    assert without.json()["grids"] is None
    assert wrong.status_code == 400
    assert Job.objects.unscoped().count() == 1


def test_the_plan_of_a_document_shows_no_profile_of_another_person(client: Browser):
    job = started()
    make_member(job.tenant, make_user("bob"))
    client.force_login(User.objects.get(username="bob"))

    body = client.post("/api/v1/jobs/plan/", job.spec, content_type="application/json").json()

    assert body["grids"]["grids"] == []
    assert body["grids"]["to_profile"] == ["a"]
