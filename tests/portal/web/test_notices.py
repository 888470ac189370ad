"""Hooks and notifications, on pages and by REST: secrets are shown once, to their owners."""

import re
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.notices.models import Delivery, DeliveryState, NotificationPreference, Webhook
from tenants.models import User
from tenants.roles import Scope
from tests.factories.tenants import NOW, make_token
from tests.support.cluster_pages import (
    HOSTILE,
    HTMX,
    Stage,
    make_stage,
    markup_of,
    read,
    sign_in,
    words_of,
)

pytestmark = pytest.mark.django_db

SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]{40,}")


@pytest.fixture
def stage() -> Stage:
    return make_stage(2)


def make(client: Client, stage: Stage, **changes: object) -> str:
    sent = {
        "name": f"chat {HOSTILE}"[:80],
        "url": "https://hooks.example.org/x",
        "events": ["job.failed"],
        "tenant": stage.vision.pk,
    }
    return client.post("/hooks/", {**sent, **changes}).content.decode()


def test_a_lead_makes_a_hook_and_sees_its_secret_once(client: Client, stage: Stage) -> None:
    lena = sign_in(client, "lena")

    html = make(lena, stage)

    hook = Webhook.objects.unscoped().get()
    assert len(set(SECRET.findall(html))) == 1
    assert not SECRET.search(read(lena, "/hooks/"))
    assert "<img src=x" not in read(lena, f"/hooks/{hook.pk}/")
    assert SECRET.search(lena.post(f"/hooks/{hook.pk}/rotate/").content.decode())
    lena.post(f"/hooks/{hook.pk}/test/")
    page = words_of(read(lena, f"/hooks/{hook.pk}/"))
    assert "ping" in page
    assert "not attempted yet" in page
    row = Delivery.objects.get()
    Delivery.objects.update(state=DeliveryState.DEAD, done_at=timezone.now())
    lena.post(f"/deliveries/{row.pk}/replay/")
    assert Delivery.objects.filter(replay_of=row).exists()


def test_deliveries_come_anew_until_none_waits(client: Client, stage: Stage) -> None:
    lena = sign_in(client, "lena")
    make(lena, stage)
    address = f"/hooks/{Webhook.objects.unscoped().get().pk}/"
    asks_again = f'hx-get="{address}" hx-trigger="every 3s" hx-target="#deliveries"'
    assert "hx-trigger" not in read(lena, address)

    lena.post(f"{address}test/")
    page, part = (markup_of(read(lena, address, **headers)) for headers in ({}, HTMX))

    assert 'id="deliveries"' in page
    assert asks_again in page
    assert asks_again in part
    assert "<html" not in part
    asks_for_some = asks_again.replace('/"', '/?state=waiting"', 1)
    assert asks_for_some in markup_of(read(lena, f"{address}?state=waiting", **HTMX))
    Delivery.objects.update(state=DeliveryState.DELIVERED, done_at=timezone.now())
    part = read(lena, address, **HTMX)
    assert "hx-trigger" not in part
    assert "delivered" in words_of(part)


def test_members_and_other_tenants_reach_no_hook(client: Client, stage: Stage) -> None:
    make(sign_in(client, "lena"), stage)
    hook = Webhook.objects.unscoped().get()

    for who in ("alice", "bob"):
        stranger = sign_in(Client(), who)
        assert stranger.get("/hooks/").status_code == 403
        assert stranger.get(f"/hooks/{hook.pk}/").status_code == 404
        assert stranger.post(f"/hooks/{hook.pk}/delete/").status_code == 404
        assert stranger.get(f"/api/v1/webhooks/{hook.pk}/").status_code == 404
        assert stranger.get("/api/v1/deliveries/").json()["results"] == []
    for_all = {"name": "all", "url": "https://hooks.example.org/x", "events": ["job.failed"]}
    assert client.post("/hooks/", {**for_all, "tenant": ""}).status_code == 403
    assert Webhook.objects.unscoped().get() == hook


def test_a_hook_with_faults_is_answered_by_422(client: Client, stage: Stage) -> None:
    lena = sign_in(client, "lena")
    make(lena, stage)
    page = f"/hooks/{Webhook.objects.unscoped().get().pk}/"

    new = lena.post("/hooks/", {"name": "x", "url": "", "tenant": stage.vision.pk})
    changed = lena.post(page, {"name": "x", "url": "no address", "events": ["job.failed"]})

    assert (new.status_code, changed.status_code) == (422, 422)
    assert lena.get(page).status_code == 200
    assert Webhook.objects.unscoped().get().url == "https://hooks.example.org/x"


