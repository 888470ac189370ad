"""The page *Fleet history*, its figures and its REST twin."""

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.fleet_history import (
    FleetTotals,
    FreeTotals,
    NodeTotals,
    VcTotals,
    wait_bins,
)
from scheduling.usage.models import FleetInterval
from scheduling.usage.queries.fleet import SPANS, FleetRange
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of
from workers.models import NodeTelemetry
from workers.services.telemetry import floored
from workers.tasks import record_fleet

pytestmark = pytest.mark.django_db

CHARTS = ("nodes", "health", "waits", "shares", "free", "preemptions")


@pytest.fixture
def stage() -> Stage:
    """Two hours in which node-2 was down once, vision waited long, and language took devices."""
    made = make_stage(2)
    vision, language = made.vision_a.pk, made.language_a.pk
    for quarter in range(8):
        totals = FleetTotals(
            nodes={
                "node-1": NodeTotals(8.0, 16, 4, 16, 0),
                "node-2": NodeTotals(0.0, 0, 8, 16, 4 if quarter == 5 else 0),
            },
            virtual_clusters={
                vision: VcTotals(16, 4, 2, 0, 2, 8),
                language: VcTotals(8, 6, 0, 2, 0, 0),
            },
            waits={vision: wait_bins([600.0] * 9 + [7200.0]), language: wait_bins([2.0])},
            preemptions={(vision, language, "inter-vc"): 1, (language, 0, "drain"): 2},
            free=FreeTotals(2, 20.0, {1: 0.0, 8: 6.0}),
        )
        at = floored(timezone.now() - timedelta(minutes=15 * quarter), 900)
        FleetInterval.objects.create(
            span_seconds=900, at=at, until=at, samples=2, **totals.to_columns()
        )
    return made


def figure(client: Client, chart: str, **query: str) -> dict[str, Any]:
    response = client.get(f"/fleet/{chart}.json", query)
    assert response.status_code == 200, response.status_code
    found: dict[str, Any] = response.json()
    return found


