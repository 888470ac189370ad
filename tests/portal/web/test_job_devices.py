"""The devices of a job on its page and by REST: what was measured, and what is said without."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from portal.web.device_figures import utilisation_figure
from scheduling.clusters.models import Node
from scheduling.jobs.models import Job
from scheduling.runs.models import Member
from tests.factories.cluster import (
    job_document,
    make_job,
    make_shared_cluster,
)
from tests.factories.running import put_into, run_attempt
from tests.support.cluster_pages import sign_in
from workers.device_curves import DeviceCurve, DevicePoint, JobCurves, RankCurves
from workers.models import NodeTelemetry

pytestmark = pytest.mark.django_db
HTMX: dict[str, Any] = {"headers": {"HX-Request": "true"}}
MINUTE = timedelta(minutes=1)


@pytest.fixture
def nodes() -> list[Node]:
    return make_shared_cluster()


@pytest.fixture
def alice(client: Client, nodes: list[Node]) -> Client:
    return sign_in(client, "alice")


AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def device(index: int, busy: float) -> DeviceCurve:
    return DeviceCurve(
        node_id=1,
        node="node-1",
        index=index,
        device_type="a",
        is_gpu=True,
        memory_bytes=None,
        points=(DevicePoint(at=AT, utilisation=busy, memory_bytes=None),),
    )


def running(node: Node, *, minutes: int = 30, state: str = "running", ranks: int = 1) -> Job:
    now = datetime.now(UTC)
    job = put_into(make_job(), state, now=now)
    attempt = run_attempt(job, node, now=now, ended=state != "running")
    for rank in range(1, ranks):
        Member.objects.create(
            attempt=attempt, node=node, role="worker", rank=rank, node_rank=rank,
            devices=[1], step="running", step_since=now,
        )  # fmt: skip
    Member.objects.filter(attempt=attempt).update(started_at=now - minutes * MINUTE)
    return job


def told(node: Node, *busy: float | None) -> None:
    """One minute after the other, the last one the newest that is complete."""
    last = datetime.now(UTC).replace(second=0, microsecond=0) - 2 * MINUTE
    for back, value in enumerate(reversed(busy)):
        NodeTelemetry.objects.create(
            node=node, at=last - back * MINUTE, utilisation=[value], memory_bytes=[3 << 30]
        )


def test_the_page_of_a_job_fetches_its_devices_after_itself(
    alice: Client, nodes: list[Node]
) -> None:
    job, waiting = running(nodes[0]), make_job()

    page = alice.get(f"/jobs/{job.pk}/").content.decode()
    without = alice.get(f"/jobs/{waiting.pk}/").content.decode()

    assert f'hx-get="/jobs/{job.pk}/devices/" hx-trigger="load"' in page
    assert f"/jobs/{waiting.pk}/devices/" not in without


def test_a_job_that_begins_to_run_under_an_open_page_brings_the_place_of_its_devices(
    alice: Client, nodes: list[Node]
) -> None:
    job = running(nodes[0])

    first = alice.get(f"/jobs/{job.pk}/", {"devices": "wanted"}, **HTMX).content.decode()
    again = alice.get(f"/jobs/{job.pk}/", {"devices": ""}, **HTMX).content.decode()

    assert 'id="job-devices" hx-swap-oob="true"' in first
    assert f"/jobs/{job.pk}/devices/" in first
    assert "job-devices" not in again


def test_the_devices_of_a_running_job_are_drawn_and_looked_at_again(
    alice: Client, nodes: list[Node]
) -> None:
    job = running(nodes[0])
    told(nodes[0], 0.2, 0.4, 0.9)

    part = alice.get(f"/jobs/{job.pk}/devices/", **HTMX).content.decode().replace("\xa0", " ")

    assert 'hx-trigger="every 30s"' in part
    assert 'aria-label="Utilisation: 90 %, on average 50 %"' in part
    assert "at most 3.2 GB" in part
    assert part.count("<polyline") == 2
    assert "each point is the mean of a minute" in part


def test_an_ended_job_keeps_its_charts_and_is_not_looked_at_again(
    alice: Client, nodes: list[Node]
) -> None:
    job = running(nodes[0], state="succeeded")
    told(nodes[0], 0.2, 0.4)

    part = alice.get(f"/jobs/{job.pk}/devices/", **HTMX).content.decode()

    assert "<polyline" in part
    assert "every 30s" not in part


@pytest.mark.parametrize(
    ("state", "summary"),
    [
        ("running", "Device metrics appear after about 1"),
        ("failed", "The nodes reported no metrics for these devices"),
    ],
)
def test_without_a_measurement_the_page_says_so(
    alice: Client, nodes: list[Node], state: str, summary: str
) -> None:
    job = running(nodes[0], state=state)
    told(nodes[1], 0.5)

    part = alice.get(f"/jobs/{job.pk}/devices/", **HTMX).content.decode()

    assert summary in part
    assert "<svg width" not in part


def test_a_device_that_tells_no_load_shows_its_memory(alice: Client, nodes: list[Node]) -> None:
    job = running(nodes[0])
    told(nodes[0], None, None)

    part = alice.get(f"/jobs/{job.pk}/devices/", **HTMX).content.decode()

    assert "not measured" in part
    assert part.count("<polyline") == 1


def test_of_many_ranks_eight_are_shown_and_the_others_are_led_to(
    alice: Client, nodes: list[Node]
) -> None:
    job = running(nodes[0], ranks=11)
    told(nodes[0], 0.5, 0.5)

    first = alice.get(f"/jobs/{job.pk}/devices/", **HTMX).content.decode()
    rest = alice.get(f"/jobs/{job.pk}/devices/?first=8", **HTMX).content.decode()
    rest = rest.replace("\xa0", " ")

    assert "3 more" in first.replace("\xa0", " ")
    assert "worker 8" not in first
    assert "9 – 11 of 11 ranks" in rest
    assert f'hx-get="/jobs/{job.pk}/devices/?first=8" hx-trigger="every 30s"' in rest
    assert alice.get(f"/jobs/{job.pk}/devices/?first=x", **HTMX).status_code == 200


def test_rest_tells_the_same_rank_by_rank(alice: Client, nodes: list[Node]) -> None:
    job = running(nodes[0], ranks=3)
    told(nodes[0], 0.25, 0.75)

    found = alice.get(f"/api/v1/jobs/{job.pk}/telemetry/", {"ranks": 1}).json()
    rest = alice.get(f"/api/v1/jobs/{job.pk}/telemetry/", {"first": found["next_first"]}).json()

    (rank,) = found["results"]
    assert (rank["role"], rank["rank"], found["ranks"]) == ("worker", 0, 3)
    assert [one["utilisation"] for one in rank["devices"][0]["points"]] == [0.25, 0.75]
    assert rank["devices"][0]["node"] == nodes[0].name
    assert [one["rank"] for one in rest["results"]] == [1, 2]
    assert rest["next_first"] is None
    assert alice.get(f"/api/v1/jobs/{job.pk}/telemetry/", {"ranks": 65}).status_code == 400


def test_the_devices_of_a_job_of_another_tenant_are_not_there(
    alice: Client, nodes: list[Node]
) -> None:
    theirs = make_job("bob", job_document(virtual_cluster="language"))

    assert alice.get(f"/jobs/{theirs.pk}/devices/").status_code == 404
    assert alice.get(f"/api/v1/jobs/{theirs.pk}/telemetry/").status_code == 404


def figure(client: Client, job: Job, chart: str = "utilisation") -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/jobs/{job.pk}/devices/{chart}.json").json()
    return found


def test_charts_have_a_line_for_each_device_and_the_memory_of_a_device(
    alice: Client, nodes: list[Node]
) -> None:
    job = running(nodes[0])
    nodes[0].devices.update(memory_bytes=80 * 10**9)
    told(nodes[0], 0.2, None, None, None, 0.4)

    busy, memory = figure(alice, job), figure(alice, job, "memory")

    (line,) = busy["data"]
    assert line["name"] == f"worker 0, {nodes[0].name}/0"
    assert line["y"] == [20.0, None, 40.0]  # the gap is not bridged
    assert busy["layout"]["yaxis"]["range"] == [0, 105]
    assert busy["summary"].replace("\xa0", " ") == "Utilisation now 40 %, on average 30 %."
    assert [trace["y"][0] for trace in memory["data"]] == [3.221, 80.0]
    page = alice.get(f"/jobs/{job.pk}/").content.decode()
    assert f'data-url="/jobs/{job.pk}/devices/memory.json"' in page


def test_many_devices_are_drawn_as_mean_and_range(alice: Client, nodes: list[Node]) -> None:
    rank = RankCurves(role="worker", rank=0, devices=tuple(device(n, n / 10) for n in range(9)))
    curves = JobCurves(since=AT, until=AT + MINUTE, total=1, ranks=(rank,))

    found = utilisation_figure(curves)

    assert [(one["name"], one["y"]) for one in found["data"]] == [
        ("highest", [80.0]),
        ("mean", [40.0]),
        ("lowest", [0.0]),
    ]


def test_the_file_has_the_values_of_the_range(alice: Client, nodes: list[Node]) -> None:
    job = running(nodes[0])
    told(nodes[0], 0.2, 0.4)
    last = NodeTelemetry.objects.latest("at").at
    address = f"/jobs/{job.pk}/devices/utilisation.json"

    text = alice.get(address, {"format": "csv", "since": last.isoformat()}).content.decode()

    assert text.splitlines()[1:] == [
        f"{last.isoformat()},worker,0,{nodes[0].name},0,0.4,{3 << 30}"
    ]
    assert alice.get(address, {"format": "xml"}).status_code == 400
    assert alice.get(f"/jobs/{job.pk}/devices/power.json").status_code == 404


def test_another_tenant_gets_no_chart_of_devices(
    alice: Client, nodes: list[Node], client: Client
) -> None:
    job = running(nodes[0])
    bob = sign_in(Client(), "bob")

    assert bob.get(f"/jobs/{job.pk}/devices/utilisation.json").status_code == 404
