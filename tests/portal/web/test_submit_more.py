"""The fields that are folded away: deadline, retries, gangs, ports, ends of roles, and secrets."""

import re

import pytest
from django.test import Client

from portal.web.submit_text import read_typed
from scheduling.clusters.models import Node
from scheduling.jobs.models import Job, JobSecret
from tenants.roles import Role
from tests.factories.cluster import make_cluster, make_priority_classes, make_virtual_cluster
from tests.factories.tenants import make_tenant
from tests.support.cluster_pages import sign_in
from tests.support.submit_page import check_specification, form_fields

pytestmark = pytest.mark.django_db
MORE = {
    "deadline": "2031-05-01T08:00:00Z",
    "gang": "false",
    "retries.resource-limit": "1",
    "retries.node": "5",
    "retries.image": "0",
    "retries.preempted": "7",
    "retries.timeout": "2",
    "retries.platform": "-1",
    "roles.worker.ports": "http=1\nrpc=2",
    "roles.worker.completion.min_failed": "1",
    "roles.worker.completion.min_succeeded": "1",
}
TEXT = """\
# all of it
name: whole   # kept
virtual_cluster: vision-a
deadline: 2031-05-01T08:00:00Z
gang: true
retries: {node: 5, platform: -1}
roles:
  worker:
    devices: 1
    command: hostname
    image: trainer
    image_secret: REG
    secrets: {TOKEN: hush-hush, REG: "alice:hush"}
    ports: {http: 1}
    completion: {min_failed: -1}
"""
ROW = "roles.worker.secrets.TOKEN"


@pytest.fixture
def alice(client: Client) -> Client:
    nodes: list[Node] = make_cluster(2)
    assert nodes
    make_virtual_cluster("vision-a", make_tenant("vision", alice=Role.MEMBER))
    make_priority_classes()
    return sign_in(client, "alice")


def test_what_is_folded_away_is_written_by_the_form_and_read_back(alice: Client) -> None:
    found = check_specification(alice, **form_fields(alice) | {"source": "form", **MORE})
    document = read_typed(found["yaml"]).document or {}
    fields = check_specification(alice, source="yaml", yaml=found["yaml"])["fields"]

    assert found["errors"] == []
    assert document["gang"] is False
    assert document["retries"] == {
        "resource-limit": 1, "node": 5, "image": 0, "preempted": 7, "timeout": 2, "platform": -1,
    }  # fmt: skip
    worker = document["roles"]["worker"]
    assert worker["ports"] == {"http": 1, "rpc": 2}
    assert worker["completion"] == {"min_failed": 1, "min_succeeded": 1}
    assert {name: fields[name] for name in MORE} == MORE


def test_what_is_emptied_in_the_form_leaves_nothing_behind(alice: Client) -> None:
    page = form_fields(alice) | {"source": "form"}
    full = check_specification(alice, **page | MORE)

    emptied = check_specification(alice, **page | {"yaml": full["yaml"]} | dict.fromkeys(MORE, ""))

    assert read_typed(emptied["yaml"]).document == read_typed(page["yaml"]).document


def test_a_change_in_the_form_keeps_all_else_of_the_text(alice: Client) -> None:
    page = check_specification(alice, source="yaml", yaml=TEXT)["fields"]
    shown = {name: value for name, value in page.items() if isinstance(value, str)}

    found = check_specification(
        alice, **shown | {"source": "form", "yaml": TEXT, "retries.node": "6"}
    )

    assert found["errors"] == []
    assert found["yaml"] == TEXT.replace("node: 5", "node: 6")


def test_faults_stand_at_the_fields_that_are_folded_away(alice: Client) -> None:
    wrong = {
        "deadline": "tomorrow",
        "gang": "perhaps",
        "retries.node": "many",
        "roles.worker.ports": "http=0",
        "roles.worker.image_secret": "GONE",
        "roles.worker.completion.min_failed": "0",
    }

    found = check_specification(alice, **form_fields(alice) | {"source": "form", **wrong})

    assert {fault["field"] for fault in found["errors"]} == set(wrong)