def test_scripts_make_change_ping_and_delete_hooks(client: Client, stage: Stage) -> None:
    root = sign_in(client, "root")
    body = {"name": "pager", "url": "https://p.example.org/", "events": ["node.down"]}

    made = root.post("/api/v1/webhooks/", body, content_type="application/json")

    assert made.status_code == 201
    assert SECRET.fullmatch(made.json()["secret"])
    address = f"/api/v1/webhooks/{made.json()['id']}/"
    seen = root.get(address)
    assert "secret" not in seen.json()
    pinged = root.post(f"{address}ping/", {}, content_type="application/json").json()
    assert (pinged["event"], pinged["state"]) == ("ping", "waiting")
    listed = root.get(f"/api/v1/deliveries/?webhook={made.json()['id']}&state=waiting").json()
    assert [row["uid"] for row in listed["results"]] == [pinged["uid"]]
    off = root.patch(address, {"enabled": False}, content_type="application/json")
    assert off.json()["enabled"] is False
    pinged = root.post(f"{address}ping/", {}, content_type="application/json")
    assert pinged.status_code == 409
    assert root.get("/api/v1/deliveries/?state=lost").status_code == 400
    assert root.delete(address).status_code == 204


def test_a_token_without_jobs_sees_no_job_events(client: Client, stage: Stage) -> None:
    root = sign_in(client, "root")
    body = {"name": "all", "url": "https://p.example.org/", "events": ["job.failed", "node.down"]}
    made = root.post("/api/v1/webhooks/", body, content_type="application/json").json()
    hook = Webhook.objects.unscoped().get(pk=made["id"])
    rows = {
        event: Delivery.objects.create(
            event=event, event_uid=uuid4(), hook=hook, body={}, created_at=NOW, next_at=NOW
        )
        for event in ("job.failed", "node.down")
    }
    admin = User.objects.get(username="root")

    def script(*scopes: Scope) -> Client:
        return Client(headers={"Authorization": f"Token {make_token(admin, *scopes).key}"})

    narrow, wide = script(Scope.TENANT_ADMIN), script(Scope.TENANT_ADMIN, Scope.JOBS_READ)
    seen = {
        name: {row["event"] for row in one.get("/api/v1/deliveries/").json()["results"]}
        for name, one in (("narrow", narrow), ("wide", wide))
    }
    address = f"/api/v1/deliveries/{rows['job.failed'].pk}/"
    new = narrow.post("/api/v1/webhooks/", body, content_type="application/json")
    moved = narrow.patch(
        f"/api/v1/webhooks/{hook.pk}/",
        {"url": "https://elsewhere.example.org/"},
        content_type="application/json",
    )

    assert seen == {"narrow": {"node.down"}, "wide": {"job.failed", "node.down"}}
    assert (narrow.get(address).status_code, wide.get(address).status_code) == (404, 200)
    assert (new.status_code, moved.status_code) == (403, 403)


def test_people_choose_what_they_get_by_mail(client: Client, stage: Stage) -> None:
    alice = sign_in(client, "alice")
    assert "E-mail is not configured" in words_of(read(alice, "/notifications/"))

    wrong = alice.post("/notifications/", {"email": "nowhere", "jobs": []})
    alice.post("/notifications/", {"email": "alice@example.org", "jobs": ["job.running"]})

    assert wrong.status_code == 422
    assert "not a valid e-mail address" in words_of(wrong.content.decode())
    assert User.objects.get(username="alice").email == "alice@example.org"
    assert NotificationPreference.objects.get().mail == ["job.running"]
    body = {"mail": ["job.failed", "job.idle"]}
    chosen = alice.patch("/api/v1/notifications/", body, content_type="application/json")
    assert chosen.json()["mail"] == ["job.failed", "job.idle"]
    assert (
        alice.patch(
            "/api/v1/notifications/", {"mail": ["x"]}, content_type="application/json"
        ).status_code
        == 400
    )


def test_an_admin_sets_the_gpu_hours_of_a_month(client: Client, stage: Stage) -> None:
    root = sign_in(client, "root")
    address = f"/api/v1/tenants/{stage.vision.pk}/budget/"

    root.post(
        f"/tenants/{stage.vision.pk}/edit/",
        {"version": 1, "display_name": "Vision", "gpu_hours_per_month": "120.5"},
    )

    assert root.get(address).json() == {"gpu_hours_per_month": 120.5, "used_this_month": 0.0}
    body = {"gpu_hours_per_month": None}
    assert root.put(address, body, content_type="application/json").status_code == 200
    lena = sign_in(Client(), "lena")
    assert lena.get(address).json()["gpu_hours_per_month"] is None
    assert lena.put(address, body, content_type="application/json").status_code == 403
