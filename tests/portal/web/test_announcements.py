"""Announcements: shown to all, closed by each, written by admins alone, in the audit."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from tenants.models import Announcement, AuditEntry, User
from tenants.roles import Scope
from tests.factories.tenants import make_token, make_user
from tests.support.cluster_pages import HOSTILE, read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_cached() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def root(client: Client) -> Client:
    make_user("root", is_cluster_admin=True)
    make_user("alice")
    return sign_in(client, "root")


@pytest.fixture
def alice(root: Client) -> Client:
    return sign_in(Client(), "alice")


def announce(root: Client, **values: Any) -> Announcement:
    sent = {"text": "Maintenance at noon", "severity": "warning", **values}
    answer = root.post("/announcements/", sent)
    assert answer.status_code == 302, words_of(answer.content.decode())
    return Announcement.objects.latest("id")


def test_what_an_admin_announces_stands_above_everybodys_pages(root, alice):
    announce(root, text=f"See https://example.org/plan {HOSTILE}")

    page = read(alice, "/tokens/")

    assert '<a href="https://example.org/plan"' in page
    assert "See " in words_of(page)
    assert "<img src=x" not in page
    entry = AuditEntry.objects.unscoped().get(action="announcement.create")
    assert entry.actor_name == "root"
    assert entry.after["severity"] == "warning"


def test_it_is_shown_from_its_start_until_its_end(root, alice):
    soon = announce(root, starts_at=timezone.now() + timedelta(hours=1))
    over = announce(root, text="Gone")
    Announcement.objects.filter(pk=over.pk).update(
        starts_at=timezone.now() - timedelta(hours=2), ends_at=timezone.now() - timedelta(hours=1)
    )
    cache.clear()

    assert "Maintenance" not in read(alice, "/tokens/")
    assert "Gone" not in read(alice, "/tokens/")

    Announcement.objects.filter(pk=soon.pk).update(starts_at=timezone.now())
    cache.clear()
    assert "Maintenance at noon" in read(alice, "/tokens/")


def test_who_closes_it_sees_it_no_more_until_it_is_changed(root, alice):
    told = announce(root)

    answer = alice.post(f"/announcements/{told.pk}/dismiss/", {"next": "/tokens/"})

    assert answer.headers["Location"] == "/tokens/"
    assert "Maintenance" not in read(alice, "/tokens/")
    assert "Maintenance" in read(root, "/tokens/")
    changed = {"version": 1, "text": "Maintenance at one", "severity": "info"}
    root.post(f"/announcements/{told.pk}/", changed)
    assert "Maintenance at one" in read(alice, "/tokens/")


def test_one_announcement_is_open_and_the_others_are_folded(root, alice):
    announce(root, text="An info of today", severity="info")
    announce(root, text="A warning of today")
    announce(root, text="Another info", severity="info")

    told, more = read(alice, "/tokens/").split('<details class="banners-folded">', 1)

    assert "A warning of today" in told
    assert "An info of today" not in told
    assert "2 more announcements" in words_of(more)
    assert "An info of today" in more
    assert "Another info" in more
    announce(root, text="A critical one", severity="critical")
    announce(root, text="A second critical one", severity="critical")
    told = read(alice, "/tokens/").split('<details class="banners-folded">')[0]
    assert "A critical one" in told
    assert "A second critical one" in told
    assert "A warning of today" not in told


def test_closing_leads_to_no_other_site(root, alice):
    told = announce(root)

    answer = alice.post(f"/announcements/{told.pk}/dismiss/", {"next": "//example.org/"})

    assert answer.headers["Location"] == "/"


def test_what_is_wrong_is_reported_with_422(root):
    told = announce(root)

    new = root.post("/announcements/", {"text": "", "severity": "info"})
    changed = root.post(f"/announcements/{told.pk}/", {"text": "x", "severity": "shrill"})
    over = root.post(
        "/announcements/",
        {
            "text": "x",
            "severity": "info",
            "starts_at": "2026-02-02T10:00",
            "ends_at": "2026-02-01T10:00",
        },
    )

    assert [answer.status_code for answer in (new, changed, over)] == [422, 422, 422]
    assert "This field is required" in new.content.decode()
    assert "shrill" in changed.content.decode()
    assert "aria-invalid" in over.content.decode()
    assert Announcement.objects.count() == 1


def test_nobody_but_an_admin_writes_them(root, alice):
    told = announce(root)
    script = APIClient()
    key = make_token(User.objects.get(username="root"), Scope.JOBS_READ).key
    script.credentials(HTTP_AUTHORIZATION=f"Token {key}")

    assert alice.get("/announcements/").status_code == 403
    assert alice.post("/announcements/", {"text": "x", "severity": "info"}).status_code == 403
    alice.post(f"/announcements/{told.pk}/delete/", {"version": 1})
    assert script.post("/api/v1/announcements/", {"text": "x"}).status_code == 403
    assert Announcement.objects.count() == 1


def test_scripts_make_read_change_and_withdraw_them(root, alice):
    script = APIClient()
    script.force_login(
        User.objects.get(username="root"), "django.contrib.auth.backends.ModelBackend"
    )
    made = script.post("/api/v1/announcements/", {"text": "Hello", "ends_at": "soon"})
    assert made.status_code == 400
    assert made.json()["errors"][0]["field"] == "ends_at"
    made = script.post("/api/v1/announcements/", {"text": "Hello", "severity": "critical"})
    address = f"/api/v1/announcements/{made.json()['id']}/"

    stale = script.patch(address, {"text": "Bye"}, headers={"If-Match": '"7"'})
    changed = script.patch(address, {"text": "Bye"}, headers={"If-Match": made.headers["ETag"]})

    assert (made.status_code, stale.status_code, changed.status_code) == (201, 412, 200)
    (seen,) = alice.get("/api/v1/announcements/").json()["results"]
    assert (seen["text"], seen["version"], seen["by"]) == ("Bye", 2, "root")
    assert script.post(f"{address}dismiss/").status_code == 204
    assert script.delete(address).status_code == 204
    assert alice.get("/api/v1/announcements/").json()["results"] == []
    assert AuditEntry.objects.unscoped().filter(action="announcement.delete").exists()
