"""Deliveries over real connections: hooks and mail, failures apart, nothing sent twice."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.settings.backends import mail_settings
from scheduling.jobs.models import JobEvent
from scheduling.notices.models import Delivery, DeliveryState
from scheduling.notices.services import outbox, webhooks
from scheduling.notices.services.addresses import read_networks
from tenants.models import User
from tests.factories.scheduling import make_two_tenants, submit
from tests.factories.tenants import make_viewer
from tests.support.receivers import HookServer, MailServer, hook_server, mail_server
from workers.outbound import delivering
from workers.outbound.delivering import Outbound, deliver
from workers.tasks import notify

pytestmark = pytest.mark.django_db

OUTBOUND = Outbound(
    networks=read_networks("127.0.0.1"), sender="Tessera <tessera@example.org>", base_url=""
)


@pytest.fixture
def receiver() -> Iterator[HookServer]:
    with hook_server() as server:
        yield server


@pytest.fixture
def post_office(settings) -> Iterator[MailServer]:
    with mail_server() as server:
        for name, value in mail_settings(f"smtp://127.0.0.1:{server.port}").items():
            setattr(settings, name, value)
        yield server


def make_hook(url: str, name: str = "chat") -> int:
    made = webhooks.create_hook(
        viewer=make_viewer("root"),
        name=name,
        url=url,
        events=["job.failed"],
        tenant_id=None,
        now=timezone.now(),
        networks=read_networks("127.0.0.1"),
    )
    return made.hook.pk


def put_failures(count: int) -> None:
    """Alice's job has failed so often, as the writer of job states writes it."""
    job = submit()
    now = timezone.now()
    JobEvent.objects.bulk_create(
        JobEvent(job=job, at=now, kind="fail", state="failed", untold=True) for _ in range(count)
    )
    outbox.create_deliveries(now=now, sends_mail=True)


@pytest.fixture(autouse=True)
def people(db: None) -> None:
    make_two_tenants()


def run(after: timedelta = timedelta(0), **limits: Any) -> int:
    return deliver(OUTBOUND, now=lambda: timezone.now() + after, **limits)


def test_events_reach_hooks_and_mail_boxes(receiver, post_office):
    User.objects.filter(username="alice").update(email="alice@example.org")
    make_hook(receiver.url)
    put_failures(1)

    assert run() == 2
    assert run() == 0

    assert len(receiver.heard) == 1
    ((sender, receivers, text),) = post_office.mails
    assert (sender, receivers) == ("tessera@example.org", ["alice@example.org"])
    assert "Subject: [Tessera] Job" in text
    assert "Auto-Submitted: auto-generated" in text
    assert set(Delivery.objects.values_list("state", flat=True)) == {DeliveryState.DELIVERED}


def test_a_hook_that_fails_is_tried_once_a_pass_and_holds_no_other_up(receiver):
    with hook_server() as broken:
        broken.answers = [500] * 20
        make_hook(broken.url, "broken")
        make_hook(receiver.url)
        put_failures(3)

        run()

        assert len(broken.heard) == 1
        assert len(receiver.heard) == 3
        broken.answers = []
        run(timedelta(minutes=1))
        assert len(broken.heard) == 4
    ids = [headers["webhook-id"] for _, headers, _ in broken.heard]
    assert len(set(ids)) == 3, "a second try has the id of the first"


def test_many_deliveries_for_a_broken_webhook_delay_no_other(receiver):
    with hook_server() as broken:
        broken.answers = [500] * 20
        make_hook(broken.url, "broken")
        put_failures(5)
        make_hook(receiver.url)
        put_failures(1)

        run(at_once=3)

        assert len(receiver.heard) == 1
        assert len(broken.heard) == 1


def test_a_webhook_to_a_private_address_is_refused_with_a_reason(receiver):
    make_hook(receiver.url)
    put_failures(1)

    deliver(Outbound(), now=timezone.now)

    assert receiver.heard == []
    row = Delivery.objects.get(hook__isnull=False)
    assert "private network" in row.log[0]["error"]
    assert row.state == DeliveryState.WAITING


def test_the_task_creates_and_sends_deliveries(receiver, settings):
    settings.TESSERA = replace(settings.TESSERA, hook_networks="127.0.0.1")
    make_hook(receiver.url)
    put_failures(0)
    job = submit(name="late")
    JobEvent.objects.create(job=job, at=timezone.now(), kind="fail", state="failed", untold=True)

    notify()

    assert len(receiver.heard) == 1
    assert set(Delivery.objects.values_list("hook__name", flat=True)) == {"chat"}


def test_a_person_without_an_address_is_given_up_at_once(post_office):
    put_failures(1)

    run()

    row = Delivery.objects.get()
    assert row.state == DeliveryState.DEAD
    assert "no e-mail address" in row.log[0]["error"]


def test_an_address_that_the_mail_server_refuses_is_tried_again(post_office):
    User.objects.filter(username="alice").update(email="alice@example.org")
    post_office.refuses = {"alice@example.org"}
    put_failures(1)

    run()
    post_office.refuses = set()
    run(timedelta(minutes=1))

    row = Delivery.objects.get()
    assert row.state == DeliveryState.DELIVERED
    assert [one["error"] for one in row.log] == ["the mail server refused the address", ""]


def test_an_address_that_is_refused_holds_no_other_mail_up(post_office):
    for name in ("alice", "ada"):
        User.objects.filter(username=name).update(email=f"{name}@example.org")
    post_office.refuses = {"alice@example.org"}
    job = submit(notify={"on": ["failed"], "to": ["ada"]})
    JobEvent.objects.create(job=job, at=timezone.now(), kind="fail", state="failed", untold=True)
    outbox.create_deliveries(now=timezone.now(), sends_mail=True)
    refused, _ = Delivery.objects.order_by("id").values_list("user__username", flat=True)
    assert refused == "alice"

    run()

    assert [receivers for _, receivers, _ in post_office.mails] == [["ada@example.org"]]
    states = dict(Delivery.objects.values_list("user__username", "state"))
    assert states == {"alice": DeliveryState.WAITING, "ada": DeliveryState.DELIVERED}


def test_a_mail_that_cannot_be_written_delays_no_other(post_office):
    for name in ("alice", "ada"):
        User.objects.filter(username=name).update(email=f"{name}@example.org")
    put_failures(2)

    def letter(body, language, time_zone):
        if not letters:
            letters.append(language)
            raise KeyError("hunter2")
        return delivering.english(body, language, time_zone)

    letters: list[str] = []
    deliver(replace(OUTBOUND, letter=letter), now=timezone.now)

    first, second = Delivery.objects.order_by("id")
    assert (first.state, second.state) == (DeliveryState.WAITING, DeliveryState.DELIVERED)
    assert [one["error"] for one in first.log] == ["an error in this portal (KeyError)"]
