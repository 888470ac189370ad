"""Pages show times in the zone of the person or the browser; REST stays in UTC."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone

from portal.letters import letter
from portal.web.components import words
from portal.web.components.gantt import ticks
from portal.web.preferences import COOKIE, zone_named
from scheduling.jobs.models import Job
from tenants.models import User
from tenants.roles import Role
from tests.factories.cluster import make_job, make_shared_cluster
from tests.support.cluster_pages import read, sign_in, words_of

pytestmark = pytest.mark.django_db
SHANGHAI = ZoneInfo("Asia/Shanghai")
SUBMITTED = datetime(2025, 11, 23, 20, 18, tzinfo=UTC)


@pytest.fixture
def alice(client: Client) -> Client:
    make_shared_cluster(alice=Role.MEMBER)
    make_job()
    Job.objects.unscoped().update(submitted_at=SUBMITTED)
    return sign_in(client, "alice")


def test_the_zone_of_the_browser_is_shown_with_its_name(alice: Client) -> None:
    job = Job.objects.unscoped().get()
    alice.cookies[COOKIE] = "Asia%2FShanghai"

    page = read(alice, f"/jobs/{job.pk}/")

    shown = re.findall(r'<time datetime="2025-11-23T20:18[^>]*>([^<]*)</time>', page)
    assert "24 Nov 04:18" in shown
    assert "23 Nov 20:18" not in page
    assert 'title="2025-11-23 20:18:00 UTC"' in page
    assert ">CST</a>" in page
    assert "Asia/Shanghai (UTC+08:00)" in page
    body = alice.get(f"/api/v1/jobs/{job.pk}/").json()
    assert body["submitted_at"].startswith("2025-11-23T20:18:00")
    assert body["submitted_at"].endswith(("Z", "+00:00"))


def test_without_a_cookie_it_is_utc_and_says_so(alice: Client) -> None:
    for cookie in ("", "Mars/Olympus", "../../etc/passwd", "x" * 5000):
        alice.cookies[COOKIE] = cookie

        page = read(alice, f"/jobs/{Job.objects.unscoped().get().pk}/")

        assert "23 Nov 20:18" in page
        assert ">UTC</a>" in page


def test_the_choice_of_a_person_outweighs_the_browser_and_stays(alice: Client) -> None:
    alice.cookies[COOKIE] = "Asia/Shanghai"

    refused = alice.post("/time-zone/", {"time_zone": "Mars/Olympus"})
    done = alice.post("/time-zone/", {"time_zone": "America/New_York"})

    assert (refused.status_code, done.status_code) == (400, 302)
    assert User.objects.get(username="alice").time_zone == "America/New_York"
    page = read(alice, f"/jobs/{Job.objects.unscoped().get().pk}/")
    assert "23 Nov 15:18" in page
    assert "America/New_York" in words_of(read(alice, "/time-zone/"))
    alice.post("/time-zone/", {"time_zone": "browser"})
    assert "24 Nov 04:18" in read(alice, f"/jobs/{Job.objects.unscoped().get().pk}/")


def test_today_is_the_day_of_the_viewer() -> None:
    now = datetime(2025, 11, 23, 15, 30, tzinfo=UTC)  # 23:30 in Shanghai
    wait = 13 * 3600.0

    with timezone.override(SHANGHAI):
        there = words.estimate(wait, wait + 7200.0, now)
    with timezone.override(UTC):
        here = words.estimate(wait, wait + 7200.0, now)

    assert there.replace("\u00a0", " ") == "tomorrow 12:30 – 14:30"
    assert here.replace("\u00a0", " ") == "tomorrow 04:30 – 06:30"
    with timezone.override(SHANGHAI):
        soon = words.estimate(3600.0, 3600.0, now, soonest=3600.0)
    assert soon.replace("\u00a0", " ") == "tomorrow 00:30"


def test_ticks_lie_on_full_hours_and_days_of_the_zone() -> None:
    since = datetime(2025, 11, 22, 3, 7, tzinfo=UTC)

    with timezone.override(ZoneInfo("Asia/Kolkata")):
        hours = [tick.text for tick in ticks(since, since + timedelta(hours=6))]
        days = [tick.text for tick in ticks(since, since + timedelta(days=6))]

    assert {text[-2:] for text in hours} == {"00"}
    assert {text[-5:] for text in days} == {"00:00"}


def test_a_zone_changes_what_is_kept_of_a_page_for_another_viewer() -> None:
    with timezone.override(UTC):
        first = words.clock(SUBMITTED)
    with timezone.override(SHANGHAI):
        second = words.clock(SUBMITTED)

    assert (first, second) == ("23 Nov 20:18", "24 Nov 04:18")


def test_a_mail_uses_the_zone_of_its_reader() -> None:
    body = {"event": "job.failed", "at": SUBMITTED.isoformat(), "job": {"id": 1, "name": "a"}}

    _, there = letter(body, "en", "Asia/Shanghai")
    _, nowhere = letter(body, "browser", "browser")

    assert "at: 2025-11-24 04:18:00 CST" in there
    assert "at: 2025-11-23 20:18:00 UTC" in nowhere


def test_only_known_zones_have_a_zone() -> None:
    assert zone_named("Asia/Shanghai") == SHANGHAI
    assert zone_named("browser") is None
    assert zone_named("/etc/localtime") is None
