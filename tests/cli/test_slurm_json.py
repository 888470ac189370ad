"""Slurm's commands as JSON, for scripts that read it, and states of nodes by name."""

import json
from typing import Any

import pytest

from tests.support.prepared_portal import CommandLine, Portal

NODE = {
    "id": 1, "name": "n1", "state": "ready", "state_reason": "", "device_type": "A100",
    "devices": 8, "in_use": 0, "cpus": 32.0, "memory_bytes": 64 << 30,
}  # fmt: skip


@pytest.fixture
def jobs(portal: Portal, job: dict[str, Any]) -> list[dict[str, Any]]:
    """One that runs, one that waits and one that has failed."""
    runs = {
        **job, "id": 9, "state": "running", "tenant": "vision", "devices": 8, "instances": 2,
        "nodes": ["n1", "n2"], "max_duration": 5401, "started_at": "2026-03-01T10:00:10Z",
        "priority": 10, "class": "guaranteed", "exit_code": None, "finished_at": None,
    }  # fmt: skip
    waits = {
        **runs, "id": 8, "state": "queued", "nodes": [], "started_at": None, "max_duration": None,
        "reason": {"code": "behind-higher-priority", "text": "x"},
    }  # fmt: skip
    failed = {
        **runs, "id": 7, "state": "failed", "failure_class": "timeout", "exit_code": 124,
        "finished_at": "2026-03-01T11:30:10Z",
    }  # fmt: skip
    rows = [runs, waits, failed]
    portal.answer("GET", "jobs/", {"results": rows, "next_cursor": None})
    return rows


def read(tessera: CommandLine, *words: str) -> dict[str, Any]:
    ran = tessera("slurm", *words)
    assert ran.status == 0, ran.err
    body: dict[str, Any] = json.loads(ran.out)
    assert (body["errors"], body["warnings"]) == ([], [])
    assert body["meta"]["plugin"]["data_parser"] == "data_parser/v0.0.41"
    return body


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


@pytest.mark.usefixtures("jobs")
def test_squeue_says_jobs_in_slurms_shapes(tessera: CommandLine) -> None:
    first, second, _ = read(tessera, "squeue", "--json", "-h")["jobs"]

    assert first == {
        "account": "vision",
        "end_time": number(0),
        "exit_code": {
            "status": ["PENDING"],
            "return_code": {"set": False, "infinite": False, "number": 0},
        },
        "job_id": 9,
        "job_state": ["RUNNING"],
        "name": "hello",
        "node_count": number(2),
        "nodes": "n1,n2",
        "partition": "vision-a",
        "priority": number(10),
        "qos": "guaranteed",
        "start_time": number(1772359210),
        "state_reason": "None",
        "submit_time": number(1772359200),
        "time_limit": number(91),
        "tres_req_str": "node=2,gres/gpu=8",
        "user_name": "alice",
    }
    assert (second["job_state"], second["state_reason"]) == (["PENDING"], "Priority")
    assert (second["nodes"], second["node_count"]) == ("", number(2))
    assert second["start_time"] == number(0)
    assert second["time_limit"] == {"set": False, "infinite": True, "number": 0}


@pytest.mark.usefixtures("jobs")
def test_sacct_says_ended_jobs_in_slurms_shapes(tessera: CommandLine) -> None:
    *_, waits, failed = read(tessera, "sacct", "--json=v0.0.41")["jobs"]

    assert failed["state"] == {"current": ["TIMEOUT"], "reason": "None"}
    assert failed["time"] == {
        "elapsed": 5400,
        "end": 1772364610,
        "limit": number(91),
        "start": 1772359210,
        "submission": 1772359200,
    }
    assert failed["exit_code"]["return_code"] == number(124)
    assert (failed["allocation_nodes"], failed["user"], failed["account"]) == (
        2, "alice", "vision",
    )  # fmt: skip
    assert (waits["allocation_nodes"], waits["nodes"]) == (0, "None assigned")
    assert waits["time"]["elapsed"] == 0


