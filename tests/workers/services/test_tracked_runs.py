"""Parameters of MLflow runs: hostile lines, merged, bounded, visible to their tenant only."""

import json
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from tenants.roles import Role
from tests.factories.cluster import make_job, make_shared_cluster
from tests.factories.metric_points import add_values, member_of_job
from tests.support.cluster_pages import sign_in
from workers.metrics import tracked_runs_of
from workers.models import TrackedRun
from workers.services import tracked_runs
from workers.services.dispatch import MemberRef
from workers.services.reports import LONGEST_LINE
from workers.services.tracked_runs import TrackedChange, read_tracked_line, record_tracked
from workers.services.training_events import TrainingEvents

KEY = "0123456789abcdef" * 2


def line(**changes: Any) -> bytes:
    fields = {
        "event": "tracked-run",
        "run": KEY,
        "process": 0,
        "name": "first",
        "status": "running",
        "params": {"lr": "0.1"},
        "tags": {},
    }
    return json.dumps({**fields, **changes}).encode()


def change(**changes: Any) -> TrackedChange:
    found = read_tracked_line(line(**changes))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "raw",
    [
        b'"tracked-run"',
        b'["tracked-run"]',
        line(run="../etc"),
        line(run=7),
        line(process=-1),
        line(process=True),
        line(process=64),
        line(event="x"),
        line(name="x" * LONGEST_LINE),
    ],
)
def test_a_line_that_is_not_valid_has_no_change(raw: bytes) -> None:
    assert read_tracked_line(raw) is None


def test_texts_are_cut_and_without_control_characters() -> None:
    found = change(name=7, status="odd", params={"a\n": "v" * 900, "b": {"x": 1}}, tags=[1])

    assert (found.name, found.status, found.tags) == ("", "running", {})
    assert found.parameters == {"a ": "v" * tracked_runs.LONGEST_VALUE, "b": ""}


def test_changes_between_two_sums_are_merged_by_run() -> None:
    events = TrainingEvents()
    for params in ({"lr": "0.1"}, {"lr": "0.2", "depth": "4"}):
        events.read(line(params=params))
    for number in range(50):
        events.read(line(run=f"{number:032x}"))

    found = events.take_tracked()

    assert len(found) == tracked_runs.MOST_AT_ONCE
    assert found[0].parameters == {"lr": "0.2", "depth": "4"}
    assert events.take_tracked() == ()


@pytest.fixture
def rank(db: None) -> MemberRef:
    make_shared_cluster(alice=Role.MEMBER)
    return member_of_job(make_job("alice"))


def test_repeated_changes_have_no_effect_and_later_attempts_continue(rank: MemberRef) -> None:
    for _ in range(2):
        record_tracked(rank=rank, changes=[change(tags={"mlflow.user": "x", "team": "a"})])
    later = replace(rank, attempt_number=2)
    record_tracked(rank=later, changes=[change(params={"depth": "4"}, status="finished")])

    (row,) = tracked_runs_of(rank.job_id)
    assert (row.attempt, row.status, row.name) == (2, "finished", "first")
    assert (row.parameters, row.tags) == ({"depth": "4", "lr": "0.1"}, {"team": "a"})


def test_runs_and_parameters_of_a_job_are_bounded(rank: MemberRef) -> None:
    for number in range(tracked_runs.MOST_RUNS + 5):
        record_tracked(rank=rank, changes=[change(run=f"{number:032x}")])
    for part in range(3):
        params = {f"{part}-{number}": "v" for number in range(150)}
        record_tracked(rank=rank, changes=[change(run=f"{0:032x}", params=params)])

    assert TrackedRun.objects.count() == tracked_runs.MOST_RUNS
    row = TrackedRun.objects.get(key=f"{0:032x}")
    assert len(row.parameters) == tracked_runs.MOST_PARAMETERS


def test_another_tenant_sees_no_run(rank: MemberRef) -> None:
    record_tracked(rank=rank, changes=[change()])

    client = sign_in(Client(), "bob")
    assert client.get(f"/api/v1/jobs/{rank.job_id}/metrics/").status_code == 404
    assert client.get(f"/jobs/{rank.job_id}/").status_code == 404


def test_the_page_and_rest_show_parameters_as_text(rank: MemberRef) -> None:
    add_values(rank, [1.0, 0.5])
    record_tracked(rank=rank, changes=[change(params={"lr": "<script>1</script>"})])
    client = sign_in(Client(), "alice")

    page = client.get(f"/jobs/{rank.job_id}/").content.decode()
    found = client.get(f"/api/v1/jobs/{rank.job_id}/metrics/").json()["tracked_runs"]

    assert "MLflow runs" in page
    assert "&lt;script&gt;1&lt;/script&gt;" in page
    assert found[0]["parameters"] == {"lr": "<script>1</script>"}
    assert found[0]["key"] == KEY
