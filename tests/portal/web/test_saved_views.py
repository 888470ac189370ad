"""Saved views, templates, acts on many jobs and sweeps: on their pages and by REST."""

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.jobs.models import Job, JobTemplate, SavedView, Sweep
from scheduling.jobs.services.amendments import hold_job
from scheduling.runs.models import Member
from scheduling.sweeps import services as sweeps
from scheduling.sweeps.services import feed_sweeps
from tests.factories.cluster import job_document, make_job, make_virtual_cluster
from tests.factories.running import put_into, run_attempt
from tests.factories.tenants import make_viewer
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of
from tests.support.interleaving import before_query

pytestmark = pytest.mark.django_db
TEXT = """\
name: try
virtual_cluster: vision-a
roles:
  worker:
    devices: 1
    command: 'true'
"""


@pytest.fixture
def stage() -> Stage:
    return make_stage(2)


def sweep_of(client: Client, **changes: str) -> Any:
    form = {"yaml": TEXT, "parameters": "LR = 1, 2, 3\nS = 1, 2", "max_parallel": "2", **changes}
    return client.post("/sweeps/new/", form)


def test_filters_too_long_to_keep_lead_back_to_the_list(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")

    answer = client.post("/jobs/views/", {"name": "Long", "query": "q=" + "x" * 20_000})

    assert (answer.status_code, answer["Location"]) == (302, "/jobs/")
    assert not SavedView.objects.exists()


def test_a_view_is_kept_shown_as_a_tab_and_deleted(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")

    client.post("/jobs/views/", {"name": "Mine  now", "query": "state=live&mine=1"})
    tab = read(client, "/jobs/?state=live&mine=1")
    client.post("/jobs/views/", {"name": "Mine now", "query": "state=failed"})
    (saved,) = SavedView.objects.all()
    sign_in(client, "lena")
    client.post("/jobs/views/", {"delete": str(saved.pk)})

    assert re.search(r'href="\?state=live&amp;mine=1" aria-current="page">Mine now</a>', tab)
    assert saved.query == "state=failed"
    assert SavedView.objects.filter(pk=saved.pk).exists()
    assert ">Mine now</a>" not in read(client, "/jobs/")


def test_the_link_of_a_view_shows_others_the_same_jobs(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    client.post("/jobs/views/", {"name": "Mine", "query": "mine=1"})
    html = read(client, "/jobs/?mine=1")

    found = re.search(r'data-copy="http://testserver(/jobs/\?[^"]*)"', html)

    assert found is not None
    assert found[1] == "/jobs/?user=alice"
    rows = re.compile(r'<tr data-key="(\d+)"')
    assert rows.findall(html)
    assert rows.findall(read(sign_in(client, "lena"), found[1])) == rows.findall(html)


def test_of_many_jobs_each_has_its_own_result(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    picked = [str(job.pk) for job in (stage.waiting, stage.running, stage.foreign)]

    held = client.post("/jobs/act/", {"act": "hold", "selected": picked, "next": "/jobs/?mine=1"})
    released = client.post("/jobs/act/", {"act": "release", "selected": picked[:1]})
    cloned = client.post("/jobs/act/", {"act": "clone", "selected": picked[:2]})
    stopped = client.post("/jobs/act/", {"act": "stop", "selected": picked[:1]})

    text = words_of(held.content.decode())
    assert "Hold: 1 job of 3" in text
    assert "1 job was refused; the others succeeded." in text
    assert f"waits-here {picked[0]} on hold" in text
    assert f"train-a {picked[1]} no change needed" in text
    assert "secret-name" not in text
    assert 'href="/jobs/?mine=1"' in held.content.decode()
    assert f"{picked[0]} released" in words_of(released.content.decode())
    assert "Clone: 2 jobs of 2" in words_of(cloned.content.decode())
    assert "stopped" in words_of(stopped.content.decode())
    assert client.post("/jobs/act/", {"act": "burn", "selected": picked}).status_code == 400


def test_only_who_may_act_for_its_owner_holds_a_job(client: Client, stage: Stage) -> None:
    sign_in(client, "victor")
    victim = str(stage.waiting.pk)

    refused = client.post("/jobs/act/", {"act": "hold", "selected": [victim]})
    by_rest = client.post(f"/api/v1/jobs/{victim}/hold/", {}, content_type="application/json")

    assert "belongs to another user" in words_of(refused.content.decode())
    assert by_rest.status_code == 403
    assert not Job.objects.unscoped().get(pk=stage.waiting.pk).held


def test_a_template_is_kept_used_and_shared_with_the_tenant(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    client.post("/job-templates/keep/", {"template_name": "own", "yaml": TEXT})
    shared = client.post(
        "/job-templates/keep/",
        {"template_name": "ours", "yaml": TEXT, "template_tenant": "vision"},
    )
    used = read(client, shared.headers["Location"])
    sign_in(client, "victor")
    seen = read(client, "/job-templates/")
    refused = client.post(
        "/job-templates/delete/", {"id": JobTemplate.objects.unscoped().get(name="ours").pk}
    )
    sign_in(client, "bob")

    assert "name: try" in used
    assert "ours" in seen
    assert ">own<" not in seen
    assert refused.status_code == 403
    assert client.get("/api/v1/job-templates/").json()["results"] == []
    read(client, shared.headers["Location"], status=404)


def test_a_sweep_submits_its_grid_feeds_it_and_is_stopped_as_a_whole(
    client: Client, stage: Stage
) -> None:
    answer = sweep_of(sign_in(client, "alice"))
    sweep = Sweep.objects.unscoped().get()
    jobs = list(Job.objects.unscoped().filter(labels__sweep=sweep.label).order_by("id"))
    put_into(jobs[0], "succeeded", now=timezone.now())
    # Moved within the tenant: it stays in its sweep.
    Job.objects.unscoped().filter(pk=jobs[1].pk).update(
        virtual_cluster=make_virtual_cluster("vision-b", sweep.tenant, cells=0)
    )
    fed, again = feed_sweeps(), feed_sweeps()
    page = words_of(read(client, answer.headers["Location"]))
    outsider = make_job("alice", job_document(name="beside"))
    client.post(f"/sweeps/{sweep.pk}/stop/")

    assert [job.held for job in jobs] == [False, False, True, True, True, True]
    assert (fed, again) == (1, 0)
    assert "at most 2 at a time" in page
    assert "plus 3 on hold (concurrency limit)" in page
    states = Job.objects.unscoped().filter(labels__sweep=sweep.label).values_list("state")
    assert sorted(state for (state,) in states) == ["stopped"] * 5 + ["succeeded"]
    assert Job.objects.unscoped().get(pk=outsider.pk).state == "queued"
    assert not Sweep.objects.unscoped().get().is_open


def test_a_sweep_releases_no_job_that_somebody_holds(client: Client, stage: Stage) -> None:
    sweep_of(sign_in(client, "alice"))
    sweep = Sweep.objects.unscoped().get()
    jobs = list(Job.objects.unscoped().filter(labels__sweep=sweep.label).order_by("id"))

    for job in jobs[1:3]:
        assert hold_job(job=job, viewer=make_viewer("alice"))
    put_into(jobs[0], "succeeded", now=timezone.now())
    fed = feed_sweeps()

    rows = Job.objects.unscoped().filter(pk__in=[job.pk for job in jobs]).order_by("id")
    assert fed == 2
    assert [job.held for job in rows] == [False, True, True, False, False, True]


def test_a_sweep_that_cannot_be_reports_what_is_wrong_and_stores_nothing(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")

    for changes in (
        {"parameters": "LR"},
        {"yaml": "[1"},
        {"yaml": "- a"},
        {"max_parallel": "0"},
        {"max_parallel": "x"},
        {"yaml": TEXT.replace("vision-a", "language-a")},
    ):
        assert sweep_of(client, **changes).status_code == 422, changes
    assert not Sweep.objects.unscoped().exists()


def test_sweeps_by_rest_are_those_of_ones_tenants(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    body = {
        "job": job_document(name="grid"),
        "parameters": {"LR": ["1", "2"]},
        "max_parallel": 1,
    }
    made = client.post("/api/v1/sweeps/", body, content_type="application/json")
    address = f"/api/v1/sweeps/{made.json()['id']}/"
    sign_in(client, "lena")
    stopped = client.post(f"{address}stop/", {}, content_type="application/json").json()
    sign_in(client, "bob")

    assert made.status_code == 201
    assert (made.json()["jobs"], made.json()["held"]) == (2, 1)
    assert stopped["states"] == {"stopped": 2}
    assert client.get(address).status_code == 404
    assert client.get("/api/v1/sweeps/").json()["results"] == []


def test_a_form_that_is_sent_twice_clones_once(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    picked = [str(stage.waiting.pk), str(stage.running.pk)]
    once = re.search(r'name="once" value="([0-9a-f]{32})"', read(client, "/jobs/?state=live"))
    assert once is not None
    form = {"act": "clone", "selected": picked, "once": once[1]}

    for _ in range(2):
        answer = client.post("/jobs/act/", form)
    of_one = re.search(r'name="once" value="([0-9a-f]{32})"', read(client, f"/jobs/{picked[0]}/"))
    assert of_one is not None
    for _ in range(2):
        to = client.post(f"/jobs/{picked[0]}/clone/", {"once": of_one[1]}).headers["Location"]

    assert "Clone: 0 jobs of 2" in words_of(answer.content.decode())
    copies = Job.objects.unscoped().filter(cloned_from__in=[*map(int, picked)]).order_by("pk")
    assert [copy.cloned_from_id for copy in copies] == [*map(int, picked), stage.waiting.pk]
    assert to == f"/jobs/{copies[2].pk}/"


def test_a_template_that_is_sent_twice_is_kept_once(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    form = {"name": "own", "text": TEXT}

    first, again = (
        client.post("/api/v1/job-templates/", form, content_type="application/json")
        for _ in range(2)
    )
    other = client.post(
        "/api/v1/job-templates/",
        {**form, "text": TEXT.replace("try", "else")},
        content_type="application/json",
    )

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert other.status_code == 409


def test_a_sweeps_job_that_starts_while_the_sweep_is_stopped_is_asked_to_leave(
    client: Client, stage: Stage
) -> None:
    sweep_of(sign_in(client, "alice"), max_parallel="")
    sweep = Sweep.objects.unscoped().get()
    first = sweep.first_job

    def start_meanwhile() -> None:
        job = Job.objects.unscoped().get(pk=first)
        run_attempt(job, stage.nodes[1], now=timezone.now(), devices=(7,))
        put_into(job, "running", now=timezone.now())

    with before_query('FROM "scheduling_job"', start_meanwhile, number=2):
        asked = sweeps.stop_sweep(sweep=sweep, viewer=make_viewer("alice"), now=timezone.now())

    assert asked == 6
    states = dict(Job.objects.unscoped().filter(pk__gte=first).values_list("id", "state"))
    assert states.pop(first) == "stopping"
    assert set(states.values()) == {"stopped"}
    assert Member.objects.get(attempt__job=first).stop_cause == "stop"


def test_a_held_job_is_shown_on_hold_in_every_place(client: Client, stage: Stage) -> None:
    sweep_of(sign_in(client, "alice"))
    sweep = Sweep.objects.unscoped().get()

    pages = {
        "sweep": read(client, f"/sweeps/{sweep.pk}/"),
        "list": read(client, "/jobs/?mine=1"),
        "job": read(client, f"/jobs/{sweep.last_job}/"),
    }

    shown = {name: text.count("</svg>On hold</span>") for name, text in pages.items()}
    assert (shown["sweep"], shown["list"]) == (4, 4)
    assert shown["job"] > 0
    assert pages["sweep"].count("</svg>Queued</span>") == 2


def test_a_sweep_that_is_sent_twice_is_submitted_once(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    once = re.search(r'name="once" value="([0-9a-f]{32})"', read(client, "/sweeps/new/"))
    assert once is not None

    first, again = (sweep_of(client, once=once[1]) for _ in range(2))
    other = sweep_of(client)

    assert first.headers["Location"] == again.headers["Location"] != other.headers["Location"]
    assert Sweep.objects.unscoped().count() == 2
    assert Job.objects.unscoped().filter(labels__has_key="sweep").count() == 12


def test_a_sweep_that_is_changed_and_sent_again_asks_whether_that_is_meant(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")
    first = "a" * 32
    sweep_of(client, once=first)

    asked = sweep_of(client, once=first, parameters="LR = 4, 5")

    html = asked.content.decode()
    fresh = re.search(r'name="once" value="([0-9a-f]{32})"', html)
    assert (asked.status_code, Sweep.objects.unscoped().count()) == (409, 1)
    assert "This form has already submitted a sweep, and" in html
    assert "LR = 4, 5" in html
    assert fresh is not None
    assert sweep_of(client, once=fresh[1], parameters="LR = 4, 5").status_code == 302
    assert Sweep.objects.unscoped().count() == 2
