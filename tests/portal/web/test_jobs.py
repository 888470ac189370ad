"""The list of jobs: what it shows to whom, its filters, its parts, and stopping many."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.watching.models import IdleSpell
from tenants.roles import Role
from tests.factories.cluster import (
    job_document,
    make_job,
    make_shared_cluster,
)
from tests.factories.running import put_into, run_attempt
from tests.factories.tenants import make_user
from tests.support.cluster_pages import markup_of, sign_in, words_of
from workers.models import GoodputSample

pytestmark = pytest.mark.django_db
HTMX: dict[str, Any] = {"headers": {"HX-Request": "true"}}
HOSTILE = "<img src=x onerror=alert(1)> \"q\" 'a' {{ x }} 名前"


@pytest.fixture
def nodes() -> list[Node]:
    """A cluster of two tenants: vision (alice, victor looks on) and language (bob)."""
    return make_shared_cluster(alice=Role.MEMBER, lena=Role.LEAD, victor=Role.VIEWER)


@pytest.fixture
def alice(client: Client, nodes: list[Node]) -> Client:
    return sign_in(client, "alice")


def shown(client: Client, query: str = "") -> list[int]:
    """The ids of the rows, in the order of the page."""
    text = client.get(f"/jobs/{query}").content.decode()
    return [int(key) for key in re.findall(r'<tr data-key="(\d+)"', text)]


def test_whoever_is_not_signed_in_is_led_to_the_sign_in_page(client: Client) -> None:
    assert client.get("/jobs/?state=live").headers["Location"].startswith("/login/?next=/jobs/")


def test_a_part_for_a_lost_session_is_refused_so_that_the_page_can_reload(client: Client) -> None:
    assert client.get("/jobs/", **HTMX).status_code == 401


def test_an_empty_list_is_left_as_it_is_until_there_is_a_job(alice: Client) -> None:
    asked: dict[str, Any] = {"headers": {"HX-Request": "true", "HX-Target": "main"}}
    assert 'hx-target="#main"' in alice.get("/jobs/?mine=1").content.decode()

    assert alice.get("/jobs/?mine=1", **asked).status_code == 204
    job = make_job()
    text = alice.get("/jobs/?mine=1", **asked).content.decode()

    assert '<main class="content" id="main"' in text
    assert f'data-key="{job.pk}"' in text


def test_one_sees_the_jobs_of_ones_own_tenant_newest_first(alice: Client) -> None:
    first, second = make_job(), make_job("lena")
    make_job("bob", job_document(virtual_cluster="language"))

    assert shown(alice) == [second.pk, first.pk]


def test_filters_of_the_address_narrow_the_list(alice: Client) -> None:
    now = datetime.now(UTC)
    waits = make_job(labels={"team": "blue"})
    runs = put_into(make_job("lena", name="other"), "running", now=now)
    failed = put_into(make_job(), "failed", now=now, failure_class="user", exit_code=3)

    assert shown(alice, "?state=live") == [runs.pk, waits.pk]
    assert shown(alice, "?state=failed,running") == [failed.pk, runs.pk]
    assert shown(alice, "?state=ended") == [failed.pk]
    assert shown(alice, "?mine=1") == [failed.pk, waits.pk]
    assert shown(alice, "?user=lena") == [runs.pk]
    assert shown(alice, "?q=team%3Dblue") == [waits.pk]
    assert shown(alice, "?virtual_cluster=nowhere") == []
    assert shown(alice, "?q=%00") == []


def test_chips_and_tabs_report_how_many_and_keep_the_other_filters(alice: Client) -> None:
    make_job()
    make_job("lena")

    text = markup_of(alice.get("/jobs/?mine=1").content.decode())

    assert re.search(r'href="\?state=live&amp;mine=1">Active<span class="n">1</span>', text)
    assert re.search(r'class="chip on" href="\?">|class="chip on" href="\?"', text)
    of_one = alice.get("/jobs/?user=alice").content.decode()
    assert 'aria-label="Remove the filter user alice"' in of_one


def test_a_filter_that_makes_no_sense_is_an_error_in_the_page_with_a_way_out(
    alice: Client,
) -> None:
    make_job()

    for query in ("?state=nonsense", "?cursor=nonsense", f"?q={'x' * 300}"):
        response = alice.get(f"/jobs/{query}")
        assert response.status_code == 400
        assert "Show all jobs" in response.content.decode()


def test_names_from_strangers_are_shown_as_they_were_written_and_do_nothing(
    alice: Client,
) -> None:
    make_job(name=HOSTILE[:63])

    text = alice.get("/jobs/").content.decode()

    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt; &quot;q&quot; &#x27;a&#x27; {{ x }} 名前" in text


def test_a_queued_job_shows_the_reason_it_waits_and_a_running_one_what_it_achieves(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    waits = make_job()
    Job.objects.unscoped().filter(pk=waits.pk).update(
        reason_code="vc-guarantee-in-use", reason_text="vision-a's 8 devices are in use."
    )
    runs = put_into(make_job(), "running", now=now)
    attempt = run_attempt(runs, nodes[0], now=now)
    GoodputSample.objects.create(
        job=runs, attempt=attempt, at=now, seconds=5, step=7, steps=1, samples=5,
        throughput=1400.0, goodput=1180.4, devices=1,
    )  # fmt: skip

    text = alice.get("/jobs/").content.decode()

    assert "vision-a&#x27;s 8 devices are in use." in text
    assert '<span class="code">vc-guarantee-in-use</span>' in text
    assert '<b class="m">1,180</b>' in text


def test_a_swap_gets_only_the_rows(alice: Client) -> None:
    job = make_job()

    text = alice.get("/jobs/", **HTMX).content.decode().strip()

    assert text.startswith("<tbody data-rows data-keyed")
    assert text.endswith("</tbody>")
    assert f'data-key="{job.pk}"' in text
    assert 'data-topic="overview"' in text


def test_the_rows_of_one_virtual_cluster_follow_its_queue(alice: Client) -> None:
    make_job()

    text = alice.get("/jobs/?virtual_cluster=vision-a").content.decode()

    assert 'data-topic="queue:vision-a"' in text


def test_pages_follow_each_other_without_a_gap(alice: Client) -> None:
    made = [make_job().pk for _ in range(53)]

    first = alice.get("/jobs/").content.decode()
    following = re.search(r'href="(\?cursor=[^"]+)"', first)

    assert following
    assert shown(alice) + shown(alice, following[1]) == made[::-1]


def test_an_empty_list_teaches_the_next_step(alice: Client) -> None:
    text = alice.get("/jobs/").content.decode()

    assert "No jobs yet" in text
    assert "./tessera submit -f --vc vision-a --name hello" in text
    assert "/submit/?template=hello" in text


def test_without_a_tenant_the_empty_list_says_whom_to_ask(client: Client) -> None:
    make_user("nobody")

    text = sign_in(client, "nobody").get("/jobs/").content.decode()

    assert "A tenant lead can add you to a tenant" in text


def test_several_jobs_are_stopped_at_once(alice: Client) -> None:
    jobs = [make_job(), make_job()]
    kept = make_job()

    response = alice.post(
        "/jobs/act/",
        {"act": "stop", "selected": [job.pk for job in jobs], "next": "/jobs/?mine=1"},
    )

    assert "Stop: 2 jobs of 2" in response.content.decode()
    assert 'href="/jobs/?mine=1"' in response.content.decode()
    states = dict(Job.objects.unscoped().values_list("id", "state"))
    assert states == {jobs[0].pk: "stopped", jobs[1].pk: "stopped", kept.pk: "queued"}


def test_the_job_of_a_row_is_stopped_and_the_list_shown_again(alice: Client) -> None:
    job, kept = make_job(), make_job()

    response = alice.post(
        "/jobs/stop/",
        {"only": job.pk, "selected": [kept.pk], "next": "/jobs/?mine=1"},
        follow=True,
    )

    assert response.redirect_chain[-1][0] == "/jobs/?mine=1"
    assert f"Job {job.pk}: stopped." in response.content.decode()
    states = dict(Job.objects.unscoped().values_list("id", "state"))
    assert states == {job.pk: "stopped", kept.pk: "queued"}


@pytest.mark.parametrize(("who", "status"), [("victor", 403), ("bob", 404)])
def test_somebody_who_may_not_stop_a_job_stops_nothing(
    client: Client, nodes: list[Node], who: str, status: int
) -> None:
    job = make_job()

    one = sign_in(client, who).post("/jobs/stop/", {"only": job.pk})
    many = client.post("/jobs/act/", {"act": "stop", "selected": [job.pk]})

    assert one.status_code == status
    assert "Stop: 0 jobs of 1" in many.content.decode()
    job.refresh_from_db()
    assert job.state == "queued"


def test_the_way_back_never_leads_out_of_the_portal(alice: Client) -> None:
    job = make_job()
    for wanted in ("//evil.example/", "https://evil.example/", "javascript:alert(1)"):
        response = alice.post("/jobs/stop/", {"only": job.pk, "next": wanted})
        assert response.headers["Location"] == "/jobs/"


def test_a_viewer_has_nothing_to_select_and_nothing_to_stop(
    client: Client, nodes: list[Node]
) -> None:
    make_job()

    text = sign_in(client, "victor").get("/jobs/").content.decode()

    assert 'name="selected"' not in text
    assert "Edit and resubmit" not in text


def test_jobs_that_have_ended_can_be_picked_to_be_cloned(alice: Client) -> None:
    over = put_into(make_job(), "succeeded", now=datetime.now(UTC))

    text = alice.get("/jobs/?state=ended").content.decode()
    alice.post("/jobs/act/", {"selected": [over.pk], "act": "clone"})

    assert f'name="selected" value="{over.pk}"' in text
    copy = Job.objects.unscoped().exclude(pk=over.pk).get()
    assert (copy.name, copy.state) == (over.name, "queued")


def test_each_row_says_whether_its_job_can_be_stopped(client: Client, nodes: list[Node]) -> None:
    ours = make_job()
    over = put_into(make_job(), "succeeded", now=datetime.now(UTC))

    def stops() -> dict[str, str]:
        text = client.get("/jobs/").content.decode()
        return dict(re.findall(r'<tr data-key="(\d+)"[^>]* data-stop="([a-z]+)"', text))

    sign_in(client, "alice")
    assert stops() == {str(ours.pk): "yes", str(over.pk): "ended"}
    sign_in(client, "victor")
    assert stops() == {str(ours.pk): "refused", str(over.pk): "ended"}


def test_a_running_job_whose_devices_idle_is_marked(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    attempt = run_attempt(job, nodes[0], now=now)
    since = now - timedelta(minutes=40)
    IdleSpell.objects.create(job=job, attempt=attempt, since=since, until=now)

    text = alice.get("/jobs/").content.decode()

    assert "All devices idle" in text


def test_a_search_finds_without_counting_and_a_person_is_found_in_any_case(
    alice: Client,
) -> None:
    job = make_job()

    searched = alice.get(f"/jobs/?q={job.name}").content.decode()
    named = alice.get("/jobs/?user=ALICE").content.decode()

    for text in (searched, named):
        assert f'data-key="{job.pk}"' in text
    assert 'All <span class="n">' not in searched
    assert 'All <span class="n">1</span>' in named
    assert f'data-key="{job.pk}"' not in alice.get("/jobs/?user=nobody").content.decode()


def test_the_number_of_queries_does_not_grow_with_the_jobs(
    alice: Client, nodes: list[Node], django_assert_num_queries: object
) -> None:
    now = datetime.now(UTC)
    Round.objects.create(
        number=1, started_at=now, committed_at=now, duration_ms=5, policies=["fifo"],
        topology_version=1,
    )  # fmt: skip
    for _ in range(20):
        put_into(make_job(), "running", now=now)
        run_attempt(put_into(make_job(), "succeeded", now=now), nodes[0], now=now, ended=True)

    alice.get("/jobs/")  # what is announced to all is read once for a while
    with django_assert_num_queries(14):  # type: ignore[operator]
        alice.get("/jobs/")
    with django_assert_num_queries(6):  # type: ignore[operator]
        alice.get("/jobs/", **HTMX)
    with django_assert_num_queries(6):  # type: ignore[operator]
        assert 'data-key="' in alice.get("/jobs/", {"q": "hell"}, **HTMX).content.decode()
    with django_assert_num_queries(4):  # type: ignore[operator]
        alice.get("/jobs/", {"q": "none-such"}, **HTMX)


def _widen(*jobs: Job) -> None:
    """Give each job 1, 2, 4 … devices."""
    for place, job in enumerate(jobs):
        Job.objects.unscoped().filter(pk=job.pk).update(devices=2**place)


def test_an_order_in_the_address_sorts_the_list_and_stays_in_every_link(alice: Client) -> None:
    jobs = [make_job(), make_job("lena"), make_job()]
    _widen(*reversed(jobs))
    make_job("bob", job_document(virtual_cluster="language"))

    assert shown(alice, "?order=devices") == [job.pk for job in jobs]
    assert shown(alice, "?order=oldest") == [job.pk for job in jobs]
    assert shown(alice, "?order=oldest&state=queued") == [job.pk for job in jobs]
    assert shown(alice, "?order=nonsense") == [job.pk for job in reversed(jobs)]
    text = markup_of(alice.get("/jobs/?order=devices&mine=1").content.decode())
    assert 'href="?state=live&amp;mine=1&amp;order=devices"' in text
    assert '<input type="hidden" name="order" value="devices">' in text
    assert re.search(
        r'<th scope="col" class="" aria-sort="descending"><a [^>]*order=devices', text
    )
    assert "This order sorts the newest" not in text


def test_a_second_click_on_submitted_reverses_the_order(alice: Client) -> None:
    make_job()

    def link(query: str) -> str:
        text = markup_of(alice.get(f"/jobs/{query}").content.decode())
        found = re.search(r'<th [^>]*late"[^>]*><a href="([^"]*)"', text)
        assert found
        return found[1]

    assert link("") == "?order=newest"
    assert link("?order=newest") == "?order=oldest"
    assert link("?order=oldest") == "?order=newest"


def test_an_order_of_the_newest_jobs_only_is_named_below_the_list(
    alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.web.jobs.SORTED_JOBS", 1)
    make_job()
    make_job()

    sentence = "This order sorts the newest 1 jobs of this list."
    assert sentence in markup_of(alice.get("/jobs/?order=devices").content.decode())
    assert sentence not in markup_of(alice.get("/jobs/?order=oldest").content.decode())


def test_columns_of_the_address_are_shown_and_remembered_in_this_browser(alice: Client) -> None:
    job = make_job(priority="crit")

    def heads(query: str = "") -> list[str]:
        text = markup_of(alice.get(f"/jobs/{query}").content.decode())
        head = text[text.index("<thead>") : text.index("</thead>")]
        return re.findall(r"(Submitted|Started|Ended|Time|Device-hours|Attempts|Priority)", head)

    assert heads() == ["Submitted", "Time", "Device-hours"]
    assert heads("?columns=priority,ended,nonsense") == ["Ended", "Priority"]
    assert f">{job.priority}</td>" in markup_of(alice.get("/jobs/").content.decode())
    assert heads("?columns=nonsense") == ["Ended", "Priority"]
    assert heads("?columns=none") == []
    assert heads() == []
    assert heads("?columns=time") == ["Time"]


@pytest.mark.parametrize("text", ["", "x" * 5000, "time,<script>", "none,time", "\x00", "名"])
def test_hostile_columns_are_ignored(alice: Client, text: str) -> None:
    make_job()
    alice.cookies["tessera_job_columns"] = "%3Cscript%3E"

    response = alice.get("/jobs/", {"columns": text})

    assert response.status_code == 200
    assert "<script>" not in response.content.decode().split("<tbody")[1].split("</tbody>")[0]


def test_device_hours_of_running_jobs_are_listed(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now - timedelta(hours=2))
    run_attempt(job, nodes[0], now=now - timedelta(hours=2))

    text = words_of(alice.get("/jobs/?columns=hours").content.decode())

    assert "2.0 slot-hours" in text
