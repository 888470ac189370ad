"""The page *Sharing promise*, its file and its REST twin."""

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.core.promises.figures import figures
from scheduling.what_if.models import PromiseAudit
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db


def row(job: int, verdict: str, *causes: str, own: float = 25.0) -> dict[str, object]:
    return {
        "job": job,
        "eligible": (timezone.now() - timedelta(days=1)).timestamp(),
        "started": True,
        "own_wait_s": own,
        "private_wait_s": 0.0,
        "bound_s": 40.0,
        "denied_s": own if verdict == "violated" else 0.0,
        "verdict": verdict,
        "causes": list(causes),
    }


@pytest.fixture
def stage() -> Stage:
    made = make_stage(2)
    jobs = [
        row(made.running.pk, "kept"),
        row(made.waiting.pk, "violated", "denied", own=3600.0),
        row(9001, "exceeded", "hardware", "admin", own=500.0),
    ]
    returns = [{"job": made.running.pk, "devices": 4, "seconds": 20.0}]
    PromiseAudit.objects.create(
        virtual_cluster=made.vision_a,
        day=datetime.now(tz=UTC).date() - timedelta(days=1),
        audited_at=timezone.now(),
        result={
            "guaranteed_device_hours": 192.0,
            "used_device_hours": 48.0,
            **figures(jobs, returns),
            "returns": returns,
            "jobs": jobs,
        },
    )
    return made


def address(stage: Stage) -> str:
    return f"/virtual-clusters/{stage.vision_a.pk}/promises/"


def test_a_lead_sees_waits_use_returns_and_causes(client: Client, stage: Stage) -> None:
    sign_in(client, "lena")

    text = words_of(read(client, address(stage)))

    for part in (
        "1 of 3 jobs",
        "1 day audited",
        "a private cluster would have started these jobs",
        "25 %",
        "48.0 of 192 device-hours",
        "4 devices p90 within 20 s",
        "more unhealthy nodes than spare ones",
        "Violated Waited 1 h",
    ):
        assert part in text, part


def test_a_member_sees_only_their_own_jobs(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")

    text = words_of(read(client, address(stage)))

    assert "1 of 2 jobs" in text
    assert "Your own jobs only" in text
    assert "9001" not in text
    assert "device-hours" not in text
    body = client.get(f"/api/v1{address(stage)}").json()
    assert [job["job"] for job in body["jobs"]] == [stage.waiting.pk, stage.running.pk]
    assert (body["used_device_hours"], body["returned_devices"]) == (None, None)


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_members_of_other_tenants_do_not_find_it(
    client: Client, stage: Stage, prefix: str
) -> None:
    sign_in(client, "bob")

    assert client.get(prefix + address(stage)).status_code == 404


def test_file_and_twin_have_the_same_jobs(client: Client, stage: Stage) -> None:
    sign_in(client, "lena")

    rows = list(csv.DictReader(io.StringIO(read(client, f"{address(stage)}export.csv"))))
    twin = client.get(f"/api/v1{address(stage)}").json()
    again = client.get(f"/api/v1{address(stage)}?format=csv").content.decode()

    assert [int(one["job"]) for one in rows] == [job["job"] for job in twin["jobs"]]
    assert rows[1]["causes"] == "hardware admin"
    assert twin["verdicts"] == {"kept": 1, "exceeded": 1, "violated": 1}
    assert list(csv.DictReader(io.StringIO(again))) == rows
    api = f"/api/v1{address(stage)}"
    assert client.get(f"{api}?since=tomorrow").status_code == 400
    assert client.get(f"{api}?since=2025-01-01&until=2026-01-02").status_code == 200
    assert client.get(f"{api}?since=2025-01-01&until=2026-01-03").status_code == 400
    assert client.get(f"{api}?until=0001-01-01").status_code == 200


def test_without_audits_the_page_reports_when_there_will_be_some(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "root")

    text = words_of(read(client, f"/virtual-clusters/{stage.language_a.pk}/promises/?span=30d"))

    assert "No audited days Each day after midnight (UTC)" in text