def test_states_that_slurm_counts_as_flags_stand_behind_another(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    rows = [{**job, "state": state} for state in ("starting", "preempting")]
    portal.answer("GET", "jobs/", {"results": rows, "next_cursor": None})

    states = [row["job_state"] for row in read(tessera, "squeue", "--json")["jobs"]]

    assert states == [["RUNNING", "CONFIGURING"], ["RUNNING", "COMPLETING"]]


def test_sinfo_says_nodes_that_are_alike_together(portal: Portal, tessera: CommandLine) -> None:
    draining = {**NODE, "name": "n3", "state": "draining", "in_use": 3, "state_reason": "a fan"}
    nodes = [NODE, {**NODE, "name": "n2", "cpus": 16.0}, draining]
    portal.answer("GET", "nodes/", {"results": nodes, "next_cursor": None})

    alike, other = read(tessera, "sinfo", "--json")["sinfo"]

    assert alike == {
        "cpus": {"minimum": 16, "maximum": 32, "total": 48},
        "gres": {"total": "gpu:8", "used": "gpu:0"},
        "memory": {"minimum": 65536, "maximum": 65536},
        "node": {"state": ["IDLE"]},
        "nodes": {"allocated": 0, "idle": 2, "other": 0, "total": 2, "nodes": ["n1", "n2"]},
        "partition": {"name": "A100"},
        "reason": {"description": ""},
    }
    assert other["node"]["state"] == ["MIXED", "DRAIN"]
    assert other["reason"]["description"] == "a fan"
    assert other["nodes"] == {"allocated": 0, "idle": 0, "other": 1, "total": 1, "nodes": ["n3"]}
    assert len(read(tessera, "sinfo", "--json", "-N")["sinfo"]) == 3


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("squeue", "--json=v0.0.38"), "v0.0.38"),
        (("squeue", "--json", "-o", "%i"), "--json"),
        (("squeue", "--json", "-O", "jobid"), "--json"),
        (("squeue", "--yaml"), "--yaml"),
        (("squeue", "--steps"), "--steps"),
        (("squeue", "-t", "PD,NAPPING"), "NAPPING"),
        (("sacct", "--json", "-o", "jobid"), "--json"),
        (("sacct", "--duplicates"), "--duplicates"),
        (("sinfo", "--json", "-s"), "--json"),
        (("sinfo", "--dead"), "--dead"),
        (("sinfo", "-t", "idle,napping"), "napping"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    tessera: CommandLine, portal: Portal, words: tuple[str, ...], named: str
) -> None:
    ran = tessera("slurm", *words)

    assert (ran.status, named in ran.err) == (2, True)
    assert portal.asked == []


@pytest.mark.parametrize(
    ("states", "names"),
    [
        ("drain", "n2 n3"),
        ("drained", "n2"),
        ("DRAINING,unk", "n3 n4"),
        ("idle", "n1"),
        ("unknown", "n4"),
        ("mix,alloc", ""),
    ],
)
def test_sinfo_keeps_to_states_as_slurm_names_them(
    tessera: CommandLine, portal: Portal, states: str, names: str
) -> None:
    kept = ("ready", "cordoned", "draining", "suspect")
    nodes = [{**NODE, "name": f"n{i}", "state": state} for i, state in enumerate(kept, 1)]
    portal.answer("GET", "nodes/", {"results": nodes, "next_cursor": None})

    ran = tessera("slurm", "sinfo", "-h", "-N", "-o", "%N", "-t", states)

    assert ran.out.split() == names.split()


def test_sinfo_reports_which_states_there_are(tessera: CommandLine) -> None:
    ran = tessera("slurm", "sinfo", "-t", "napping")

    for known in ("idle", "mix", "alloc", "drained", "draining", "down", "unknown"):
        assert known in ran.err


def test_json_says_that_there_are_more_jobs(
    tessera: CommandLine, portal: Portal, job: dict[str, Any]
) -> None:
    rows = [{**job, "id": 2000 - i} for i in range(1001)]
    portal.answer("GET", "jobs/", {"results": rows, "next_cursor": None})

    ran = tessera("slurm", "squeue", "--json")

    body = json.loads(ran.out)
    assert len(body["jobs"]) == 1000
    assert "there are more" in body["warnings"][0]["description"]
    assert "there are more" in ran.err
