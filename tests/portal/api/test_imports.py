"""Documents of other systems by REST: translated, mapped by rules of admins, submitted."""

import json

import pytest

from scheduling.clusters.models import ImportRule
from scheduling.core.lifecycle import JobEventKind
from scheduling.jobs.models import Job, Sweep
from scheduling.jobs.services.lifecycle import try_job_event
from scheduling.sweeps.services import feed_sweeps
from tenants.models import AuditEntry
from tenants.roles import Scope

IMPORT = "/api/v1/import/"
RULES = "/api/v1/import-rules/"
SCRIPT = """#!/bin/bash
#SBATCH --job-name=train --partition=gpu --qos=high
#SBATCH --gres=gpu:2 --magic
srun python train.py
"""
ARRAY = "#!/bin/sh\n#SBATCH -J sweep -p vision-a -G 1 -a 3-7:2\n./run $SLURM_ARRAY_TASK_ID\n"


@pytest.fixture
def rules(api):
    for rule in (
        {"kind": "partition", "name": "gpu", "virtual_cluster": "vision-a"},
        {"kind": "qos", "name": "high", "priority": "prod"},
    ):
        made = api("root").post(RULES, rule, format="json")
        assert made.status_code == 201, made.json()


def send(client, name, text, query="", content_type="text/plain"):
    return client.post(f"{IMPORT}{name}/{query}", text, content_type=content_type)


def test_a_dry_run_translates_and_stores_nothing(api, rules):
    body = send(api("alice"), "sbatch", SCRIPT, "?dry_run=1").json()

    assert (body["spec"]["virtual_cluster"], body["spec"]["priority"]) == ("vision-a", "prod")
    assert [entry["field"] for entry in body["unsupported"]] == ["--magic"]
    assert any("srun" in warning for warning in body["warnings"])
    assert (body["job"], body["jobs"]) == (None, [])
    assert not Job.objects.unscoped().exists()


def test_an_imported_job_keeps_its_text_and_what_was_lost(api, rules):
    response = send(api("alice", Scope.JOBS_WRITE), "sbatch", SCRIPT)

    assert response.status_code == 201, response.json()
    job = Job.objects.unscoped().get()
    assert response.json()["jobs"] == [job.pk]
    assert (job.source_format, job.source_text) == ("sbatch", SCRIPT)
    assert [each["text"] for each in job.warnings] == response.json()["job"]["warnings"]
    assert "Not supported: --magic: --magic is not an option of sbatch." in (
        each["text"] for each in job.warnings
    )
    remark = "calls srun, which starts its tasks on this node without Slurm."
    assert response.json()["remarks"] == [
        {"heading": "Translated", "entries": [{"field": "script", "message": remark}]},
        {
            "heading": "Not supported",
            "entries": [{"field": "--magic", "message": "--magic is not an option of sbatch."}],
        },
    ]
    assert job.spec["compat"] == {"format": "slurm"}


def test_the_tasks_of_an_array_are_jobs_that_know_their_array(api):
    body = send(api("alice"), "sbatch", ARRAY).json()

    jobs = list(Job.objects.unscoped().order_by("pk"))
    envs = [job.spec["roles"]["worker"]["env"] for job in jobs]
    assert body["jobs"] == [job.pk for job in jobs]
    assert [env["SLURM_ARRAY_TASK_ID"] for env in envs] == ["3", "5", "7"]
    array = str(jobs[0].pk)
    assert [env.get("SLURM_ARRAY_JOB_ID") for env in envs] == [None, array, array]
    assert {job.labels["slurm-array"] for job in jobs} == {"sweep"}


def test_a_throttled_array_is_a_sweep_of_which_so_many_run_at_a_time(api):
    text = ARRAY.replace("3-7:2", "0-4%2")

    body = send(api("alice"), "sbatch", text).json()

    jobs = list(Job.objects.unscoped().order_by("pk"))
    sweep = Sweep.objects.unscoped().get()
    assert [job.held for job in jobs] == [False, False, True, True, True]
    assert (sweep.max_parallel, sweep.jobs, sweep.is_open) == (2, 5, True)
    assert {job.labels["sweep"] for job in jobs} == {sweep.label}
    assert (sweep.first_job, sweep.last_job) == (body["jobs"][0], body["jobs"][-1])
    try_job_event(job_id=jobs[0].pk, event=JobEventKind.STOP, now=jobs[0].submitted_at)
    assert feed_sweeps() == 1
    assert Job.objects.unscoped().filter(held=True).count() == 2
    page = api("alice").get(f"/api/v1/sweeps/{sweep.pk}/").json()
    assert "SLURM_ARRAY_TASK_ID" in str(page)


