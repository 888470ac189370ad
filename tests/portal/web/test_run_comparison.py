"""The page that compares jobs, its curves, and ``GET /api/v1/jobs/compare/``."""

import json
import math
import re
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job
from scheduling.runs.models import Member
from tenants.roles import Role
from tests.factories.cluster import make_job, make_shared_cluster
from tests.factories.metric_points import add_values, member_of_job
from tests.factories.running import run_attempt
from tests.support.cluster_pages import sign_in
from workers.run_comparison import CommonAxis, RunClock

pytestmark = pytest.mark.django_db


@pytest.fixture
def jobs(db: None) -> list[Job]:
    make_shared_cluster(alice=Role.MEMBER)
    found = [
        make_job(name=f"train-{rate}", worker={"command": f"python train.py --lr {rate}"})
        for rate in ("0.1", "0.3")
    ]
    add_values(member_of_job(found[0]), [3.0, 1.0, 2.0])
    add_values(member_of_job(found[1]), [3.0, 0.5, math.nan, 1.5])
    add_values(member_of_job(found[1], attempt=2), [1.2], first=1)
    add_values(member_of_job(found[0]), [0.9], name="val/accuracy")
    return found


def address(jobs: list[Job], **more: str) -> str:
    query = "&".join(f"{name}={value}" for name, value in more.items())
    return f"/jobs/compare/?jobs={','.join(str(job.pk) for job in jobs)}&{query}"


def results_of(page: str) -> dict[str, list[str]]:
    rows = re.findall(r'<th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', page, re.DOTALL)
    return {
        label.strip(): [
            ("*" if "best" in name else "") + re.sub(r"<[^>]+>", "", cell).strip()
            for name, cell in re.findall(r'<td class="([^"]*)">(.*?)</td>', cells, re.DOTALL)
        ]
        for label, cells in rows
    }


def test_the_page_shows_results_and_fields_that_differ(jobs: list[Job]) -> None:
    page = sign_in(Client(), "alice").get(address(jobs)).content.decode()

    found = results_of(page)
    assert found["loss, last"] == ["2", "*1.2"]
    assert found["loss, best"] == ["*1", "1.2"]
    assert found["val/accuracy, best"] == ["0.9", "–"]
    assert found["--lr"] == ["0.1", "0.3"]
    assert "roles.worker.devices" not in found
    assert "roles.worker.devices" in results_of(
        sign_in(Client(), "alice").get(address(jobs, fields="all")).content.decode()
    )


def test_curves_of_all_jobs_on_one_axis(jobs: list[Job]) -> None:
    found = sign_in(Client(), "alice").get(
        f"/jobs/compare/curves.json?jobs={jobs[1].pk},{jobs[0].pk}&name=loss"
    )
    traces = found.json()["data"]

    assert [(one["metric"], one["superseded"], one["colour"]) for one in traces] == [
        (str(jobs[1].pk), True, "c1"),
        (str(jobs[1].pk), False, "c1"),
        (str(jobs[0].pk), False, "c2"),
    ]
    assert traces[2]["x"] == [0, 1, 2]
    assert traces[2]["y"] == [3.0, 1.0, 2.0]


def test_the_curves_as_csv_have_a_row_for_each_point(jobs: list[Job]) -> None:
    address = f"/jobs/compare/curves.json?jobs={jobs[0].pk}&name=loss&format=csv"
    lines = sign_in(Client(), "alice").get(address).content.decode().split("\r\n")

    assert lines[0].startswith("job,step,name,role,rank")
    assert [line.split(",")[:3] for line in lines[1:4]] == [
        [str(jobs[0].pk), str(step), "loss"] for step in range(3)
    ]


def test_hours_are_counted_from_the_first_start(jobs: list[Job]) -> None:
    run_attempt(jobs[0], Node.objects.get(name="node-1"), now=timezone.now())
    start = timezone.now() - timedelta(hours=2)
    Member.objects.filter(attempt__job=jobs[0]).update(started_at=start)
    found = sign_in(Client(), "alice").get(
        f"/jobs/compare/curves.json?jobs={jobs[0].pk}&name=loss&x=hours"
    )

    xs = found.json()["data"][0]["x"]
    assert xs == sorted(xs)
    assert all(1.9 < x < 2.1 for x in xs)


def test_device_hours_count_the_devices_of_all_members() -> None:
    clock = RunClock(
        0.0, np.array([(0, 3600, 2), (0, 3600, 2), (7200, 10800, 1)], dtype=np.float64)
    )
    times = [0.0, 1800.0, 3600.0, 7200.0, 10800.0, 1e9]

    found = clock.device_hours(np.array(times)).tolist()

    assert found == pytest.approx([0, 2, 4, 4, 5, 5])
    assert clock.time_at(CommonAxis.DEVICE_HOURS, 0.0) == 0.0
    assert clock.time_at(CommonAxis.DEVICE_HOURS, 2.0) == pytest.approx(1800.0)
    assert clock.time_at(CommonAxis.DEVICE_HOURS, 4.5) == pytest.approx(9000.0)
    assert clock.time_at(CommonAxis.DEVICE_HOURS, 6.0) == math.inf


def test_another_tenant_gets_404_for_each_job(jobs: list[Job]) -> None:
    client = sign_in(Client(), "bob")

    for path in (
        address(jobs),
        f"/jobs/compare/curves.json?jobs={jobs[0].pk}&name=loss",
        f"/api/v1/jobs/compare/?jobs={jobs[0].pk}",
    ):
        assert client.get(path).status_code == 404, path


@pytest.mark.parametrize(
    "given", ["1,x", "-1", "9" * 30, ",".join(str(one) for one in range(1, 10)), "0", "²"]
)
def test_wrong_ids_are_refused(jobs: list[Job], given: str) -> None:
    client = sign_in(Client(), "alice")
    for path in ("/jobs/compare/", "/api/v1/jobs/compare/"):
        assert client.get(path, {"jobs": given}).status_code in {400, 404}


def test_a_job_can_be_added_and_the_list_leads_to_the_page(jobs: list[Job]) -> None:
    client = sign_in(Client(), "alice")
    page = client.get(address(jobs[:1], add=str(jobs[1].pk))).content.decode()
    assert "Compare 2 jobs" in page
    assert "No jobs selected" in client.get("/jobs/compare/").content.decode()

    sent: dict[str, Any] = {"act": "compare", "selected": [job.pk for job in jobs]}
    found = client.post("/jobs/act/", sent)

    assert found.status_code == 302
    assert found.headers["Location"] == f"/jobs/compare/?jobs={jobs[0].pk}%2C{jobs[1].pk}"


def test_rest_gives_results_goals_and_fields(jobs: list[Job]) -> None:
    client: Client = sign_in(Client(), "alice")
    found = json.loads(
        client.get("/api/v1/jobs/compare/", {"jobs": [job.pk for job in jobs]}).content
    )

    assert [job["metrics"]["loss"] for job in found["jobs"]] == [
        {"last": 2.0, "best": 1.0},
        {"last": 1.2, "best": 1.2},
    ]
    assert found["goals"] == {"loss": "min", "val/accuracy": "max"}
    assert found["fields"][0] == {"path": "--lr", "values": ["0.1", "0.3"], "differs": True}
