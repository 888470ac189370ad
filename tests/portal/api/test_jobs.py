"""``/api/v1/jobs/``: submitting, listing, looking into and ending jobs."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.runs.models import Member
from scheduling.runs.services.progress import record_training_events
from tenants.roles import Scope
from tests.factories.cluster import job_document, make_job
from tests.factories.running import put_into, run_attempt
from tests.support.interleaving import before_query, raising

URL = "/api/v1/jobs/"
OPENPAI = """
protocolVersion: 2
name: from_pai
type: job
prerequisites: [{name: base, type: dockerimage, uri: team/base:1}]
taskRoles:
  worker:
    instances: 1
    dockerImage: base
    resourcePerInstance: {cpu: 1, memoryMB: 512, gpu: 1}
    commands: ["echo 'hello'"]
defaults: {virtualCluster: vision-a}
"""


def ids(response: Any) -> list[int]:
    return [row["id"] for row in response.json()["results"]]


# Submitting


def test_a_native_job_is_accepted_and_shown(api: Any) -> None:
    response = api("alice").post(URL, job_document())

    body = response.json()
    assert response.status_code == 201
    assert (body["name"], body["state"], body["user"]) == ("hello", "queued", "alice")
    assert body["warnings"] == []
    assert response.headers["Location"] == f"{URL}{body['id']}/"
    detail = api("alice").get(response.headers["Location"]).json()
    assert detail["effective_spec"]["virtual_cluster"] == "vision-a"
    assert '"hello"' in detail["source_text"]


def test_a_database_that_is_locked_or_full_is_reported(api: Any) -> None:
    full = raising(OperationalError("database or disk is full"))

    with before_query('INSERT INTO "scheduling_job"', full):
        response = api("alice").post(URL, job_document())

    body = response.json()
    assert (response.status_code, body["code"]) == (503, "database-unavailable")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers["Retry-After"] == "5"


def test_a_yaml_body_reaches_the_job_as_it_was_written(api: Any) -> None:
    command = "echo \"it's $(whoami)\"\nprintf 'ünï %s' '$HOME'\n"
    text = (
        "name: yaml  # a comment\nvirtual_cluster: vision-a\nroles:\n  worker:\n    command: |\n"
    ) + "".join(f"      {line}\n" for line in command.splitlines())

    response = api("alice").post(URL, text, content_type="application/yaml")

    job = Job.objects.unscoped().get(pk=response.json()["id"])
    assert job.spec["roles"]["worker"]["command"] == command
    assert job.source_text == text


def test_an_openpai_document_is_translated_with_warnings(api: Any) -> None:
    response = api("alice").post(URL, OPENPAI, content_type="application/yaml")

    body = response.json()
    assert response.status_code == 201, body
    job = Job.objects.unscoped().get(pk=body["id"])
    assert (job.source_format, job.source_text) == ("openpai", OPENPAI)
    assert job.spec["roles"]["worker"]["command"]


def test_a_text_with_secrets_is_not_stored(api: Any) -> None:
    document = job_document(worker={"secrets": {"KEY": "hunter2"}})

    job_id = api("alice").post(URL, document).json()["id"]

    shown = api("alice").get(f"{URL}{job_id}/")
    assert b"hunter2" not in shown.content
    assert shown.json()["source_text"] == ""


def test_one_key_makes_one_job(api: Any) -> None:
    key = {"HTTP_IDEMPOTENCY_KEY": "a-key"}

    first = api("alice").post(URL, job_document(), **key)
    again = api("alice").post(URL, job_document(), **key)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert Job.objects.unscoped().count() == 1


def test_a_key_of_another_job_is_a_conflict(api: Any, problem: Callable[..., Any]) -> None:
    key = {"HTTP_IDEMPOTENCY_KEY": "a-key"}
    api("alice").post(URL, job_document(), **key)

    body = problem(api("alice").post(URL, job_document(name="other"), **key), 409)

    assert body["code"] == "idempotency-conflict"


def test_a_key_represents_the_whole_document_in_any_spelling(
    api: Any, problem: Callable[..., Any]
) -> None:
    key = {"HTTP_IDEMPOTENCY_KEY": "a-key"}
    sent = job_document()
    first = api("alice").post(URL, sent, **key)

    turned = api("alice").post(URL, dict(reversed(sent.items())), **key)
    other = api("alice").post(URL, job_document(worker={"command": "echo other"}), **key)

    assert (turned.status_code, turned.json()["id"]) == (200, first.json()["id"])
    assert problem(other, 409)["code"] == "idempotency-conflict"


def test_a_key_from_before_the_secret_key_changed_is_refused_and_makes_no_second_job(
    api: Any, problem: Callable[..., Any], settings: Any
) -> None:
    key = {"HTTP_IDEMPOTENCY_KEY": "a-key"}
    first = api("alice").post(URL, job_document(), **key)
    settings.SECRET_KEY = "another-" + "0" * 42

    body = problem(api("alice").post(URL, job_document(), **key), 409)

    assert body["code"] == "idempotency-conflict"
    assert str(first.json()["id"]) in body["errors"][0]["message"]
    assert Job.objects.unscoped().count() == 1


def test_a_job_without_a_stored_digest_is_compared_by_its_name(api: Any) -> None:
    key = {"HTTP_IDEMPOTENCY_KEY": "a-key"}
    first = api("alice").post(URL, job_document(), **key)
    Job.objects.unscoped().update(idempotency_digest="")

    again = api("alice").post(URL, job_document(worker={"command": "echo other"}), **key)

    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


def test_an_invalid_job_is_refused_with_and_without_an_idempotency_key(
    api: Any, problem: Callable[..., Any]
) -> None:
    body = "name: x\nnote: 2026-01-01\n1: 99999999999999999999999\n"

    answer = api("alice").post(
        URL, body, content_type="application/yaml", HTTP_IDEMPOTENCY_KEY="a-key"
    )

    assert problem(answer, 400)["errors"]


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"name": ""}, "name", None),
        ({"virtual_cluster": "nowhere"}, "virtual_cluster", "unknown-vc"),
        ({"virtual_cluster": "language-a"}, "virtual_cluster", "unknown-vc"),
        ({"priority": "urgent"}, "priority", "invalid-spec"),
        ({"colour": "red"}, "colour", None),
        ({"model": {}}, "model", "unsupported-field"),
        ({"worker": {"devices": 9}}, "roles.worker.devices", "no-cell-of-level"),
        ({"worker": {"device_types": ["h100"]}}, "roles.worker.device_types", "unknown-type"),
        ({"worker": {"devices": "many"}}, "roles.worker.devices", None),
        ({"worker": {"pinned_cell": "lab"}}, "roles.worker.pinned_cell", "invalid-spec"),
        ({"after": [77]}, "after", None),
    ],
)
def test_the_faults_of_a_job_are_named(
    api: Any,
    problem: Callable[..., Any],
    change: dict[str, Any],
    field: str,
    code: str | None,
) -> None:
    body = problem(api("alice").post(URL, job_document(**change)), 400)

    fault = next(fault for fault in body["errors"] if fault["field"] == field)
    assert fault["message"]
    assert fault["remedy"]
    assert code in (None, body["code"])
    assert not Job.objects.unscoped().exists()


@pytest.mark.parametrize(
    ("body", "kind"),
    [("{", "application/json"), ("a: [", "application/yaml"), ("[]", "application/json")],
)
def test_a_body_that_is_not_a_valid_job_is_refused(
    api: Any, problem: Callable[..., Any], body: str, kind: str
) -> None:
    problem(api("alice").post(URL, body, content_type=kind), 400)


def test_another_media_type_is_refused(api: Any, problem: Callable[..., Any]) -> None:
    problem(api("alice").post(URL, "x", content_type="text/plain"), 415)


def test_a_viewer_may_not_submit(api: Any, problem: Callable[..., Any]) -> None:
    problem(api("vera").post(URL, job_document()), 403)


def test_a_token_that_reads_may_not_submit(api: Any, problem: Callable[..., Any]) -> None:
    problem(api("alice", Scope.JOBS_READ).post(URL, job_document()), 403)


def test_a_token_for_other_things_sees_no_jobs(api: Any, problem: Callable[..., Any]) -> None:
    problem(api("root", Scope.NODES_ADMIN).get(URL), 403)


def test_many_jobs_are_accepted_together(api: Any) -> None:
    documents = [job_document(name=f"job-{number}") for number in range(5)]

    response = api("alice").post(f"{URL}bulk/", documents)

    assert response.status_code == 201
    assert [row["name"] for row in response.json()["results"]] == [d["name"] for d in documents]


def test_one_wrong_job_keeps_all_of_them_out(api: Any, problem: Callable[..., Any]) -> None:
    documents = {"jobs": [job_document(), job_document(worker={"devices": -1})]}

    body = problem(api("alice").post(f"{URL}bulk/", documents), 400)

    assert body["errors"][0]["field"] == "1.roles.worker.devices"
    assert not Job.objects.unscoped().exists()


@pytest.mark.parametrize("body", [{}, {"jobs": 5}, [], [5], [job_document()] * 1001])
def test_a_bulk_of_nothing_or_too_much_is_refused(
    api: Any, problem: Callable[..., Any], body: Any
) -> None:
    problem(api("alice").post(f"{URL}bulk/", body), 400)


def test_a_list_of_jobs_takes_no_key(api: Any, problem: Callable[..., Any]) -> None:
    response = api("alice").post(f"{URL}bulk/", [job_document()], HTTP_IDEMPOTENCY_KEY="k")

    assert problem(response, 400)["errors"][0]["field"] == "Idempotency-Key"


def test_submitting_takes_the_same_number_of_queries_for_one_and_many(
    api: Any, django_assert_max_num_queries: Any
) -> None:
    client = api("alice")

    with django_assert_max_num_queries(22):
        client.post(f"{URL}bulk/", [job_document(name=f"job-{n}") for n in range(30)])


# Listing


def test_jobs_come_newest_first_page_by_page(api: Any) -> None:
    made = [make_job("alice", name=f"job-{number}").pk for number in range(5)]

    first = api("alice").get(URL, {"limit": 2})
    second = api("alice").get(URL, {"limit": 2, "cursor": first.json()["next_cursor"]})
    third = api("alice").get(URL, {"limit": 2, "cursor": second.json()["next_cursor"]})

    assert ids(first) + ids(second) + ids(third) == made[::-1]
    assert third.json()["next_cursor"] is None


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"state": "queued"}, ["b", "a"]),
        ({"state": "queued,running"}, ["b", "a"]),
        ({"state": ["running", "queued"]}, ["b", "a"]),
        ({"state": "running"}, []),
        ({"state": "live"}, ["b", "a"]),
        ({"virtual_cluster": "vision-a"}, ["b", "a"]),
        ({"virtual_cluster": "language-a"}, []),
        ({"user": "lena"}, ["b"]),
        ({"mine": "1"}, ["a"]),
        ({"label": "team=red"}, ["a"]),
        ({"q": "b"}, ["b"]),
        ({"tenant": "vision", "user": "ALICE"}, ["a"]),
        ({"ended_since": "2100-01-01T00:00:00Z"}, ["b", "a"]),
        ({"submitted_until": "2000-01-01T01:00:00+01:00"}, []),
    ],
)
def test_filters_narrow_the_list(api: Any, filters: dict[str, Any], names: list[str]) -> None:
    make_job("alice", name="a", labels={"team": "red"})
    make_job("lena", name="b")

    response = api("alice").get(URL, filters)

    assert [row["name"] for row in response.json()["results"]] == names


def test_rows_have_the_requested_fields(api: Any) -> None:
    make_job("alice")

    response = api("alice").get(URL, {"fields": "id,state"})

    assert [set(row) for row in response.json()["results"]] == [{"id", "state"}]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("state", "asleep"),
        ("ended_since", "yesterday"),
        ("submitted_until", "2026-03-01T08:00"),
        ("limit", "0"),
        ("limit", "201"),
        ("limit", "many"),
        ("cursor", "x"),
        ("fields", "password"),
        ("mine", "maybe"),
        ("label", "red"),
        ("page", "2"),
        ("q", "x" * 1001),
        ("q", "x" * 201),
        ("label", "a=" + "x" * 200),
    ],
)
def test_a_wrong_parameter_is_named(
    api: Any, problem: Callable[..., Any], parameter: str, value: str
) -> None:
    body = problem(api("alice").get(URL, {parameter: value}), 400)

    assert body["errors"][0]["field"] == parameter
    assert body["errors"][0]["remedy"]


@pytest.mark.parametrize("count", [1, 60])
def test_a_list_takes_as_many_queries_for_one_job_as_for_sixty(
    api: Any, django_assert_num_queries: Any, count: int
) -> None:
    for number in range(count):
        make_job("alice", name=f"job-{number}")
    client = api("alice")

    with django_assert_num_queries(5):  # session, user, memberships, jobs, their places
        assert len(ids(client.get(URL))) == min(count, 50)


def test_a_list_shows_the_nodes_of_jobs(api: Any, django_assert_num_queries: Any) -> None:
    first, second, third = Node.objects.order_by("id")
    now = timezone.now()
    moved, waits, other = (make_job("alice", max_duration="1h") for _ in range(3))
    run_attempt(moved, first, now=now, ended=True)
    again = run_attempt(moved, third, now=now, devices=(0, 1))
    for rank, node in enumerate((second, third), start=1):
        Member.objects.create(
            attempt=again, node=node, role="worker", rank=rank, node_rank=rank, devices=[],
            step_since=now,
        )  # fmt: skip
    put_into(moved, "running", now=now)
    run_attempt(waits, first, now=now, ended=True)
    run_attempt(other, first, now=now, devices=(1,), ended=True)
    put_into(other, "succeeded", now=now)
    client = api("alice")

    with django_assert_num_queries(6):  # as many as without, and their nodes
        answer = client.get(URL, {"fields": "id,nodes,instances,max_duration"})

    common = {"instances": 1, "max_duration": 3600}
    assert answer.json()["results"] == [
        {"id": other.pk, "nodes": [first.name], **common},
        {"id": waits.pk, "nodes": [], **common},
        {"id": moved.pk, "nodes": [third.name, second.name], **common},
    ]
    for row in answer.json()["results"]:
        whole = client.get(f"{URL}{row['id']}/").json()
        assert {name: whole[name] for name in row} == row


# One job


@pytest.mark.parametrize(
    "path", ["", "why/", "logs/", "events/", "attempts/", "goodput/", "metrics/"]
)
def test_another_tenants_job_is_not_there(
    api: Any, problem: Callable[..., Any], path: str
) -> None:
    job = make_job("alice")

    theirs = problem(api("bob").get(f"{URL}{job.pk}/{path}"), 404)
    nobodys = problem(api("bob").get(f"{URL}{job.pk + 1}/{path}"), 404)

    assert theirs["errors"][0]["message"] == nobodys["errors"][0]["message"]


@pytest.mark.parametrize("verb", ["stop", "clone", "release"])
def test_another_tenants_job_cannot_be_touched(
    api: Any, problem: Callable[..., Any], verb: str
) -> None:
    job = make_job("alice")

    problem(api("bob").post(f"{URL}{job.pk}/{verb}/", {}), 404)

    job.refresh_from_db()
    assert job.state == "queued"


def test_lists_of_another_tenant_leave_its_jobs_out(api: Any) -> None:
    make_job("alice")

    assert ids(api("bob").get(URL)) == []
    assert len(ids(api("root").get(URL))) == 1


def test_why_reports_that_no_round_has_run(api: Any) -> None:
    job = make_job("alice")

    body = api("alice").get(f"{URL}{job.pk}/why/").json()

    assert body["code"] == "scheduler-not-running"
    assert body["unblock"]
    assert body["eta"] is None


def test_why_counts_blockers_that_one_may_not_see(api: Any) -> None:
    job, theirs, mine = make_job("alice"), _job_of_bob(), make_job("alice")
    Round.objects.create(
        number=1, started_at=timezone.now(), committed_at=timezone.now(), duration_ms=1
    )
    Job.objects.unscoped().filter(pk=job.pk).update(
        reason_code="vc-guarantee-in-use",
        reason_text="It waits.",
        reason={"blocked_by": [theirs.pk, mine.pk], "unblock": ["Wait."]},
    )

    body = api("alice").get(f"{URL}{job.pk}/why/").json()

    assert (body["code"], body["text"]) == ("vc-guarantee-in-use", "It waits.")
    assert (body["blocked_by"], body["blocked_by_others"]) == ([mine.pk], 1)
    assert body["pending"] == ["steps", "eta"]


def test_events_are_listed_oldest_first(api: Any) -> None:
    job = make_job("alice")
    api("alice").post(f"{URL}{job.pk}/stop/", {"message": "not needed"})

    events = api("alice").get(f"{URL}{job.pk}/events/").json()["results"]

    assert [event["kind"] for event in events] == ["submit", "stop"]


def test_a_queued_job_stops_at_once_and_stays_stopped(api: Any) -> None:
    job = make_job("alice")

    first = api("alice").post(f"{URL}{job.pk}/stop/", {})
    again = api("alice").post(f"{URL}{job.pk}/stop/")

    assert (first.json()["state"], again.json()["state"]) == ("stopped", "stopped")
    assert again.status_code == 200


def test_a_member_may_not_stop_anothers_job_and_a_lead_may(
    api: Any, problem: Callable[..., Any]
) -> None:
    job = make_job("lena")

    problem(api("alice").post(f"{URL}{job.pk}/stop/", {}), 403)
    mine = make_job("alice")

    assert api("lena").post(f"{URL}{mine.pk}/stop/", {}).status_code == 200


def test_a_clone_is_a_new_job_without_secrets(api: Any) -> None:
    login = {"image": "team/train:1", "image_secret": "LOGIN"}
    secrets = {"KEY": "hunter2", "LOGIN": "alice:hunter2"}
    job = make_job("alice", worker={**login, "secrets": secrets})

    response = api("alice").post(f"{URL}{job.pk}/clone/", {})

    assert response.status_code == 201
    assert response.json()["id"] != job.pk
    assert "worker/KEY" in response.json()["warnings"][0]


def test_a_held_job_is_released(api: Any) -> None:
    job = make_job("alice", held=True)

    body = api("alice").post(f"{URL}{job.pk}/release/", {}).json()

    assert body["held"] is False


@pytest.mark.parametrize("verb", ["stop", "clone", "release"])
def test_an_unknown_field_is_refused(api: Any, problem: Callable[..., Any], verb: str) -> None:
    job = make_job("alice")

    body = problem(api("alice").post(f"{URL}{job.pk}/{verb}/", {"force": True}), 400)

    assert body["errors"][0]["field"] == "force"


def test_a_job_is_shown_in_a_fixed_number_of_queries(
    api: Any, django_assert_max_num_queries: Any
) -> None:
    job = make_job("alice")
    client = api("alice")

    with django_assert_max_num_queries(14):
        client.get(f"{URL}{job.pk}/")


def test_addresses_that_are_not_there_answer_with_a_problem(
    api: Any, problem: Callable[..., Any]
) -> None:
    problem(api("alice").get("/api/v1/nothing/"), 404)
    problem(api("alice").get(f"{URL}abc/"), 404)
    problem(api("alice").put(f"{URL}1/", {}), 405)


def _job_of_bob() -> Job:
    return make_job("bob", virtual_cluster="language-a")


def test_a_waiting_job_is_amended_in_place(api: Any) -> None:
    job = make_job("alice")

    answer = api("alice").post(
        f"{URL}{job.pk}/amend/", {"changes": {"roles.worker.devices": 2}}, format="json"
    )

    assert answer.status_code == 200, answer.json()
    assert answer.json()["devices"] == 2
    refused = api("alice").post(
        f"{URL}{job.pk}/amend/", {"changes": {"roles.worker.command": "x"}}, format="json"
    )
    assert refused.status_code == 400
    theirs = api("bob").post(
        f"{URL}{job.pk}/amend/", {"changes": {"roles.worker.devices": 1}}, format="json"
    )
    assert theirs.status_code == 404


def test_of_two_amendments_of_one_version_the_second_gets_412(
    api: Any, problem: Callable[..., Any]
) -> None:
    job = make_job("alice", note="first")
    url = f"{URL}{job.pk}/amend/"
    client = api("alice")
    tag = client.get(f"{URL}{job.pk}/").headers["ETag"]

    won = client.post(url, {"changes": {"note": "second"}}, headers={"If-Match": tag})
    lost = client.post(url, {"changes": {"note": "third"}}, headers={"If-Match": tag})
    nonsense = client.post(url, {"changes": {"note": "x"}}, headers={"If-Match": '"7"'})

    assert problem(lost, 412)["code"] == "stale-edit"
    assert problem(nonsense, 400)["errors"][0]["field"] == "If-Match"
    job.refresh_from_db()
    assert (won.status_code, job.note) == (200, "second")
    assert client.get(f"{URL}{job.pk}/").headers["ETag"] == won.headers["ETag"] != tag
    for expected in (won.headers["ETag"], "*", ""):
        headers = {"If-Match": expected} if expected else {}
        answer = client.post(url, {"changes": {"note": f"as {expected}"}}, headers=headers)
        assert answer.status_code == 200


def test_steps_and_evidence_of_a_job_and_the_calibration_have_addresses(api: Any) -> None:
    job = make_job("alice")

    assert api("alice").get(f"{URL}{job.pk}/unblock/").json()["steps"] == []
    assert api("alice").get(f"{URL}{job.pk}/evidence/").status_code == 404
    assert api("alice").get("/api/v1/estimates/").json()["results"] == []
    assert api("bob").get(f"{URL}{job.pk}/unblock/").status_code == 404


def test_receipts_of_preemptions_and_checkpoints_are_answered(api: Any) -> None:
    job = make_job()
    notes = [
        ("checkpoint", str(step), {"step": step, "sha256": sha * 64, "level": "D1", "bytes": 9})
        for step, sha in ((10, "a"), (20, "b"))
    ]
    record_training_events(job_id=job.pk, attempt=1, notes=notes[:1], now=timezone.now())
    record_training_events(job_id=job.pk, attempt=2, notes=notes, now=timezone.now())
    base = f"/api/v1/jobs/{job.pk}"

    saved = api("alice").get(f"{base}/checkpoints/?attempt=2").json()["results"]
    compared = api("alice").get(f"{base}/checkpoints/compare/?attempt=1&with_attempt=2").json()

    assert [(one["step"], one["sha256"], one["settings"]) for one in saved] == [
        (10, "a" * 64, {"level": "D1"}),
        (20, "b" * 64, {"level": "D1"}),
    ]
    assert (compared["common"], compared["same"], compared["first_difference"]) == (1, 1, None)
    assert api("alice").get(f"{base}/preemptions/").json() == {"results": [], "next_cursor": None}
    assert api("alice").get(f"{base}/checkpoints/compare/?with=99999").status_code == 404


def test_jobs_are_listed_in_a_named_order(api: Any, problem: Callable[..., Any]) -> None:
    first, second = make_job(), make_job()
    Job.objects.unscoped().filter(pk=first.pk).update(devices=4)

    def order(name: str) -> list[int]:
        rows = api("alice").get(f"/api/v1/jobs/?order={name}").json()["results"]
        return [row["id"] for row in rows]

    assert order("newest") == [second.pk, first.pk]
    assert order("devices") == [first.pk, second.pk]
    found = problem(api("alice").get("/api/v1/jobs/?order=size"), 400)
    assert found["errors"][0]["field"] == "order"
