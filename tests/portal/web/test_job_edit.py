"""Changing a waiting job from its page: who may, what is written, and who is told of whom."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job, JobEvent
from tenants.models import AuditEntry
from tenants.roles import Role
from tests.factories.cluster import (
    job_document,
    make_job,
    make_shared_cluster,
)
from tests.factories.running import put_into, run_attempt
from tests.factories.tenants import PASSWORD
from tests.support.cluster_pages import sign_in

pytestmark = pytest.mark.django_db
HTMX: dict[str, Any] = {"headers": {"HX-Request": "true"}}


@pytest.fixture
def nodes() -> list[Node]:
    return make_shared_cluster(alice=Role.MEMBER, carol=Role.MEMBER, victor=Role.VIEWER)


@pytest.fixture
def alice(client: Client, nodes: list[Node]) -> Client:
    return sign_in(client, "alice")


def seen(client: Client, job: Job) -> str:
    part = client.get(f"/jobs/{job.pk}/edit/", **HTMX).content.decode()
    found = re.search(r'name="seen" value="([0-9a-f]{32})"', part)
    assert found is not None
    return found[1]


def send(client: Client, job: Job, **values: str) -> object:
    return client.post(f"/jobs/{job.pk}/edit/", values, **HTMX)


def test_priority_time_limit_and_note_of_a_waiting_job_are_changed_and_kept_in_the_audit(
    alice: Client,
) -> None:
    job = make_job(max_duration=3600)

    part = alice.get(f"/jobs/{job.pk}/edit/", **HTMX).content.decode()
    sent = {"priority": "prod", "max_duration": "2h30m", "note": "for the paper"}
    done = send(alice, job, seen=seen(alice, job), **sent)

    assert 'value="1h"' in part
    assert (done.status_code, done.headers["HX-Redirect"]) == (204, f"/jobs/{job.pk}/")  # type: ignore[attr-defined]
    job.refresh_from_db()
    assert (job.spec["priority"], job.priority) == ("prod", 100)
    assert (job.spec["max_duration"], job.max_duration_seconds) == (9000, 9000)
    assert job.terms["estimate"] == 9000.0
    assert job.note == "for the paper"
    assert (job.state, job.attempts_made) == ("queued", 0)
    entry = AuditEntry.objects.unscoped().get(action="job.amend")
    assert entry.after == {"priority": "prod", "max_duration": "2h30m", "note": "for the paper"}
    assert JobEvent.objects.filter(job=job, kind="amend").count() == 1


def test_the_lines_of_a_note_end_as_they_did_before_a_browser_has_sent_them(
    alice: Client,
) -> None:
    note = "\n".join(["x"] * 250)
    job = make_job(note=note)

    done = send(
        alice, job, seen=seen(alice, job), note=note.replace("\n", "\r\n"), priority="prod"
    )

    job.refresh_from_db()
    assert done.status_code == 204  # type: ignore[attr-defined]
    assert (job.note, job.priority) == (note, 100)
    entry = AuditEntry.objects.unscoped().get(action="job.amend")
    assert entry.after == {"priority": "prod"}


def test_what_is_emptied_is_taken_away_and_zero_is_a_priority(alice: Client) -> None:
    job = make_job(max_duration=60, note="old", priority=0)
    part = alice.get(f"/jobs/{job.pk}/edit/", **HTMX).content.decode()

    send(alice, job, seen=seen(alice, job), priority="0", max_duration="", note="")

    job.refresh_from_db()
    assert '<option value="0" selected>0</option>' in part
    assert (job.max_duration_seconds, job.note, job.priority) == (None, "", 0)


def test_of_two_people_the_second_gets_an_error_and_writes_nothing(
    alice: Client, nodes: list[Node]
) -> None:
    job = make_job(note="first")
    shown = seen(alice, job)
    send(alice, job, seen=shown, note="second", max_duration="1h")

    late = send(alice, job, seen=shown, note="third", max_duration="")

    text = late.content.decode()  # type: ignore[attr-defined]
    job.refresh_from_db()
    assert job.note == "second"
    assert "Another person changed this job meanwhile" in text
    assert "third" in text
    assert ">second</textarea>" in text.replace(">\nsecond", ">second")
    assert send(alice, job, seen=seen(alice, job), note="third").status_code == 204  # type: ignore[attr-defined]


def test_a_form_that_is_sent_twice_changes_the_job_once(alice: Client) -> None:
    job = make_job()
    sent = {"seen": seen(alice, job), "note": "once"}

    answers = [send(alice, job, **sent) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 204]  # type: ignore[attr-defined]
    assert AuditEntry.objects.unscoped().filter(action="job.amend").count() == 1


def test_what_is_wrong_is_at_its_field_and_nothing_is_written(alice: Client) -> None:
    job = make_job()

    part = send(alice, job, seen=seen(alice, job), max_duration="soon", note="x")

    text = part.content.decode()  # type: ignore[attr-defined]
    assert part.status_code == 422  # type: ignore[attr-defined]
    assert 'id="id_max_duration-error"' in text
    assert 'value="soon"' in text
    job.refresh_from_db()
    assert (job.note, job.max_duration_seconds) == ("", None)


def test_a_job_that_has_started_meanwhile_says_so(alice: Client, nodes: list[Node]) -> None:
    job = make_job()
    shown = seen(alice, job)
    now = datetime.now(UTC)
    run_attempt(put_into(job, "running", now=now), nodes[0], now=now)

    part = send(alice, job, seen=shown, max_duration="2h")

    assert "The job is no longer queued" in part.content.decode()  # type: ignore[attr-defined]
    assert Job.objects.unscoped().get(pk=job.pk).max_duration_seconds is None
    assert "do-change" not in alice.get(f"/jobs/{job.pk}/").content.decode()


def test_the_form_is_a_page_of_its_own_without_a_script(alice: Client) -> None:
    job = make_job()
    page = alice.get(f"/jobs/{job.pk}/edit/").content.decode()

    done = alice.post(
        f"/jobs/{job.pk}/edit/", {"seen": seen(alice, job), "note": "plain"}, follow=True
    )

    assert page.count('id="job-edit-body"') == 1
    assert "The next scheduling round uses the new values" in done.content.decode()
    assert 'id="do-change"' in done.content.decode()


@pytest.mark.parametrize(("who", "status"), [("victor", 403), ("carol", 403), ("bob", 404)])
def test_who_may_not_act_on_a_job_does_not_change_it(
    client: Client, nodes: list[Node], who: str, status: int
) -> None:
    job = make_job()
    assert client.login(username=who, password=PASSWORD)

    assert client.get(f"/jobs/{job.pk}/edit/", **HTMX).status_code == status
    assert send(client, job, note="mine").status_code == status  # type: ignore[attr-defined]
    if status == 403:
        assert "do-change" not in client.get(f"/jobs/{job.pk}/").content.decode()
    job.refresh_from_db()
    assert job.note == ""


def test_an_opportunistic_job_has_no_priority_to_change(alice: Client) -> None:
    job = make_job(document=job_document(**{"class": "opportunistic"}))

    part = alice.get(f"/jobs/{job.pk}/edit/", **HTMX).content.decode()

    assert 'name="priority"' not in part
    assert send(alice, job, seen=seen(alice, job), note="x").status_code == 204  # type: ignore[attr-defined]
