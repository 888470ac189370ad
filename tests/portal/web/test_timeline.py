"""The page of the timeline and its REST twin: who sees what, and the span in the address."""

import re
from datetime import datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.utils import timezone

from portal.web.timeline_window import read_window
from scheduling.runs.models import Attempt, Lease
from scheduling.usage.queries.timeline import timeline
from tests.factories.running import run_attempt
from tests.factories.tenants import make_viewer
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    return make_stage()


def test_each_job_is_a_bar_on_its_node_with_its_words(client: Client, stage: Stage) -> None:
    text = read(sign_in(client, "alice"), "/timeline/")

    assert (
        f'href="/jobs/{stage.running.pk}/" aria-label="{stage.running.pk} train-a, alice' in text
    )
    assert text.count('class="fold"') == 3
    assert "6 of 24 devices" in words_of(text)


def test_of_another_tenants_job_only_the_words_another_tenant_are_shown(
    client: Client, stage: Stage
) -> None:
    for address in ("/timeline/", "/timeline/?view=table", "/api/v1/timeline/"):
        text = read(sign_in(client, "alice"), address)

        assert "secret-name" not in text
        assert not re.search(r"\bbob\b", text)
        assert "another tenant" in text
        assert f"/jobs/{stage.foreign.pk}/" not in text


def test_the_span_of_the_address_decides_what_is_shown(client: Client, stage: Stage) -> None:
    Attempt.objects.filter(job=stage.running).update(ended_at=timezone.now(), outcome="succeeded")
    sign_in(client, "root")

    past = read(client, "/timeline/?since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z")
    table = read(client, "/timeline/?span=1h&view=table")

    assert '<a class="run' not in past
    assert "In use at the end 0 of 24 devices" in words_of(past)
    assert "train-a" in table
    assert "Succeeded" in table


@pytest.mark.parametrize(
    ("minutes", "span"), [(0, "15m"), (13, "15m"), (14, "1h"), (56, "6h"), (60 * 24 * 3, "6h")]
)
def test_without_a_span_it_opens_on_what_there_is(minutes: int, span: str) -> None:
    now = timezone.now()

    window = read_window(QueryDict(), now, first=now - timedelta(minutes=minutes))

    assert window.span == span
    assert read_window(QueryDict("span=7d"), now, first=now).span == "7d"


def test_a_young_cluster_opens_on_its_first_minutes(client: Client, stage: Stage) -> None:
    now = timezone.now()
    sign_in(client, "root")
    Attempt.objects.update(created_at=now - timedelta(minutes=2))

    assert 'aria-current="true">15\u00a0min</a>' in read(client, "/timeline/")

    Attempt.objects.filter(pk=Attempt.objects.earliest("id").pk).update(
        created_at=now - timedelta(hours=30)
    )
    assert 'aria-current="true">6\u00a0h</a>' in read(client, "/timeline/")
    assert 'aria-current="true">1\u00a0d</a>' in read(client, "/timeline/?span=24h")


def test_a_span_that_is_none_is_refused_with_a_remedy(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    for query in (
        "since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z",
        "since=2025-01-01T00:00:00Z&until=2026-01-01T00:00:00Z",
        "since=yesterday",
    ):
        read(client, f"/timeline/?{query}", status=400)
        assert client.get(f"/api/v1/timeline/?{query}").status_code == 400


def test_a_node_opens_into_its_devices_and_the_address_keeps_it(
    client: Client, stage: Stage
) -> None:
    node = stage.nodes[0]
    text = read(sign_in(client, "root"), f"/timeline/?open={node.pk},x&q={node.name}")

    assert text.count('class="fold"') == 1
    assert f'aria-expanded="true" aria-label="Devices of {node.name}"' in text
    assert "lanes-names" in text


def test_the_twin_tells_the_same_runs(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    body = client.get("/api/v1/timeline/").json()

    runs = {run["job"]: run for run in body["runs"]}
    assert set(runs) == {stage.running.pk, stage.foreign.pk}
    assert runs[stage.running.pk]["devices"] == [0, 1]
    assert runs[stage.running.pk]["end"] is None
    assert body["complete_since"] is None


def test_a_run_that_ends_while_they_are_read_is_there_once(stage: Stage) -> None:
    now = timezone.now()
    reads: list[str] = []

    def end_it(execute: Any, sql: str, *rest: Any) -> Any:
        if 'FROM "scheduling_member"' in sql:
            reads.append(sql)
            if len(reads) == 2:
                Attempt.objects.filter(job=stage.running).update(ended_at=now)
        return execute(sql, *rest)

    with connection.execute_wrapper(end_it):
        found = timeline(make_viewer("root"), since=now - timedelta(hours=1), until=now)

    assert len(reads) == 2
    assert [run.end for run in found.runs if run.job_id == stage.running.pk] == [now]


def test_of_too_many_runs_the_newest_are_read_and_the_rest_is_owned_up_to(stage: Stage) -> None:
    now = timezone.now()
    ends = [
        run_attempt(stage.waiting, stage.nodes[2], now=now - timedelta(minutes=m), ended=True)
        for m in (9, 6, 3)
    ]

    found = timeline(make_viewer("root"), since=now - timedelta(hours=1), until=now, most=2)

    assert len([run for run in found.runs if run.end]) == 2
    assert found.complete_since == ends[0].ended_at


def test_what_was_in_use_when_a_past_span_ended_is_counted(client: Client, stage: Stage) -> None:
    now = timezone.now()
    Attempt.objects.update(created_at=now - timedelta(hours=3))
    Lease.objects.update(taken_at=now - timedelta(hours=3))
    ends = now - timedelta(hours=1)
    span = f"since={ends - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}&until={ends:%Y-%m-%dT%H:%M:%SZ}"

    said = words_of(read(sign_in(client, "root"), f"/timeline/?{span}"))

    assert "In use at the end 6 of 24 devices" in said


def test_a_zoom_leaves_the_present_where_it_stands(client: Client, stage: Stage) -> None:
    now = timezone.now()
    sign_in(client, "root")

    def zoomed(key: str, since: datetime, until: datetime) -> list[datetime]:
        span = urlencode({"since": since.isoformat(), "until": until.isoformat()})
        page = read(client, f"/timeline/?{span}")
        found = re.search(rf'href="([^"]*)" data-move="{re.escape(key)}"', page)
        assert found
        query = QueryDict(unescape(found[1]).partition("?")[2])
        return [datetime.fromisoformat(query[end]) for end in ("since", "until")]

    def is_near(found: datetime, wanted: datetime) -> bool:
        return abs(found - wanted) < timedelta(seconds=90)

    before, after = timedelta(minutes=90), timedelta(minutes=30)
    for key, factor in (("+", 0.5), ("-", 2)):
        since, until = zoomed(key, now - before, now + after)
        assert is_near(since, now - before * factor), key
        assert is_near(until, now + after * factor), key
    past = now - timedelta(days=2)
    since, until = zoomed("+", past, past + timedelta(hours=2))
    assert is_near(since, past + timedelta(minutes=30))
    assert is_near(until, past + timedelta(minutes=90))