def test_faults_come_as_their_lines_do_and_name_their_field_in_a_row_of_several(
    alice: Client,
) -> None:
    posted = form_fields(alice) | {"source": "form", "deadline": "soon", "max_duration": "long"}
    posted |= {"retries.user": "x", "retries.timeout": "y"}

    lines = [fault["line"] for fault in check_specification(alice, **posted)["errors"]]
    said = alice.post("/submit/", posted).content.decode()

    assert lines == sorted(lines)
    assert len(lines) == 4
    for label in ("Time limit", "Command failed", "Time limit exceeded"):
        assert f"<span><b>{label}</b> " in said


def with_row(alice: Client) -> dict[str, str]:
    """What the page posts once a secret of the name TOKEN was added."""
    page = form_fields(alice) | {"source": "form"}
    asked = {"change": "add-secret:worker", "secret_name.worker": " TOKEN "}
    found = check_specification(alice, **page | asked)
    assert f'type="password" id="f-{ROW.replace(".", "-")}"' in found["fields_html"]
    assert [fault["field"] for fault in found["errors"]] == [ROW]
    return page | {"yaml": found["yaml"], ROW: ""}


def test_a_secret_is_added_and_its_value_is_in_no_answer(alice: Client) -> None:
    page = with_row(alice)

    found = check_specification(alice, **page | {ROW: "hush-hush"})

    assert found["errors"] == []
    assert "TOKEN: (redacted)" in found["yaml"]
    assert "hush" not in str(found)
    assert ROW not in found["fields"], "what was typed into the form stays there"


def test_a_secret_of_the_form_goes_with_the_job_and_its_text_is_not_kept(alice: Client) -> None:
    page = with_row(alice)

    sent = alice.post("/submit/", page | {ROW: "hush-hush"})

    assert sent.status_code == 302, sent.content
    job = Job.objects.unscoped().get()
    assert job.source_text == ""
    assert job.spec["roles"]["worker"]["secrets"] == {"TOKEN": "(redacted)"}
    assert JobSecret.objects.filter(job=job).exists()
    again = alice.post("/submit/", page | {ROW: "hush-hush"})
    assert again["Location"] == sent["Location"]
    other = alice.post("/submit/", page | {ROW: "hidden-too"})
    assert other.status_code == 409
    assert "hidden-too" not in other.content.decode()
    assert Job.objects.unscoped().count() == 1


def test_without_scripts_a_refused_page_asks_for_secrets_again(alice: Client) -> None:
    page = with_row(alice) | {ROW: "hush-hush", "roles.worker.devices": "0"}

    refused = alice.post("/submit/", page)

    text = refused.content.decode()
    assert refused.status_code == 422
    assert "hush" not in text
    assert re.search(rf'type="password"[^>]*name="{re.escape(ROW)}" value=""', text)


def test_a_name_that_was_typed_and_not_added_is_not_dropped(alice: Client) -> None:
    refused = alice.post("/submit/", form_fields(alice) | {"secret_name.worker": "TOKEN"})

    assert refused.status_code == 422
    assert f'name="{ROW}"' in refused.content.decode()
    assert not Job.objects.unscoped().exists()


def test_a_value_in_the_text_holds_until_the_form_gives_another(alice: Client) -> None:
    opened = check_specification(alice, source="yaml", yaml=TEXT)
    assert opened["fields"][ROW] == ""
    assert "hush" not in opened["fields_html"]
    shown = {name: value for name, value in opened["fields"].items() if isinstance(value, str)}

    found = check_specification(alice, **shown | {"source": "form", "yaml": TEXT, ROW: "new-one"})

    assert found["errors"] == []
    document = read_typed(found["yaml"]).document
    assert document is not None
    assert document["roles"]["worker"]["secrets"] == {
        "TOKEN": "(redacted)", "REG": "alice:hush",
    }  # fmt: skip
    assert "new-one" not in str(found)


def test_a_secret_is_removed(alice: Client) -> None:
    page = with_row(alice)

    found = check_specification(alice, **page | {"change": "remove-secret:worker:TOKEN"})

    assert "secrets" not in found["yaml"]
    assert ROW not in found["fields_html"]


@pytest.mark.parametrize("change", ["remove-secret", "remove-secret:worker", "remove-secret::"])
def test_a_change_that_names_no_secret_changes_nothing(alice: Client, change: str) -> None:
    page = with_row(alice)

    found = check_specification(alice, **page | {"change": change})

    assert found["yaml"] == page["yaml"]
