"""What Slurm's commands show when people choose the columns, as their scripts do."""

from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.support.prepared_portal import CommandLine, Portal

NODES = [
    {
        "id": number,
        "name": name,
        "state": state,
        "state_reason": reason,
        "state_since": "2026-03-01T09:00:00Z",
        "device_type": kind,
        "devices": 8,
        "healthy": 8,
        "in_use": in_use,
        "cpus": 32.0,
        "memory_bytes": 64 << 30,
    }
    for number, (name, state, reason, kind, in_use) in enumerate(
        [
            ("n1", "ready", "", "A100", 0),
            ("n2", "ready", "", "A100", 3),
            ("n3", "cordoned", "a fan is loud", "A100", 0),
            ("n4", "ready", "", "V100", 8),
        ]
    )
]


@pytest.fixture
def whole(portal: Portal, job: dict[str, Any]) -> dict[str, Any]:
    """A job that runs on two nodes, which the list and its own address tell of."""
    env = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}
    role = {"instances": 2, "cpus": 4, "memory": 8 << 30, "env": env}
    row = {
        **job, "state": "running", "devices": 8, "tenant": "vision", "priority": 10,
        "nodes": ["n1", "n2"], "instances": 2, "max_duration": 7200,
        "started_at": "2026-03-01T10:00:00Z", "finished_at": "2026-03-01T10:30:00Z",
    }  # fmt: skip
    detail = {
        **row, "note": "second try", "after": [3, 4], "spec": {"roles": {"worker": role}},
    }  # fmt: skip
    portal.answer("GET", "jobs/", {"results": [row], "next_cursor": None})
    portal.answer("GET", "jobs/7/", detail)
    return detail


@pytest.mark.usefixtures("whole")
def test_squeue_takes_columns_by_letter_and_by_name(tessera: CommandLine) -> None:
    letters = tessera("slurm", "squeue", "-h", "-o", "%F_%K|%C|%m|%k|%E|%p")
    names = tessera("slurm", "squeue", "-O", "jobid:6,name:.8,state:9,NodeList")
    wrong = tessera("slurm", "squeue", "-O", "jobid,colour")

    assert letters.out == "5_2|8|8192M|second try|afterok:3:4|10\n"
    assert names.out.splitlines() == [
        "JOBID     NAMESTATE    NODELIST",
        "7        helloRUNNING  n1,n2",
    ]
    assert (wrong.status, "colour" in wrong.err) == (2, True)


@pytest.mark.usefixtures("whole")
def test_squeue_keeps_to_nodes_that_are_named(tessera: CommandLine) -> None:
    assert tessera("slurm", "squeue", "-h", "-a", "-r", "-w", "n2,n9", "-o", "%i").out == "7\n"
    assert tessera("slurm", "squeue", "-h", "-w", "n9", "-o", "%i").out == ""


