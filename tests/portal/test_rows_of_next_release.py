"""Rows with codes of the next release: every page, response, mail and round of this one works."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import yaml
from django.test import Client
from django.utils import timezone

from portal.letters import letter
from portal.web import urls
from scheduling.core.jobspec import parse_stored
from scheduling.jobs.models import Job, JobEvent
from scheduling.notices.models import Delivery, Notice
from scheduling.notices.services.outbox import create_deliveries
from scheduling.rounds.models import Round
from scheduling.runs.models import Attempt, Member
from scheduling.watching.models import LogRuleHit
from tenants.audit import Actor, record
from tenants.models import InboxMessage, User
from tests.conftest import PROJECT_ROOT
from tests.factories.cluster import job_document, make_job
from tests.support.addresses import addresses
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, store_a_round

pytestmark = pytest.mark.django_db

CODE: Final = "solar-flare"
TEXT: Final = "Waits until the solar flare is over."
FUTURE: Final[Mapping[str, Any]] = MappingProxyType(
    {"code": CODE, "params": {"magnitude": 7}, "text": TEXT}
)
"""A message whose code and parameters this release does not have, with its English text."""
CLEARED: Final = "The solar flare cleared the device."


@pytest.fixture
def stage(tmp_path: Path, settings: Any) -> Stage:
    """A cluster whose rows the next release has written in part."""
    made = make_stage()
    store_a_round(settings.TESSERA.data_dir)
    made.waiting = make_job("alice", job_document(name="waits-longer"))
    _write_jobs(made)
    _write_events(made)
    _write_messages(made)
    return made


def _write_jobs(made: Stage) -> None:
    jobs = Job.objects.unscoped()
    jobs.filter(pk=made.waiting.pk).update(
        reason_code=CODE,
        reason_text=TEXT,
        reason={"message": dict(FUTURE), "magnitude": 7, "unblock": [dict(FUTURE)]},
    )
    for job in jobs.all():
        job.spec = {**job.spec, "magnet": {"strength": 3}}
        job.spec["roles"] = {
            name: {**role, "magnet": True} for name, role in job.spec["roles"].items()
        }
        job.demand = {**job.demand, "magnet": 3}
        job.terms = {**job.terms, "magnet": 3}
        job.warnings = [dict(FUTURE)]
        job.save()
    Attempt.objects.update(suspended_by="T9")  # the column has two characters
    failed = jobs.get(pk=made.foreign.pk)
    Attempt.objects.filter(job=failed).update(
        outcome=CODE, failure_class=CODE, message=CLEARED, ended_at=timezone.now()
    )
    Member.objects.filter(attempt__job=failed).update(failure_class=CODE)
    Round.objects.update(cause=CODE, fallbacks=[{"vc": 1, "code": CODE, "text": TEXT}])


def _write_events(made: Stage) -> None:
    now = timezone.now()
    detail = {"message": dict(FUTURE), "text": CLEARED, "magnitude": 7}
    for job in (made.running, made.waiting, made.foreign):
        for kind, state in ((CODE, ""), (CODE, CODE), ("all-running", CODE)):
            JobEvent.objects.create(
                job=job, kind=kind, state=state, at=now, text=CLEARED, detail=detail, untold=True
            )
    LogRuleHit.objects.all().update(action=CODE)
    record(actor=Actor.system("next release"), action=f"node.{CODE}", obj=made.nodes[0])


def _write_messages(made: Stage) -> None:
    now = timezone.now()
    body = {"version": 1, "id": "x", "event": f"job.{CODE}", "at": now.isoformat(), "text": TEXT}
    for user in User.objects.all():
        InboxMessage.objects.create(
            user=user, event=f"job.{CODE}", at=now, event_uid="0" * 31 + str(user.pk % 10),
            body={**body, "job": {"id": made.running.pk, "name": "train-a"}},
        )  # fmt: skip
    Notice.objects.create(event=f"node.{CODE}", at=now, facts={"node": {"id": 1, "name": "n"}})


def _rest() -> Iterator[str]:
    """Addresses of all GET operations of one object or a list."""
    found = yaml.safe_load((PROJECT_ROOT / "tests/portal/api/openapi.yaml").read_text())
    for path, operations in found["paths"].items():
        if "get" in operations:
            yield path


def _own_key(path: str, made: Stage) -> list[str]:
    if "{id}" not in path:
        return [path]
    jobs = (made.running, made.waiting, made.foreign)
    keys = [job.pk for job in jobs] if "/jobs/" in path else [1, made.nodes[0].pk]
    return [path.replace("{id}", str(key)) for key in keys]


def test_every_page_works_with_unknown_codes(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    for job in (stage.running, stage.waiting, stage.foreign):
        words = {"slug": "cordon", "int": str(job.pk), "str": "word"}
        for path in addresses(urls.urlpatterns, words):
            if path != "/logout/":
                status = client.get(path).status_code
                assert status in {200, 302, 400, 403, 404, 405}, path


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_pages_show_the_stored_english_text(client: Client, stage: Stage, language: str) -> None:
    User.objects.update(language=language)
    sign_in(client, "root")

    assert TEXT in read(client, f"/jobs/{stage.waiting.pk}/")
    assert CLEARED in read(client, f"/jobs/{stage.running.pk}/events/")
    assert CODE in read(client, "/audit/")


def test_every_response_of_rest_works_with_unknown_codes(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    answered = 0
    for path in _rest():
        for address in _own_key(path, stage):
            status = client.get(address).status_code
            assert status in {200, 302, 400, 403, 404, 405, 503}, address
            answered += status == 200
    reason = client.get(f"/api/v1/jobs/{stage.waiting.pk}/why/").json()

    assert answered > 60
    assert (reason["code"], reason["text"]) == (CODE, TEXT)


def test_a_round_plans_jobs_with_unknown_fields_and_reasons(stage: Stage, settings: Any) -> None:
    before = Round.objects.count()

    store_a_round(settings.TESSERA.data_dir)

    assert Round.objects.count() == before + 1
    assert Job.objects.unscoped().get(pk=stage.waiting.pk).reason_code != CODE


def test_unknown_events_wait_for_a_process_that_knows_them(stage: Stage) -> None:
    for _ in range(2):
        create_deliveries(now=timezone.now(), sends_mail=True)

    assert Notice.objects.unscoped().filter(untold=True).count() == 1
    assert not Delivery.objects.filter(event__endswith=CODE).exists()
    assert not JobEvent.objects.filter(untold=True, kind="all-running").exists()
    assert not JobEvent.objects.filter(untold=True).exclude(kind=CODE).exists()
    assert JobEvent.objects.filter(untold=True, kind=CODE).exists()


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_mail_about_an_unknown_event_names_it(language: str) -> None:
    body = {
        "event": f"job.{CODE}", "at": "2026-11-28T10:00:00+00:00",
        "job": {"id": 7, "name": "train"}, "tenant": "vision",
    }  # fmt: skip

    subject, text = letter(body, language, "")

    assert "solar flare" in subject
    assert "solar flare" in text.lower()
    assert "train" in text


def test_an_amendment_refuses_a_document_with_unknown_fields(client: Client, stage: Stage) -> None:
    sign_in(client, "root")
    address = f"/api/v1/jobs/{stage.waiting.pk}/amend/"

    refused = client.post(address, {"changes": {"note": "x"}}, content_type="application/json")

    assert refused.status_code == 400
    assert "magnet" in refused.content.decode()
    assert Job.objects.unscoped().get(pk=stage.waiting.pk).spec["magnet"] == {"strength": 3}


def test_an_attempt_of_a_document_with_unknown_fields_can_be_retried_and_prepared(
    stage: Stage,
) -> None:
    for job in Job.objects.unscoped().all():
        assert parse_stored(job.spec).roles["worker"].command