def table(client: Client, **query: str) -> list[dict[str, str]]:
    response = client.get("/api/v1/fleet/", {"format": "csv", **query})
    assert response.status_code == 200
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_the_page_has_a_chart_of_each_kind_with_its_file(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    html = read(client, "/fleet/?range=24h&virtual_cluster=vision-a")

    for chart in CHARTS:
        assert f'data-url="/fleet/{chart}.json?range=24h' in html
    assert html.count('data-link="fleet"') == 5
    assert "part=waits&amp;range=24h&amp;format=csv&amp;virtual_cluster=vision-a" in html
    assert "Blank: no report" in words_of(html)
    read(client, "/fleet/?range=1h", status=400)
    read(client, "/fleet/?virtual_cluster=nothing", status=404)
    read(client, "/fleet/nothing.json", status=404)


def test_the_heat_map_leaves_cells_without_reports_blank(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    busy = figure(client, "nodes")
    held = figure(client, "nodes", measure="held")

    (heat,) = busy["data"]
    assert heat["y"] == ["node-1", "node-2"]
    assert heat["z"] == [[50.0] * 8, [None] * 8]
    assert held["data"][0]["z"] == [[25.0] * 8, [50.0] * 8]
    assert busy["table"]["rows"] == [
        ["node-1", *["50\N{NO-BREAK SPACE}%"] * 3],
        ["node-2", "–", "–", "–"],
    ]
    assert words_of(busy["summary"]) == "Mean utilisation 50 %; lowest: node-1 with 50 %."


def test_the_devices_of_a_node_come_from_its_telemetry(client: Client, stage: Stage) -> None:
    sign_in(client, "root")
    node = stage.nodes[0]
    at = floored(timezone.now(), 900) - timedelta(minutes=30)
    for minutes, span, shares in ((0, 600, [0.5, None]), (10, 60, [0.2, 1.0])):
        NodeTelemetry.objects.create(
            node=node, at=at + timedelta(minutes=minutes), span_seconds=span, utilisation=shares
        )

    (heat,) = figure(client, "nodes", node=node.name)["data"]

    assert heat["y"] == ["device 0", "device 1"]
    assert heat["z"] == [[pytest.approx((50 * 600 + 20 * 60) / 660, abs=0.06)], [100.0]]
    assert client.get("/fleet/nodes.json?node=nothing").status_code == 404


def test_waits_and_shares_are_those_of_the_chosen_virtual_cluster(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "root")

    waits = figure(client, "waits", virtual_cluster="vision-a")
    shares = figure(client, "shares", virtual_cluster="vision-a")

    p50, p90, p99, depth = waits["data"]
    assert p50["y"] == p90["y"] == [pytest.approx(10.0, rel=0.09)] * 8
    assert p99["y"] == [pytest.approx(120.0, rel=0.09)] * 8
    assert depth["y"] == [1.0] * 8
    assert waits["summary"].startswith("80 starts; highest p90 ")
    assert {trace["name"]: trace["y"][0] for trace in shares["data"]} == {
        "used within the guarantee": 2.0,
        "borrowed": 1.0,
        "guarantee": 8.0,
        "lent to others": 0.0,
    }
    together = figure(client, "shares")["data"]
    assert [trace["y"][0] for trace in together] == [5.0, 1.0, 12.0, 1.0]


def test_health_shows_only_nodes_that_were_not_ready(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    (down,) = figure(client, "health")["data"]

    assert (down["name"], down["y"], down["x"]) == ("Down", ["node-2"], [900_000])
    FleetInterval.objects.update(nodes=[])
    assert figure(client, "health")["summary"] == "All nodes were ready in this range."


@pytest.mark.parametrize("chart", CHARTS)
def test_members_see_nothing_of_other_tenants(client: Client, stage: Stage, chart: str) -> None:
    sign_in(client, "alice")

    body = str(figure(client, chart))

    assert "language" not in body
    assert client.get(f"/fleet/{chart}.json?virtual_cluster=language-a").status_code == (
        200 if chart == "nodes" else 404
    )
    if chart == "preemptions":
        assert "another tenant" in body
        assert figure(client, chart)["summary"].startswith("8 preemptions")


def test_the_twin_has_each_part_as_a_table(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    assert table(client, part="preemptions") == [
        {"preempted": "vision-a", "beneficiary": "language-a", "cause": "inter-vc",
         "preemptions": "8"},
        {"preempted": "language-a", "beneficiary": "", "cause": "drain", "preemptions": "16"},
    ]  # fmt: skip
    assert len(table(client, part="nodes")) == 16
    assert len(table(client, part="virtual_clusters", virtual_cluster="vision-a")) == 8
    assert table(client, part="free")[0]["stranded_8"] == "3.0"
    since = (timezone.now() - timedelta(minutes=40)).isoformat()
    assert len(table(client, part="waits", since=since)) in {2, 3}
    assert client.get("/api/v1/fleet/?part=jobs").status_code == 400
    sign_in(client, "alice")
    assert {row["virtual_cluster"] for row in table(client, part="virtual_clusters")} == {
        "vision-a"
    }
    assert client.get("/api/v1/fleet/?part=waits&virtual_cluster=language-a").status_code == 404
    assert Client().get("/api/v1/fleet/").status_code in {401, 403}


def test_each_range_reads_few_intervals_of_one_length(client: Client, stage: Stage) -> None:
    sign_in(client, "root")
    for wanted in FleetRange:
        length, span = SPANS[wanted]
        assert length / timedelta(seconds=span) <= 96
        with CaptureQueriesContext(
            connection,
        ) as queries:
            figure(client, "waits", range=wanted.value)
        asked = [one["sql"] for one in queries if "fleetinterval" in one["sql"]]
        assert len(asked) == 1
        assert '"nodes"' not in asked[0]


def test_the_task_records_the_newest_utilisation(client: Client, stage: Stage) -> None:
    FleetInterval.objects.all().delete()
    NodeTelemetry.objects.create(
        node=stage.nodes[0], at=timezone.now() - timedelta(seconds=40), utilisation=[0.5, 0.7]
    )

    record_fleet()

    row = FleetInterval.objects.get(span_seconds=900)
    names, busy, reports, *_sums = row.nodes
    assert (names[0], busy[0], reports[0]) == ("node-1", 1.2, 2)
    assert len(names) == Node.objects.count()


def test_before_the_first_sample_the_page_says_when_there_will_be_one(client: Client) -> None:
    make_stage(2)
    sign_in(client, "alice")

    assert "No samples in this range" in words_of(read(client, "/fleet/"))
