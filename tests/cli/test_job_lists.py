"""``ps``, ``top``, ``usage``, the group ``job`` and ``submit --upload``."""

import gzip
import io
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tessera.cli.exits import UsageError
from tessera.cli.upload import packed, scripts_of
from tests.support.prepared_portal import CommandLine, Portal

Body = dict[str, Any]
REASON = {
    "code": "vc-guarantee-in-use",
    "text": "vision-a uses 12 of its 12 guaranteed devices, and no node has 8 free devices.",
}


@pytest.fixture
def jobs(portal: Portal, job: Body) -> list[Body]:
    now = datetime.now(tz=UTC)
    found = [
        {
            **job, "devices": 8, "reason": REASON, "held": False,
            "expected_start": "2126-03-01T10:00:00Z",
        },
        {
            **job, "id": 8, "name": "\x1b[2Jtrain", "state": "running", "devices": 2,
            "started_at": (now - timedelta(minutes=10)).isoformat(), "reason": None,
        },
    ]  # fmt: skip
    portal.answer("GET", "jobs/", {"results": found, "next_cursor": None})
    devices = {"used": 7, "guarantee": 12}
    clusters = [{"id": 1, "name": "vision-a", "devices": devices, "jobs_queued": 3}]
    portal.answer("GET", "virtual-clusters/", {"results": clusters, "next_cursor": None})
    return found


def test_ps_shows_devices_start_run_time_and_the_whole_reason(
    tessera: CommandLine, jobs: list[Body]
) -> None:
    ran = tessera("ps", "--utc")

    head, waiting, running = ran.out.splitlines()
    assert head.split() == ["ID", "NAME", "STATE", "VC", "USER", "DEV", "START", "RUN", "REASON"]
    assert "~2126-03-01 10:00 UTC" in waiting
    assert REASON["text"] in waiting
    assert "10 min" in running
    assert "\x1b" not in ran.out


def test_top_prints_one_screen_where_there_is_no_terminal(
    tessera: CommandLine, portal: Portal, jobs: list[Body]
) -> None:
    ran = tessera("top", "--user", "alice")

    assert ran.status == 0
    assert "1 queued, 1 running" in ran.out
    assert ["vision-a", "7", "12", "3"] in [line.split() for line in ran.out.splitlines()]
    assert portal.asked[0].path.endswith("?state=live&user=alice")
    assert json.loads(tessera("top", "--json").out)["jobs"][0]["id"] == 7


def test_a_job_is_held_released_and_shown_with_its_events(
    tessera: CommandLine, portal: Portal, job: Body
) -> None:
    event = {"id": 1, "at": "2026-03-01T10:00:00Z", "kind": "submitted", "state": "queued"}
    row = {**event, "attempt": None, "text": "alice submitted the job \x07", "detail": {}}
    portal.answer("POST", "jobs/7/hold/", {**job, "held": True})
    portal.answer("POST", "jobs/7/release/", {**job, "held": False})
    portal.answer("GET", "jobs/7/events/", {"results": [row], "next_cursor": None})
    portal.answer("GET", "jobs/7/", job)

    assert "7 hello: held" in tessera("job", "hold", "7").out
    assert "7 hello: queued" in tessera("job", "release", "7").out
    events = tessera("job", "events", "7", "--utc").out
    assert "2026-03-01 10:00:00 UTC" in events
    assert "\x07" not in events
    assert "virtual cluster vision-a" in tessera("job", "show", "7").out


def test_usage_lists_hours_with_a_total(tessera: CommandLine, portal: Portal) -> None:
    hours = {"guaranteed": 10.0, "borrowed": 2.5, "lost_preempted": 1.0, "lost_failed": 0.0}
    none = dict.fromkeys(hours, 0.0)
    line = {"name": "alice", "tenant": "vision", "gpu_hours": hours, "slot_hours": none}
    body = {
        "since": "2026-03-01", "until": "2026-03-05", "lines": [line], "gpu_hours": hours,
        "slot_hours": none,
    }  # fmt: skip
    portal.answer("GET", "usage/", body)

    ran = tessera("usage", "--by", "person", "--since", "2026-03-01")

    assert portal.asked[0].path.endswith("?by=person&since=2026-03-01")
    assert "2026-03-01 to 2026-03-05 (UTC)" in ran.out
    assert ran.out.splitlines()[2].split() == ["alice", "vision", "12.5", "2.5", "1.0", "0.0"]
    assert ran.out.splitlines()[3].split()[0] == "total"


def test_upload_packs_the_named_scripts_and_submits_the_archive(
    tessera: CommandLine, portal: Portal, job: Body, tmp_path: Path
) -> None:
    spec = tmp_path / "digits.yaml"
    spec.write_text("name: d\nvirtual_cluster: v\nroles: {worker: {command: python3 digits.py}}\n")
    (tmp_path / "digits.py").write_text("print(1)\n")
    (tmp_path / "other.py").write_text("print(2)\n")
    clusters = [{"id": 1, "name": "v", "tenant": "vision", "policy": "fifo", "cells": []}]
    portal.answer("GET", "virtual-clusters/", {"results": clusters, "next_cursor": None})
    portal.answer("POST", "archives/", {"sha256": "a" * 64}, status=201)
    portal.answer("POST", "jobs/", job, status=201)

    assert tessera("submit", str(spec), "--upload").status == 0

    assert portal.asked[-2].path.endswith("?name=digits.tar.gz&tenant=vision")
    assert portal.asked[-1].json["source"] == {"archive": "a" * 64}


def test_an_upload_is_repeatable_and_takes_no_links_and_no_other_directories(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    roles = {"worker": {"command": "python3 a.py link.py ../b.py /etc/passwd"}}

    scripts = scripts_of(roles, tmp_path)

    assert [path.name for path in scripts] == ["a.py"]
    assert packed(scripts) == packed(scripts)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed(scripts)))) as archive:
        assert archive.getnames() == ["a.py"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: d\nsource: {archive: x}\nroles: {w: {command: a}}\n", "has a source"),
        ("- 1\n", "not a native job"),
        ("name: d\nroles: {w: {command: echo hello}}\n", "names a file"),
    ],
)
def test_an_upload_that_does_not_apply_shows_the_reason(
    tessera: CommandLine, tmp_path: Path, text: str, told: str
) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(text)

    ran = tessera("submit", str(spec), "--upload")

    assert ran.status == 2
    assert told in ran.err


def test_files_that_are_too_large_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("12345")

    with pytest.raises(UsageError, match="fetch data in the job"):
        packed([tmp_path / "a.py"], most_bytes=3)
