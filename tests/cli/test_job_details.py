"""``tessera status``, and the time zone of what commands print."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tessera.cli.slurm.words import clock, read_moment
from tests.support.prepared_portal import CommandLine, Portal


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def running(job: dict[str, Any]) -> dict[str, Any]:
    rank = {
        "role": "worker", "rank": 0, "node": "node-1", "devices": [0, 1], "step": "running",
        "isolation": "namespace", "network": "shared",
        "warnings": ["limits-not-enforced", "network-shared"],
    }  # fmt: skip
    other: dict[str, object] = {
        **rank,
        "rank": 1,
        "isolation": "user",
        "network": "own",
        "warnings": [],
    }
    return {
        **job, "state": "running", "tenant": "vision", "started_at": "2026-07-01T10:00:00Z",
        "reason": None, "placement": [rank, other],
    }  # fmt: skip


def test_status_shows_level_network_and_missing_protections_of_each_rank(
    tessera: CommandLine, portal: Portal, running: dict[str, Any]
) -> None:
    submitted = ["CPU and memory limits are not enforced on any node."]
    portal.answer("GET", "jobs/7/", {**running, "warnings": submitted})

    ran = tessera("status", "7")

    assert "not enforced on any node" in ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[0] == ["job", "7", "hello:", "running"]
    assert ["virtual", "cluster", "vision-a", "(vision)"] in lines
    assert ["worker", "0", "node-1", "0,1", "running", "namespace", "shared"] in lines
    assert ["worker", "1", "node-1", "0,1", "running", "user", "own"] in lines
    warnings = " ".join(ran.err.split())
    assert "limits are not enforced (limits-not-enforced): worker 0" in warnings
    assert "Network shared with its node (network-shared): worker 0" in warnings


def test_status_of_a_waiting_job_shows_its_reason_and_no_ranks(
    tessera: CommandLine, portal: Portal, job: dict[str, Any]
) -> None:
    reason = {"code": "held", "text": "On hold. Release it to queue it."}
    portal.answer("GET", "jobs/7/", {**job, "reason": reason, "placement": []})

    ran = tessera("status", "7")

    assert "On hold. Release it to queue it. (held)" in ran.out
    assert "RANK" not in ran.out
    assert not ran.err


def test_times_are_local_with_their_zone_or_utc_and_iso_for_programs(
    tessera: CommandLine, portal: Portal, running: dict[str, Any]
) -> None:
    portal.answer("GET", "jobs/7/", running)
    portal.answer("GET", "jobs/", {"results": [running], "next_cursor": None})

    local, utc = tessera("status", "7").out, tessera("status", "7", "--utc").out

    assert "2026-03-01 11:00:00 CET" in local
    assert "2026-07-01 12:00:00 CEST" in local
    assert "2026-03-01 10:00:00 UTC" in utc
    assert "2026-07-01 12:00 CEST" in tessera("ps").out
    assert "2026-07-01 10:00 UTC" in tessera("ps", "--utc").out
    for words in (["status", "7", "--json"], ["status", "7", "--json", "--utc"]):
        assert json.loads(tessera(*words).out)["submitted_at"] == "2026-03-01T10:00:00Z"
    assert json.loads(tessera("ps", "--json").out)[0]["submitted_at"] == "2026-03-01T10:00:00Z"


def test_slurm_commands_use_the_local_zone_as_slurm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    noon = "2026-03-01T12:00:00Z"

    assert clock(noon) == "2026-03-01T13:00:00"
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%Y-%m-%dT%H:%M:%S%z")
    assert clock(noon) == "2026-03-01T13:00:00+0100"
    monkeypatch.setenv("SLURM_TIME_FORMAT", "standard")
    assert clock(noon) == "2026-03-01T13:00:00"
    late = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)  # the second of March in Berlin
    assert read_moment("2026-03-01T13:00", late) == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert read_moment("2026-03-01T13:00Z", late) == datetime(2026, 3, 1, 13, tzinfo=UTC)
    assert read_moment("today", late) == datetime(2026, 3, 1, 23, tzinfo=UTC)


def test_compare_shows_results_and_fields_that_differ(
    tessera: CommandLine, portal: Portal
) -> None:
    run = {"gpu_hours": 1.5, "slot_hours": 0.0, "wait": None, "preemptions": 2, "last_step": 90}
    one = {
        **run,
        "id": 7,
        "name": "a",
        "goodput": 3.0,
        "metrics": {"loss": {"last": 2, "best": 1}},
    }
    other: dict[str, object] = {**run, "id": 9, "name": "b", "goodput": None, "metrics": {}}
    rows = [("--lr", ["0.1", None], True), ("roles.worker.devices", ["1", "1"], False)]
    body = {
        "jobs": [one, other],
        "goals": {"loss": "min"},
        "fields": [{"path": path, "values": values, "differs": d} for path, values, d in rows],
    }
    portal.answer("GET", "jobs/compare/", body)

    ran = tessera("compare", "7", "9")

    lines = [line.split() for line in ran.out.splitlines()]
    assert ["loss,", "last", "2", "-"] in lines
    assert ["loss,", "best", "1", "-"] in lines
    assert ["preemptions", "2", "2"] in lines
    assert ["--lr", "0.1", "-"] in lines
    assert "roles.worker.devices" not in ran.out
    assert json.loads(tessera("compare", "7", "9", "--json").out) == body


def test_grids_shows_each_grid_with_its_plan_and_times(
    tessera: CommandLine, portal: Portal
) -> None:
    grid = {
        "type": "A100", "devices": 4, "stages": 2, "state": "possible", "shape": "2 x (2 data)",
        "samples_per_second": 128.0, "predicted": 0.25, "measured": None, "is_running": True,
    }  # fmt: skip
    none = {"shape": "", "samples_per_second": None, "predicted": None, "is_running": False}
    large = {**grid, **none, "stages": 1, "state": "too-large"}
    body = {"why": "2 x (2 data) is the only plan.", "grids": [grid, large]}
    portal.answer("GET", "jobs/7/grids/", body)

    ran = tessera("grids", "7")

    lines = [line.split() for line in ran.out.splitlines()]
    assert ran.out.startswith("2 x (2 data) is the only plan.")
    assert ["A100", "4", "2", "2", "x", "(2", "data)", "128", "0.25", "s", "-", "running"] in lines
    assert ["A100", "4", "1", "-", "-", "-", "-", "too-large"] in lines
    assert json.loads(tessera("grids", "7", "--json").out) == body


def test_grids_of_a_document_are_those_of_its_plan(
    tessera: CommandLine, portal: Portal, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("virtual_cluster: vision-a\nroles: {worker: {command: 'true'}}\n")
    grid = {
        "type": "A100", "devices": 4, "stages": 2, "shape": "2 x (2 data)",
        "samples_per_second": 128.0, "is_measured": True,
    }  # fmt: skip
    grids = {
        "sizes": [4], "most_stages": 4, "grids": [grid], "to_profile": ["V100"], "hidden": 3,
    }  # fmt: skip
    body: dict[str, Any] = {"fits": "now", "warnings": [], "grids": grids}
    portal.answer("POST", "jobs/plan/", body)

    ran = tessera("grids", str(file))

    lines = [line.split() for line in ran.out.splitlines()]
    assert ["A100", "4", "2", "2", "x", "(2", "data)", "128", "measured"] in lines
    assert "3 more" in ran.out
    assert "Profile jobs would measure the model on V100." in ran.out
    assert json.loads(tessera("grids", str(file), "--json").out) == grids


def test_a_document_without_parallel_has_no_grids(
    tessera: CommandLine, portal: Portal, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("virtual_cluster: vision-a\nroles: {worker: {command: 'true'}}\n")
    portal.answer("POST", "jobs/plan/", {"fits": "now", "warnings": [], "grids": None})

    assert "no field `parallel`" in tessera("grids", str(file)).out
