"""Forms that make something: sent twice at once they make it once, changed they ask first."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from django.db.models import Model
from django.test import Client

from scheduling.jobs.models import Job, Sweep
from scheduling.notices.models import Delivery, DeliveryState, Webhook
from scheduling.what_if.models import WhatIf
from tenants.models import Announcement, ApiToken, FormToken
from tests.support.cluster_pages import make_stage, read, sign_in, words_of
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

TEXT = """\
name: try
virtual_cluster: vision-a
roles:
  worker:
    devices: 1
    command: 'true'
"""
WORD = re.compile(r'name="(?:once|key)" value="([0-9a-f]{32})"')


@dataclass(frozen=True, kw_only=True)
class Making:
    """A form: who sends it where, with what, what it makes, and what to change in it.

    ``page`` is where it stands, if that is not where it is sent; ``field`` has its word.
    """

    who: str
    address: str
    sent: dict[str, Any]
    makes: type[Model]
    changed: dict[str, Any]
    field: str = "once"
    page: str = ""

    def rows(self) -> int:
        return self.makes._base_manager.count()


MAKINGS = {
    "submit": Making(
        who="alice",
        address="/submit/",
        sent={"source": "yaml", "yaml": TEXT},
        makes=Job,
        changed={"yaml": TEXT.replace("try", "again")},
        field="key",
    ),
    "sweep": Making(
        who="alice",
        address="/sweeps/new/",
        sent={"yaml": TEXT, "parameters": "LR = 1, 2", "max_parallel": ""},
        makes=Sweep,
        changed={"parameters": "LR = 1, 3"},
    ),
    "token": Making(
        who="alice",
        address="/tokens/",
        sent={"name": "script", "scopes": ["jobs:read"], "expires_in_days": "30"},
        makes=ApiToken,
        changed={"expires_in_days": "90"},
    ),
    "hook": Making(
        who="root",
        address="/hooks/",
        sent={"name": "chat", "url": "https://h.example.org/x", "events": ["job.failed"]},
        makes=Webhook,
        changed={"url": "https://h.example.org/y"},
    ),
    "announcement": Making(
        who="root",
        address="/announcements/",
        sent={"text": "Maintenance at noon", "severity": "warning"},
        makes=Announcement,
        changed={"severity": "info"},
    ),
    "what-if": Making(
        who="alice",
        address="/policies/what-if/",
        sent={"virtual_cluster": "vision-a", "policy": "srtf", "period": "1"},
        makes=WhatIf,
        changed={"period": "3"},
    ),
}


@pytest.fixture(params=MAKINGS)
def making(request: pytest.FixtureRequest) -> Making:
    return MAKINGS[request.param]


def word_on(html: str, making: Making) -> str:
    """The word of the form that makes something, where several stand on the page."""
    (form,) = (
        form
        for form in re.findall(r"<form.*?</form>", html, re.DOTALL)
        if all(f'name="{name}"' in html for name in making.sent)
        and f'name="{making.field}"' in form
        and "data-bulk" not in form
    )
    found = WORD.search(form)
    assert found is not None
    return found[1]


def make_hook(client: Client) -> str:
    """A hook of the whole cluster; its page."""
    client.post("/hooks/", MAKINGS["hook"].sent)
    return f"/hooks/{Webhook.objects.unscoped().get().pk}/"


@pytest.mark.usefixtures("real_database")
def test_of_two_posts_at_once_one_makes_something_and_both_lead_there() -> None:
    job = make_stage(2).waiting
    clone = Making(
        who="alice",
        page=f"/jobs/{job.pk}/",
        address=f"/jobs/{job.pk}/clone/",
        sent={},
        makes=Job,
        changed={},
    )

    hook = make_hook(sign_in(Client(), "root"))
    ping = Making(
        who="root", page=hook, address=f"{hook}test/", sent={}, makes=Delivery, changed={}
    )

    for making in (*MAKINGS.values(), clone, ping):
        clients = [sign_in(Client(), making.who) for _ in range(2)]
        word = word_on(read(clients[0], making.page or making.address), making)
        before = making.rows()

        def post(client: Client, making: Making = making, word: str = word) -> Any:
            return client.post(making.address, {**making.sent, making.field: word})

        answers: list[Any] = at_once(*(lambda c=client: post(c) for client in clients))

        assert making.rows() == before + 1, making.address
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses in ([302, 302], [200, 302]), (making.address, answers)
        goals = {a.headers["Location"] for a in answers if a.status_code == 302}
        assert len(goals) == 1, making.address


@pytest.mark.django_db
def test_what_was_changed_before_it_was_sent_again_is_asked_about(making: Making) -> None:
    make_stage(2)
    client = sign_in(Client(), making.who)
    word = word_on(read(client, making.address), making)
    client.post(making.address, {**making.sent, making.field: word})
    made = making.rows()
    changed = {**making.sent, **making.changed}

    asked = client.post(making.address, {**changed, making.field: word})

    html = asked.content.decode()
    fresh = word_on(html, making)
    assert (asked.status_code, making.rows()) == (409, made)
    assert re.search("This form (has already submitted|was already submitted)", html)
    assert fresh != word
    sent = client.post(making.address, {**changed, making.field: fresh})
    assert sent.status_code in (200, 302)
    assert making.rows() == made + 1


@pytest.mark.django_db
def test_what_is_sent_by_a_click_goes_out_once_and_from_a_new_page_again() -> None:
    make_stage(2)
    root = sign_in(Client(), "root")
    page = make_hook(root)

    def clicks(action: str) -> list[str]:
        """A double click on the one button of the page that posts there."""
        (form,) = re.findall(f'<form[^>]*action="{action}".*?</form>', read(root, page), re.DOTALL)
        word = WORD.search(form)
        assert word is not None
        sent = [root.post(action, {"once": word[1]}, follow=True) for _ in range(2)]
        assert [answer.redirect_chain[-1][0] for answer in sent] == [page, page]
        return [words_of(answer.content.decode()) for answer in sent]

    first, second = clicks(f"{page}test/")
    delivery = Delivery.objects.get()
    Delivery.objects.update(state=DeliveryState.DELIVERED)
    replayed, again = clicks(f"/deliveries/{delivery.pk}/replay/")

    assert "Ping sent" in first
    assert "Delivery queued again." in replayed
    assert "This form was already submitted and processed." in second
    assert "This form was already submitted and processed." in again
    assert Delivery.objects.get(replay_of=delivery).event == "ping"
    clicks(f"{page}test/")
    assert Delivery.objects.count() == 3


@pytest.mark.django_db
def test_a_refused_form_may_be_mended_and_sent_with_the_word_that_it_has() -> None:
    make_stage(2)
    root = sign_in(Client(), "root")
    sent = {"text": "Soon", "severity": "info", "once": "a" * 32}

    refused = root.post("/announcements/", {**sent, "ends_at": "2020-01-01T00:00"})
    mended = root.post("/announcements/", sent)

    assert (refused.status_code, mended.status_code) == (422, 302)
    assert Announcement.objects.count() == FormToken.objects.count() == 1


@pytest.mark.django_db
def test_a_key_that_the_first_click_made_is_not_shown_by_the_second() -> None:
    make_stage(2)
    alice = sign_in(Client(), "alice")
    sent = {**MAKINGS["token"].sent, "once": "b" * 32}

    first = alice.post("/tokens/", sent)
    second = alice.post("/tokens/", sent, follow=True)

    key = re.compile("tsr_[a-z0-9]{8}_[0-9a-f]{64}")
    assert key.search(first.content.decode())
    assert not key.search(second.content.decode())
    assert "It was shown in the response to the first click" in words_of(second.content.decode())


@pytest.mark.django_db
def test_the_word_of_somebody_else_stands_in_nobodys_way() -> None:
    make_stage(2)
    sent = {**MAKINGS["token"].sent, "once": "c" * 32}

    answers = [sign_in(Client(), name).post("/tokens/", sent) for name in ("alice", "bob")]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert ApiToken.objects.count() == 2