def test_an_array_of_which_one_task_is_refused_submits_none(api):
    text = ARRAY.replace("vision-a", "nowhere")

    response = send(api("alice"), "sbatch", text, "?virtual_cluster=language-a")

    assert response.status_code in (400, 403, 404)
    assert not Job.objects.unscoped().exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dstack", "type: task\nfleets: [vision-a]\ncommands: [echo]\nresources: {gpu: 1}\n"),
        ("skypilot", "resources: {infra: vision-a}\nrun: echo\n"),
    ],
)
def test_yaml_of_other_systems_is_submitted(api, name, text):
    response = send(api("alice"), name, text, content_type="application/yaml")

    assert response.status_code == 201, response.json()
    assert Job.objects.unscoped().get().source_format == name


def test_json_may_wrap_the_text(api):
    body = api("alice").post(f"{IMPORT}sbatch/?dry_run=1", {"text": ARRAY}, format="json").json()

    assert body["spec"]["name"] == "sweep 3"
    assert len(body["more"]) == 2


@pytest.mark.parametrize("name", ["sbatch", "slurm"])
@pytest.mark.parametrize("body", [{"text": None}, {"text": 5}, {"text": "#!/bin/sh", "x": 1}, []])
def test_json_that_holds_no_script_is_no_script(api, name, body):
    response = api("alice").post(f"{IMPORT}{name}/", body, format="json")

    assert response.status_code == 400
    assert not Job.objects.unscoped().exists()


def test_a_text_with_secrets_is_not_stored(api):
    text = "resources: {infra: vision-a}\nsecrets: {KEY: hush}\nrun: echo\n"

    body = send(api("alice"), "skypilot", text).json()

    job = Job.objects.unscoped().get()
    assert job.source_text == ""
    assert "hush" not in str(body) + str(job.spec)


def test_nodes_are_translated_and_added_by_themselves(api, problem):
    text = "type: fleet\nname: lab\nssh_config: {user: u, hosts: [10.0.0.1]}\n"

    found = send(api("root"), "dstack", text, "?dry_run=1").json()

    assert found["spec"] is None
    assert found["nodes"] == [
        {"name": "lab-0", "host": "10.0.0.1", "port": 22, "user": "u", "labels": {"fleet": "lab"}}
    ]
    problem(send(api("root"), "dstack", text), 400)


@pytest.mark.parametrize(
    ("text", "status"),
    [("", 400), ("\x00", 400), ("#!/bin/sh\n#SBATCH -N 0\n", 400), ("x" * 300_000, 413)],
)
@pytest.mark.parametrize("name", ["openpai", "sbatch", "dstack", "skypilot"])
def test_bad_documents_are_refused_with_faults(api, problem, name, text, status):
    assert problem(send(api("alice"), name, text), status)["errors"]


def test_rules_are_for_admins_and_are_recorded(api, world):
    rule = {"kind": "account", "name": "vis", "tenant": "vision"}

    assert api("alice").post(RULES, rule, format="json").status_code == 403
    made = api("root").post(RULES, rule, format="json")
    again = api("root").post(RULES, rule, format="json")
    deleted = api("root").delete(f"{RULES}{made.json()['id']}/")

    assert (made.status_code, again.status_code, deleted.status_code) == (201, 409, 204)
    assert not ImportRule.objects.unscoped().exists()
    actions = AuditEntry.objects.unscoped().values_list("action", flat=True)
    assert {"import_rule.create", "import_rule.delete"} <= set(actions)


def test_a_rule_must_name_what_there_is(api, problem):
    bad = {"kind": "queue", "name": "a b", "virtual_cluster": "nowhere", "priority": "none"}

    body = problem(api("root").post(RULES, bad, format="json"), 400)
    nothing = problem(api("root").post(RULES, {"kind": "qos", "name": "x"}, format="json"), 400)

    assert [fault["field"] for fault in body["errors"]] == [
        "kind", "name", "virtual_cluster", "priority",
    ]  # fmt: skip
    assert nothing["errors"][0]["field"] == "virtual_cluster"