def test_squeue_tells_when_those_that_wait_start(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    waits = {**job, "expected_start": "2026-03-01T12:00:00Z"}
    portal.answer("GET", "jobs/", {"results": [waits], "next_cursor": None})

    ran = tessera("slurm", "squeue", "--start", "-h")

    assert "2026-03-01T12:00:00" in ran.out
    assert "state=queued&" in f"{portal.asked[0].path}&"


@pytest.mark.usefixtures("whole")
def test_sacct_takes_columns_and_a_span_of_time(tessera: CommandLine) -> None:
    plain = tessera("slurm", "sacct", "-o", "JobID%6,State,Elapsed,AllocCPUS,NodeList%8")
    parted = tessera("slurm", "sacct", "-n", "-P", "--format=jobid%6,exitcode,reqmem")
    spans = [
        tessera("slurm", "sacct", "-n", "-P", "-o", "jobid", *words).out
        for words in (
            ["-S", "2026-03-01T10:29"],
            ["-S", "2026-03-01T10:31"],
            ["-E", "2026-02-28"],
            ["-S", "now-1day"],
        )
    ]

    assert plain.out.splitlines() == [
        "JobID  State      Elapsed    AllocCPUS  NodeList",
        "7      RUNNING    30:00      8          n1,n2",
    ]
    assert parted.out == "7|0:0|8192M\n"
    assert spans == ["7\n", "", "", ""]
    for no_time in ("long ago", "now-999999weeks"):
        assert tessera("slurm", "sacct", "-S", no_time).status == 2


def test_devices_are_told_by_node_and_of_the_whole_job(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    waits = {**job, "devices": 8, "instances": 2, "nodes": []}
    runs = {**waits, "id": 8, "state": "running", "nodes": ["n1", "n2", "n3"]}
    portal.answer("GET", "jobs/", {"results": [runs, waits], "next_cursor": None})

    per_node = tessera("slurm", "squeue", "-h", "-o", "%b").out.split()
    whole = tessera("slurm", "sacct", "-n", "-P", "-o", "alloctres,reqtres").out.split()

    assert per_node == ["N/A", "gres/gpu:4"]
    assert whole == ["node=3,gres/gpu=8|node=3,gres/gpu=8", "|node=2,gres/gpu=8"]


@pytest.mark.usefixtures("whole")
def test_sacct_asks_for_its_span_of_time_alone(portal: Portal, tessera: CommandLine) -> None:
    tessera("slurm", "sacct", "-S", "2026-03-01T10:29+01:00", "-E", "2026-03-02")
    tessera("slurm", "squeue")

    asked, plain = (parse_qs(asked.path.partition("?")[2]) for asked in portal.asked)
    assert asked == {
        "ended_since": ["2026-03-01T10:29:00+01:00"],
        "submitted_until": ["2026-03-02T00:00:00+00:00"],
    }
    assert plain == {"state": ["live"]}


def test_sinfo_groups_by_the_columns_that_are_shown(portal: Portal, tessera: CommandLine) -> None:
    portal.answer("GET", "nodes/", {"results": NODES, "next_cursor": None})

    def shown(*words: str) -> list[list[str]]:
        return [line.split() for line in tessera("slurm", "sinfo", *words).out.splitlines()]

    assert shown("-h", "-o", "%P %D %t %N") == [
        ["A100", "1", "drain", "n3"],
        ["A100", "1", "idle", "n1"],
        ["A100", "1", "mix", "n2"],
        ["V100", "1", "alloc", "n4"],
    ]
    assert shown("-h", "-o", "%P %D") == [["A100", "3"], ["V100", "1"]]
    assert shown("-h", "-s") == [
        ["A100", "up", "infinite", "1/1/1/3", "n1,n2,n3"],
        ["V100", "up", "infinite", "1/0/0/1", "n4"],
    ]
    assert shown("-h", "-R") == [["a", "fan", "is", "loud", "2026-03-01T09:00:00", "n3"]]
    assert shown("-h", "-t", "mixed,allocated", "-o", "%N") == [["n2,n4"]]
    assert shown("-h", "-N", "-l", "-n", "n4")[0][:6] == [
        "n4",
        "1",
        "V100",
        "allocated",
        "32",
        "65536",
    ]


def test_squeue_sorts_by_keys_one_after_another(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    waits = {**job, "priority": 10, "instances": 4}
    runs = {**waits, "state": "running", "started_at": "2026-03-01T10:00:00Z", "nodes": ["n1"]}
    rows = [
        {**runs, "id": 10, "finished_at": "2026-03-01T10:05:00Z", "max_duration": 60},
        {**runs, "id": 9, "finished_at": "2026-03-01T10:30:00Z", "virtual_cluster": "a"},
        {**waits, "id": 8, "priority": 50},
        {**waits, "id": 7},
    ]
    portal.answer("GET", "jobs/", {"results": rows, "next_cursor": None})

    def shown(sort: str) -> list[str]:
        return tessera("slurm", "squeue", "-h", "-o", "%i", "-S", sort).out.split()

    assert shown("") == ["10", "9", "8", "7"]
    assert shown("i") == ["7", "8", "9", "10"]
    assert shown("P,-p,i") == ["9", "8", "7", "10"]
    assert shown("t,i") == ["7", "8", "9", "10"]
    assert shown("-M") == ["9", "10", "8", "7"]
    assert shown("l,D,A") == ["10", "9", "7", "8"]
    wrong = tessera("slurm", "squeue", "--sort", "i,colour")
    assert (wrong.status, "colour" in wrong.err) == (2, True)


def test_a_task_that_waits_for_others_of_its_array_says_so(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    held = {**job, "reason": {"code": "held", "text": "x"}, "labels": {"slurm-array": "a"}}
    throttled = {**held, "id": 8, "labels": {"slurm-array": "a", "sweep": "a-1"}}
    portal.answer("GET", "jobs/", {"results": [throttled, held], "next_cursor": None})

    ran = tessera("slurm", "squeue", "-h", "-o", "%R")

    assert ran.out.splitlines() == ["(JobArrayTaskLimit)", "(JobHeldUser)"]
