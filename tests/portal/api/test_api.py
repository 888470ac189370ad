"""What holds for every address: sign-in, parameters, pages, schema, docs, metrics."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from rest_framework.test import APIClient

from portal.api.urls import RESOURCES
from scheduling.clusters.models import VirtualCluster
from scheduling.runs.models import EvictionTally
from scheduling.runs.services.tallies import add_waits
from tenants.models import AuditEntry, User
from tenants.roles import Scope
from tests.conftest import PROJECT_ROOT
from tests.factories.cluster import job_document, make_job
from tests.support.interleaving import before_query, raising

Problem = Callable[..., Any]
LISTS = sorted(
    resource.collection
    for resource in RESOURCES
    if getattr(resource.operations.get("list"), "pages", False)
)


@pytest.mark.parametrize("name", LISTS)
def test_every_list_is_paginated_and_refuses_unknown_parameters(
    api: Any, problem: Problem, name: str
) -> None:
    url = f"/api/v1/{name}/"

    body = api("root").get(url, {"limit": 1}).json()

    assert body.keys() == {"results", "next_cursor"}
    assert len(body["results"]) <= 1
    for wrong in (
        {"limit": "201"},
        {"cursor": "!"},
        {"fields": "nothing"},
        {"page": "1"},
        {"format": "csv"},
    ):
        fault = problem(api("root").get(url, wrong), 400)["errors"][0]
        assert fault["field"] == next(iter(wrong))
    problem(APIClient().get(url), 401)


def test_every_operation_is_described_and_every_description_is_served(api: Any) -> None:
    for resource in RESOURCES:
        for name in resource.operations:
            assert getattr(resource, name).__doc__, f"{resource.collection}.{name}"


def test_the_schema_has_no_warnings(tmp_path: Any) -> None:
    call_command(
        "spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yaml")
    )


def test_the_schema_is_served_to_anybody_and_the_docs_to_people(api: Any) -> None:
    schema = APIClient().get("/api/schema/", HTTP_ACCEPT="application/json")
    docs = api("alice").get("/api/docs/")

    assert schema.status_code == 200
    assert "/api/v1/jobs/{id}/why/" in schema.json()["paths"]
    assert b"/api/v1/jobs/{id}/why/" in docs.content
    assert b"tessera --url http://testserver login --user alice" in docs.content
    assert b"style=" not in docs.content
    assert b"<script>" not in docs.content
    assert APIClient().get("/api/docs/").status_code == 302


def test_every_error_is_described_with_the_type_in_which_it_is_sent(api: Any) -> None:
    paths = APIClient().get("/api/schema/", HTTP_ACCEPT="application/json").json()["paths"]

    described = [
        set(operation["responses"]["default"]["content"])
        for verbs in paths.values()
        for operation in verbs.values()
    ]

    assert len(described) > 100
    assert all(types == {"application/problem+json"} for types in described)


def test_every_address_is_in_the_documentation(api: Any) -> None:
    words = (PROJECT_ROOT / "docs" / "rest-api.md").read_text()
    paths = APIClient().get("/api/schema/", HTTP_ACCEPT="application/json").json()["paths"]

    served = {f"| {verb.upper()} {path} |" for path, verbs in paths.items() for verb in verbs}
    written = {
        line[: line.index(" |", 2) + 2]
        for line in words.splitlines()
        if "/api/v1/" in line and line.startswith("| ")
    }
    assert served == written


def test_a_bug_is_answered_as_a_problem(api: Any) -> None:
    client = api("alice")
    client.raise_request_exception = False

    with before_query('FROM "scheduling_round"', raising(RuntimeError("a bug"))):
        response = client.get("/api/v1/rounds/")

    assert (response.status_code, response.json()["code"]) == (500, "server-error")
    assert b"a bug" not in response.content


def test_an_unknown_host_is_refused_as_a_problem_or_a_page(api: Any, problem: Problem) -> None:
    elsewhere = {"host": "elsewhere.example"}

    problem(api("alice").get("/api/v1/jobs/", headers=elsewhere), 400)
    page = api("alice").get("/jobs/", headers=elsewhere)

    assert (page.status_code, page.headers["Content-Type"]) == (400, "text/html; charset=utf-8")


def test_a_lone_surrogate_is_refused_with_its_position(api: Any, problem: Problem) -> None:
    answer = api("root").post(
        "/api/v1/announcements/",
        data='{"text": "\\ud800", "severity": "info", "\\udfff": 1}',
        content_type="application/json",
    )

    assert {"text", "\\udfff"} == {fault["field"] for fault in problem(answer, 400)["errors"]}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("members/", '{"tenant": "vision", "username": "\\ud800", "role": "lead"}', "username"),
        ("saved-views/", '{"name": "mine", "query": "\\udfff"}', "query"),
        ("nodes/1/", '{"labels": {"\\ud800": "x"}}', "labels.\\ud800"),
        ("nodes/1/", '{"labels": {"rack": "\\ud800"}}', "labels.rack"),
        (
            "virtual-clusters/",
            '{"name": "a", "tenant": "vision", "policy_args": {"x": [{"\\ud800": 1}]}}',
            "policy_args.x.0.\\ud800",
        ),
        (
            "virtual-clusters/",
            '{"name": "a", "tenant": "vision", "pinned": [{"name": "\\ud800", "address": "x"}]}',
            "pinned.0.name",
        ),
    ],
)
def test_no_text_is_stored_that_a_response_cannot_contain(
    api: Any, problem: Problem, path: str, body: str, field: str
) -> None:
    verb = api("root").post if not path.startswith("nodes") else api("root").patch

    answer = verb(f"/api/v1/{path}", data=body, content_type="application/json")

    assert [fault["field"] for fault in problem(answer, 400)["errors"]] == [field]


def test_a_body_that_is_nested_too_deeply_is_refused_whatever_it_is_for(
    api: Any, problem: Problem
) -> None:
    deep = f'{{"text": {"[" * 300}{"]" * 300}}}'

    answer = api("root").post("/api/v1/announcements/", data=deep, content_type="application/json")

    assert "deeply" in problem(answer, 400)["errors"][0]["message"]


def test_a_response_names_at_most_the_documented_number_of_faults(
    api: Any, problem: Problem
) -> None:
    answer = api("root").put("/api/v1/members/1/limits/", {"virtual_clusters": [*range(300)]})

    assert len(problem(answer, 400)["errors"]) == 100


def test_the_record_of_a_change_names_the_request_that_made_it(api: Any) -> None:
    url, body = "/api/v1/jobs/", job_document()

    own = api("alice").post(url, body)
    named = api("alice").post(url, body, headers={"X-Request-ID": "ci-build-0042"})

    rows = AuditEntry.objects.unscoped().filter(action="job.submit").order_by("id")
    recorded = list(rows.values_list("request_id", flat=True))
    assert recorded == [own.headers["X-Request-ID"], "ci-build-0042"]
    assert named.headers["X-Request-ID"] == "ci-build-0042"


def test_a_browser_needs_the_csrf_token_and_a_script_does_not(
    api: Any, world: Any, problem: Problem
) -> None:
    browser = APIClient(enforce_csrf_checks=True)
    browser.force_login(
        User.objects.get(username="alice"), "django.contrib.auth.backends.ModelBackend"
    )

    problem(browser.post("/api/v1/jobs/", job_document()), 403)
    # A script, sent as curl's -d sends everything: a form in name alone.
    form = "application/x-www-form-urlencoded"
    url, text = "/api/v1/import/sbatch/?dry_run=1", "#!/bin/sh\n#SBATCH -G 1\n./run\n"
    problem(browser.post(url, text, content_type=form), 403)
    browser.cookies["csrftoken"] = token = "a" * 32
    answer = browser.post(url, text, content_type=form, headers={"X-CSRFToken": token})
    assert answer.status_code == 200, answer.json()

    script = api("alice", Scope.JOBS_WRITE)
    script.handler.enforce_csrf_checks = True
    assert script.post("/api/v1/jobs/", job_document()).status_code == 201


@pytest.mark.parametrize("key", ["", "x", "tsr_aaaaaaaa_" + "0" * 64])
def test_a_key_that_opens_nothing_is_refused(world: Any, problem: Problem, key: str) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {key}")

    response = client.get("/api/v1/jobs/")

    problem(response, 401)
    assert response.headers["WWW-Authenticate"] == "Token"


def test_a_token_that_is_bound_to_a_tenant_sees_nothing_else(api: Any, world: Any) -> None:
    make_job("bob", virtual_cluster="language-a")

    bound = api("root", Scope.JOBS_READ, tenant=world.vision)
    free = api("root", Scope.JOBS_READ)

    assert bound.get("/api/v1/jobs/").json()["results"] == []
    assert len(free.get("/api/v1/jobs/").json()["results"]) == 1


def test_metrics_count_visible_jobs_and_name_nothing_else(api: Any, problem: Problem) -> None:
    make_job("bob", virtual_cluster="language-a", name="hidden-name")
    make_job("alice")

    for vc in VirtualCluster.objects.unscoped().all():
        EvictionTally.objects.create(virtual_cluster=vc, reason="preempted", count=4)

    text = api("alice", Scope.JOBS_READ).get("/metrics")

    assert text.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = text.content.decode().splitlines()
    assert 'tessera_pending_workloads{virtual_cluster="vision-a",tenant="vision"} 1' in lines
    assert 'tessera_devices{kind="total"} 24' in lines
    labels = 'virtual_cluster="vision-a",tenant="vision",reason="preempted"'
    assert f"tessera_evicted_workloads_total{{{labels}}} 4" in lines
    assert "language" not in text.content.decode()
    assert 'tenant="language"' in api("root").get("/metrics").content.decode()
    problem(APIClient().get("/metrics"), 401)


def test_every_metric_is_written_as_prometheus_reads_it(api: Any) -> None:
    import re

    sample = re.compile(r'[a-z_]+(\{[a-z_]+="[^"\n]*"(,[a-z_]+="[^"\n]*")*\})? -?[0-9.e+]+')
    lines = api("root").get("/metrics").content.decode().splitlines()

    bad = [line for line in lines if not line.startswith("# ") and not sample.fullmatch(line)]
    assert bad == []
    names = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))


def test_waits_are_a_histogram_that_counts_up_to_each_bound(api: Any) -> None:
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")
    add_waits((vc.pk, seconds) for seconds in (0.2, 2.5, 7.0, 40.0, 20_000.0))

    lines = api("alice", Scope.JOBS_READ).get("/metrics").content.decode().splitlines()

    name, labels = "tessera_admission_wait_time_seconds", 'virtual_cluster="vision-a"'
    assert f"# TYPE {name} histogram" in lines
    told = [line.split()[1] for line in lines if line.startswith(f"{name}_") and labels in line]
    assert told[:15] == [*"12233", *"4" * 9, "5"]
    assert told[15:] == ["20049.7", "5"]


def test_responses_vary_by_user_and_have_the_header(api: Any) -> None:
    response = api("alice").get("/api/v1/jobs/")

    assert "private" in response.headers["Cache-Control"]
    assert len(response.headers["X-Request-ID"]) >= 8