def test_rules_about_others_are_not_shown(api, rules):
    api("root").post(
        RULES, {"kind": "fleet", "name": "f", "virtual_cluster": "language-a"}, format="json"
    )

    names = [rule["name"] for rule in api("alice").get(RULES).json()["results"]]

    assert names == ["gpu", "high"]


def send_again(client, text, query="", name="sbatch"):
    headers = {"Idempotency-Key": "k"}
    address = f"{IMPORT}{name}/{query}"
    return client.post(address, text, content_type="text/plain", headers=headers)


def test_an_import_that_is_sent_again_with_its_key_makes_nothing_more(api):
    other = send(api("alice"), "sbatch", ARRAY).json()
    first = send_again(api("alice"), ARRAY)
    again = send_again(api("alice"), ARRAY)

    assert (first.status_code, again.status_code) == (201, 200)
    assert len(first.json()["jobs"]) == 3
    assert again.json()["jobs"] == first.json()["jobs"] != other["jobs"]
    assert Job.objects.unscoped().count() == 6


@pytest.mark.parametrize(
    ("text", "query"),
    [
        (f"{SCRIPT}# more", "?virtual_cluster=vision-a"),
        (SCRIPT, "?virtual_cluster=vision-b"),
        (SCRIPT, ""),
    ],
)
def test_an_imports_key_represents_its_text_and_what_was_chosen_beside_it(
    api, rules, problem, text, query
):
    send_again(api("alice"), SCRIPT, "?virtual_cluster=vision-a")

    body = problem(send_again(api("alice"), text, query), 409)

    assert body["code"] == "idempotency-conflict"
    assert Job.objects.unscoped().count() == 1


def test_an_import_is_the_same_after_a_rule_of_admins_has_gone(api, rules):
    first = send_again(api("alice"), SCRIPT).json()
    ImportRule.objects.unscoped().filter(kind="qos").delete()

    again = send_again(api("alice"), SCRIPT)

    assert (again.status_code, again.json()["jobs"]) == (200, first["jobs"])


LARGE = "#!/bin/sh\n" + "#" * (256 << 10) + "\necho hello\n"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(LARGE, "text/plain"), (json.dumps({"text": LARGE}), "application/json")],
)
def test_a_document_that_is_too_large_is_refused_with_its_size(api, body, content_type):
    refused = send(api("alice"), "sbatch", body, "?dry_run=1", content_type)

    assert (refused.status_code, refused.json()["code"]) == (413, "too-large")
    (fault,) = refused.json()["errors"]
    assert (fault["field"], fault["value"]) == ("text", len(LARGE))
    assert "262,144" in fault["message"]


def test_a_document_of_the_most_bytes_is_read_in_whatever_spelling(api):
    text = "run: echo hello\n#" + "é" * ((256 << 10) // 2 - 9) + "\n"
    body = json.dumps({"text": text})
    assert (len(text.encode()), len(body) > 512 << 10) == (256 << 10, True)

    read = send(api("alice"), "skypilot", body, "?dry_run=1", "application/json")

    assert read.status_code == 200, read.json()


@pytest.mark.parametrize("path", ["import/sbatch/", "jobs/"])
def test_a_body_that_is_too_large_is_refused_with_its_size(api, path):
    body = json.dumps({"text": "x" * (5 << 20)})

    refused = api("alice").post(f"/api/v1/{path}", body, content_type="application/json")

    assert (refused.status_code, refused.json()["code"]) == (413, "too-large")
    (fault,) = refused.json()["errors"]
    assert (fault["field"], fault["value"]) == ("body", len(body))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SCRIPT, "sbatch"),
        ("type: task\nname: t\ncommands: [hostname]\n", "dstack"),
        ("run: hostname\n", "skypilot"),
    ],
)
def test_the_format_is_detected_by_the_document(api, text, name):
    body = send(api("alice"), "auto", text, "?dry_run=1").json()

    assert body["format"] == name
    assert body == send(api("alice"), name, text, "?dry_run=1").json()


@pytest.mark.parametrize("name", ["auto", "pbs"])
def test_a_format_that_is_not_there_is_refused_with_those_that_are(api, problem, name):
    body = problem(send(api("alice"), name, "name: a\nroles: {}\n"), 400)

    assert body["code"] == "unsupported-format"
    assert "sbatch, dstack" in body["errors"][0]["remedy"]
