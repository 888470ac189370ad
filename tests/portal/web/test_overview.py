"""The overview: numbers, map, bars, queue, live parts, and the chart of the last day."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import Device, Node
from scheduling.jobs.models import Job
from tests.factories.cluster import make_job
from tests.factories.tenants import make_user
from tests.support.cluster_pages import HTMX, Stage, make_stage, read, sign_in, words_of
from workers.models import GoodputSample, NodeTelemetry

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    return make_stage()


def test_it_opens_with_the_numbers(client: Client, stage: Stage) -> None:
    said = words_of(read(sign_in(client, "alice"), "/cluster/"))

    assert "Devices in use 6 of 24 healthy 24 total" in said
    assert "Jobs 1 running 1 queued" in said
    assert "3 nodes, 24 devices, 1 virtual cluster" in said


def test_who_may_add_the_first_node_gets_there_by_one_click(client: Client, stage: Stage) -> None:
    Node.objects.update(removed_at=timezone.now())

    assert 'href="/nodes/new/"' in read(sign_in(client, "root"), "/cluster/")
    assert 'href="/nodes/new/"' not in read(sign_in(client, "alice"), "/cluster/")


def test_another_tenants_devices_show_no_more_than_that(client: Client, stage: Stage) -> None:
    html = read(sign_in(client, "alice"), "/cluster/?colour=tenant")

    assert "node-2, 4 devices: a job of another tenant" in html
    assert "train-a" in html
    assert "secret-name" not in html


def test_a_cluster_admin_sees_whose_job_it_is(client: Client, stage: Stage) -> None:
    assert "secret-name" in read(sign_in(client, "root"), "/cluster/")


def test_the_table_reports_what_the_map_draws(client: Client, stage: Stage) -> None:
    html = read(sign_in(client, "alice"), "/cluster/?view=table")

    assert "<caption" in html
    assert "Devices by cell" in html
    assert "another tenant" not in words_of(html).split("Virtual clusters")[0].split("Tenant")[0]


def test_an_unknown_colour_or_view_falls_back(client: Client, stage: Stage) -> None:
    html = read(sign_in(client, "alice"), "/cluster/?colour=<b>&view=nope")

    assert 'data-colour="tenant"' in html
    assert "<b>&view" not in html


def test_the_queue_shows_the_reason_and_what_would_help(client: Client, stage: Stage) -> None:
    Job.objects.unscoped().filter(pk=stage.waiting.pk).update(
        reason_code="user-cap-reached",
        reason_text="alice uses 2 of at most 2 devices; this job needs 2 more.",
        reason={"blocked_by": [], "unblock": ["ask for a higher limit."]},
    )

    said = words_of(read(sign_in(client, "alice"), "/cluster/"))

    assert "alice uses 2 of at most 2 devices; this job needs 2 more. user-cap-reached" in said
    assert "Ask for a higher limit" in said
    assert "no estimate yet" in said


def test_held_and_new_jobs_have_no_place_and_held_ones_push_nobody_off_the_queue(
    client: Client, stage: Stage
) -> None:
    for number in range(12):
        make_job(name=f"later-{number}", held=True, priority="prod")

    html = read(sign_in(client, "alice"), "/cluster/")

    names = re.findall(r'<tr data-key="\d+"[^>]* data-name="([^"]+)"', html)
    assert names == [stage.waiting.name, *(f"later-{number}" for number in range(9))]
    assert re.findall(r'<td class="num t3 off">(.)</td>', html) == [*"–" * 10]


def test_the_queue_is_filtered_by_reason(client: Client, stage: Stage) -> None:
    html = read(sign_in(client, "alice"), "/cluster/?reason=held")

    assert "No queued jobs have this reason" in html
    assert "waits-here" not in html


def test_parts_follow_the_address_of_the_page(client: Client, stage: Stage) -> None:
    here = {**HTMX, "HX-Current-URL": "http://testserver/?colour=job&view=table&reason=held"}
    sign_in(client, "alice")

    live = read(client, "/cluster/?part=live", **here)
    queue = read(client, "/cluster/?part=queue", **here)

    assert "<html" not in live + queue
    assert 'data-colour="job"' in live
    assert "Devices by cell" in live
    assert "No queued jobs have this reason" in queue
    assert 'hx-swap-oob="true"' in queue


def test_a_cluster_without_nodes_teaches_the_next_step(client: Client) -> None:
    make_user("root", is_cluster_admin=True)

    said = words_of(read(sign_in(client, "root"), "/cluster/"))

    assert "No nodes yet" in said
    assert "./tessera node add USER@HOST" in said
    assert "The queue is empty." in said


def test_fragmentation_is_named(client: Client, stage: Stage) -> None:
    Device.objects.filter(node=stage.nodes[2], index=7).update(healthy=False)

    said = words_of(read(sign_in(client, "alice"), "/cluster/"))

    assert "No a node is completely free" in said


def test_utilisation_is_of_the_devices_in_use(client: Client, stage: Stage) -> None:
    now = timezone.now()
    NodeTelemetry.objects.create(
        node=stage.nodes[0], at=now, utilisation=[0.5, 0.7, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    )

    said = words_of(read(sign_in(client, "alice"), "/cluster/"))

    assert "Utilisation (devices in use) 60 % reported by 2 devices" in said


def test_the_last_day_is_fetched_apart(client: Client, stage: Stage) -> None:
    now = timezone.now()
    NodeTelemetry.objects.create(
        node=stage.nodes[0], at=now - timedelta(hours=2), span_seconds=600, utilisation=[0.4, 0.6]
    )
    attempt = stage.running.attempts.get()
    GoodputSample.objects.create(
        attempt=attempt,
        job=stage.running,
        at=now - timedelta(minutes=30),
        seconds=10,
        step=1,
        steps=1,
        samples=10,
        throughput=1,
        efficiency=0.8,
        goodput=0.8,
        devices=2,
    )

    figure = sign_in(client, "alice").get("/overview/day/").json()

    lines = {line["name"]: line["y"] for line in figure["data"]}
    assert 50.0 in lines["utilisation"]
    assert 80.0 in lines["efficiency"]
    assert lines["in use"][-1] > 0
    assert "Utilisation 50" not in figure["summary"]
    assert "utilisation 50" in figure["summary"]


def test_without_any_data_the_chart_says_so(client: Client) -> None:
    make_user("root", is_cluster_admin=True)

    figure = sign_in(client, "root").get("/overview/day/").json()

    assert figure["data"] == []
    assert figure["summary"].startswith("No data yet")


def test_no_submit_button_for_those_who_may_not(client: Client, stage: Stage) -> None:
    assert "Submit a job" not in read(sign_in(client, "victor"), "/cluster/")


def test_a_cordoned_node_is_unavailable_and_not_unhealthy(client: Client, stage: Stage) -> None:
    node = stage.nodes[2]
    Node.objects.filter(pk=node.pk).update(state="cordoned")

    page = read(sign_in(client, "root"), "/cluster/")
    body = client.get("/api/v1/cluster/").json()

    assert "24 total, 8 cordoned" in words_of(page)
    assert "unavailable (cordoned)" in page
    assert "unhealthy" not in words_of(page).replace("unhealthy unavailable (cordoned)", "")
    assert (body["totals"]["healthy"], body["totals"]["cordoned"]) == (24, 8)
