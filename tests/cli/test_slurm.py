"""Slurm's commands over the REST API."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.lifecycle import JobState
from tessera.cli.exits import UsageError
from tessera.cli.slurm.sbatch import read_arguments, script_text
from tessera.cli.slurm.words import STATES, node_state, reason_of, span
from tessera.reasons import ReasonCode
from tests.support.prepared_portal import CommandLine, Portal

ANSWER: dict[str, Any] = {
    "spec": {}, "more": [], "nodes": [], "warnings": ["script: differs."],
    "unsupported": [{"field": "--magic", "message": "It is lost.", "needed": True, "value": ""}],
    "remarks": [
        {"heading": "Translated", "entries": [{"field": "script", "message": "differs."}]},
        {"heading": "Not supported", "entries": [{"field": "--magic", "message": "It is lost."}]},
    ],
    "job": {"id": 7}, "jobs": [7, 8],
}  # fmt: skip


def detail(job: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        **job,
        "tenant": "vision",
        "devices": 8,
        "nodes": [],
        "instances": 2,
        "spec": {"roles": {"worker": {"instances": 2}}},
        "max_duration": 90_000,
        **changes,
    }


def listed(job: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The row of ``detail`` in a list."""
    whole = detail(job, **changes)
    return {name: whole[name] for name in whole if name not in {"spec", "warnings"}}


def test_a_script_is_submitted_with_the_options_of_the_command_line(
    portal: Portal, tessera: CommandLine, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH -N 1\n\necho $1\n")
    portal.answer("POST", "import/sbatch/", ANSWER, status=201)

    ran = tessera("slurm", "sbatch", "-N2", "--gres", "gpu:4", "--magic=a b", str(script), "x y")

    assert ran.status == 2, "an option that sbatch does not know"
    ran = tessera("slurm", "sbatch", "-N2", "--gres", "gpu:4", "-J", "a b", str(script), "x y")
    assert (ran.status, ran.out) == (0, "Submitted batch job 7\n")
    assert "sbatch: Not supported: --magic: It is lost." in ran.err
    assert portal.asked[-1].body.decode() == (
        "#!/bin/bash\n#SBATCH -N 1\n\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n"
        "#SBATCH --job-name='a b'\nset -- 'x y'\necho $1\n"
    )


def test_a_script_whose_answer_was_cut_off_is_sent_again_with_the_same_key(
    portal: Portal, tessera: CommandLine
) -> None:
    portal.answer("POST", "import/sbatch/", ANSWER, status=201)
    portal.cuts = 1

    ran = tessera("slurm", "sbatch", "-Q", "--wrap=true")
    other = tessera("slurm", "sbatch", "-Q", "--wrap=true")

    assert (ran.status, ran.out, other.status) == (0, "Submitted batch job 7\n", 0)
    cut, again, another = (asked.headers["Idempotency-Key"] for asked in portal.asked)
    assert cut == again != another
    assert portal.asked[0].body == portal.asked[1].body == b"#!/bin/sh\ntrue\n"


def test_a_wrapped_command_can_be_tried_and_printed_for_scripts(
    portal: Portal, tessera: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    portal.answer("POST", "import/sbatch/", ANSWER)

    tried = tessera("slurm", "sbatch", "--test-only", "--wrap=hostname -f")
    printed = tessera("slurm", "sbatch", "--parsable", "-Q", "--wrap", "hostname -f")

    assert (tried.status, tried.out) == (0, "")
    assert portal.asked[0].path == "/api/v1/import/sbatch/?dry_run=1"
    assert portal.asked[0].body == b"#!/bin/sh\n#SBATCH --partition=gpu\nhostname -f\n"
    assert (printed.out, printed.err) == ("7\n", "")


def test_waiting_ends_as_the_worst_job_does(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    portal.answer("POST", "import/sbatch/", ANSWER)
    portal.answer("GET", "jobs/7/", {**job, "state": "succeeded"})
    portal.answer("GET", "jobs/8/", {**job, "id": 8, "state": "failed"})

    assert tessera("slurm", "sbatch", "-W", "--wrap=true").status == 10


def test_squeue_shows_the_usual_columns(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    running = {
        **job, "id": 8, "state": "running", "started_at": "2026-03-01T10:00:00Z",
        "finished_at": "2026-03-02T11:02:03Z", "name": "a\x1b[31mvery long name",
    }  # fmt: skip
    waits = {**job, "reason": {"code": "behind-higher-priority", "text": "x"}}
    rows = [listed(waits), listed(running, nodes=["node-1", "node-2"])]
    portal.answer("GET", "jobs/", {"results": rows, "next_cursor": None})

    ran = tessera("slurm", "squeue", "--me", "-t", "PD,RUNNING", "-p", "vision-a")
    long = tessera("slurm", "squeue", "-l", "-h", "-w", "node-2")

    assert ran.out.splitlines() == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "                 7  vision-a    hello    alice PD       0:00      2 (Priority)",
        "                 8  vision-a a?[31mve    alice  R 1-01:02:03      2 node-1,node-2",
    ]
    assert long.out.split()[-4:] == ["1-01:02:03", "1-01:00:0", "2", "node-1,node-2"]
    assert len(portal.asked) == 2, "a list says all of it"
    asked = portal.asked[0].path
    assert "mine=1" in asked
    assert "virtual_cluster=vision-a" in asked
    assert "state=queued%2Crunning%2Csuspect" in asked


def test_squeue_takes_a_format_without_asking_for_more_than_it_needs(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    portal.answer("GET", "jobs/", {"results": [job], "next_cursor": None})

    ran = tessera("slurm", "squeue", "-h", "-o", "%i|%T|%u")
    wrong = tessera("slurm", "squeue", "-o", "%Z")

    assert ran.out == "7|PENDING|alice\n"
    assert len([asked for asked in portal.asked if asked.path.startswith("/api/v1/jobs/7")]) == 0
    assert wrong.status == 2
    assert "%Z" in wrong.err


def test_scancel_stops_by_number_and_by_name(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    other = {**job, "id": 9, "name": "other"}
    portal.answer("GET", "jobs/", {"results": [job, other], "next_cursor": None})
    for number in (7, 9):
        portal.answer("POST", f"jobs/{number}/stop/", {**job, "id": number})

    assert tessera("slurm", "scancel", "7", "9").status == 0
    assert tessera("slurm", "scancel", "-u", "alice", "-n", "other").status == 0
    nothing = tessera("slurm", "scancel")
    wrong = tessera("slurm", "scancel", "7;rm")

    stopped = [asked.path for asked in portal.asked if asked.method == "POST"]
    assert stopped == [f"/api/v1/jobs/{number}/stop/" for number in (7, 9, 9)]
    assert (nothing.status, wrong.status) == (2, 2)


def task(job: dict[str, Any], number: int, index: int, array: int | None) -> dict[str, Any]:
    """A task of an array; the first one does not know its array."""
    env = {"SLURM_ARRAY_TASK_ID": str(index)}
    if array is not None:
        env["SLURM_ARRAY_JOB_ID"] = str(array)
    roles = {"worker": {"instances": 1, "env": env}}
    labels = {"slurm-array": "sweep"}
    return detail(job, id=number, name=f"sweep {index}", labels=labels, spec={"roles": roles})


def test_tasks_of_an_array_are_named_as_slurm_names_them(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    mine = [task(job, 12, 0, None)] + [task(job, 12 + n, n, 12) for n in (1, 2, 3)]
    others = [task(job, 20, 0, None), task(job, 21, 1, 20), task(job, 5, 1, 4)]
    rows = sorted(mine + others, key=lambda row: -row["id"])
    portal.answer("GET", "jobs/", {"results": rows, "next_cursor": None})
    portal.answer("GET", "jobs/7/", detail(job))
    for row in rows:
        portal.answer("GET", f"jobs/{row['id']}/", row)
        portal.answer("POST", f"jobs/{row['id']}/stop/", row)

    assert tessera("slurm", "scancel", "12_1").status == 0
    assert tessera("slurm", "scancel", "12_[0,2-3],20").status == 0
    shown = tessera("slurm", "squeue", "-h", "-o", "%i %j", "-j", "12_2,7").out
    said = tessera("slurm", "scontrol", "show", "job", "12_3").out
    wrong = [
        tessera("slurm", "scancel", word) for word in ("12_9", "7_0", "12_[3-1]", "12_", "13_1")
    ]

    stopped = [asked.path for asked in portal.asked if asked.method == "POST"]
    assert stopped == [f"/api/v1/jobs/{number}/stop/" for number in (13, 12, 14, 15, 20)]
    assert shown == "14 sweep 2\n7 hello\n"
    assert "JobId=15" in said
    assert [ran.status for ran in wrong] == [2] * 5
    assert "Job 12 has no task 9" in wrong[0].err
    assert "Job 7 is not an array" in wrong[1].err


def test_an_array_has_one_name(portal: Portal, tessera: CommandLine, job: dict[str, Any]) -> None:
    rows = [task(job, 13, 1, 12), task(job, 12, 0, None), {**job, "id": 9, "name": "other"}]
    portal.answer("GET", "jobs/", {"results": [*rows, job], "next_cursor": None})
    for row in rows:
        portal.answer("POST", f"jobs/{row['id']}/stop/", row)

    shown = tessera("slurm", "squeue", "-h", "-o", "%i", "-n", "sweep").out
    several = tessera("slurm", "squeue", "-h", "-o", "%i", "-n", "sweep 1,other").out
    assert tessera("slurm", "scancel", "--me", "-n", "sweep").status == 0
    assert tessera("slurm", "scancel", "--me", "-n", "sweep,other").status == 0

    stopped = [asked.path for asked in portal.asked if asked.method == "POST"]
    assert (shown, several) == ("13\n12\n", "13\n9\n")
    assert stopped == ["/api/v1/jobs/13/stop/", "/api/v1/jobs/12/stop/"]


def test_a_truncated_list_is_reported_and_scancel_reads_all_pages(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    rows = [{**job, "id": number} for number in range(1007, 7, -1)]
    more = [*rows, {**job, "name": "last"}]
    portal.answer("GET", "jobs/", {"results": rows}, {"results": more})
    portal.answer("POST", "jobs/7/stop/", job)

    whole = tessera("slurm", "sacct", "-n", "-P")
    short = tessera("slurm", "squeue", "-h", "-o", "%i")
    named = tessera("slurm", "squeue", "-h", "-o", "%i", "-n", "last")
    stopped = tessera("slurm", "scancel", "--me", "-n", "last")

    assert (len(whole.out.splitlines()), whole.err) == (1000, "")
    assert len(short.out.splitlines()) == 1000
    assert "the newest 1000 jobs" in short.err
    assert (named.out, named.err) == ("7\n", "")
    assert stopped.status == 0
    assert portal.asked[-1].path == "/api/v1/jobs/7/stop/"


def test_sinfo_counts_nodes_by_type_and_state(portal: Portal, tessera: CommandLine) -> None:
    base = {"device_type": "A100", "devices": 8, "healthy": 8}
    nodes = [
        {**base, "id": 1, "name": "n1", "state": "ready", "in_use": 0},
        {**base, "id": 2, "name": "n2", "state": "ready", "in_use": 3},
        {**base, "id": 3, "name": "n3", "state": "cordoned", "in_use": 0},
    ]
    portal.answer("GET", "nodes/", {"results": nodes, "next_cursor": None})

    summary = tessera("slurm", "sinfo").out.splitlines()
    single = tessera("slurm", "sinfo", "-N", "-h").out.splitlines()

    assert summary[0].split() == ["PARTITION", "NODES", "STATE", "NODELIST"]
    assert [line.split() for line in summary[1:]] == [
        ["A100", "1", "drain", "n3"],
        ["A100", "1", "idle", "n1"],
        ["A100", "1", "mix", "n2"],
    ]
    assert len(single) == 3


def test_scontrol_and_sacct_show_jobs(
    portal: Portal, tessera: CommandLine, job: dict[str, Any]
) -> None:
    ended = {**job, "state": "failed", "failure_class": "timeout", "exit_code": None, "devices": 4}
    portal.answer("GET", "jobs/7/", detail(ended))
    portal.answer("GET", "jobs/", {"results": [ended], "next_cursor": None})

    shown = tessera("slurm", "scontrol", "show", "job", "7").out
    listed = tessera("slurm", "sacct", "-P", "-n", "-s", "F").out

    assert "JobState=TIMEOUT" in shown
    assert "TimeLimit=1-01:00:00" in shown
    assert listed == "7|hello|vision-a||4|TIMEOUT|0:0\n"
    assert tessera("slurm", "scontrol", "reboot").status == 2


def test_every_state_has_a_name_of_slurm() -> None:
    assert set(STATES) == {state.value for state in JobState}


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_is_shown_under_its_name_in_slurm(code: ReasonCode) -> None:
    shown = reason_of({"state": "queued", "reason": {"code": code.value}})

    assert shown == code.row.slurm
    assert shown.isalpha()


def test_words_for_nodes_and_spans() -> None:
    assert node_state({"state": "ready", "in_use": 8, "devices": 8}) == "alloc"
    assert [span(None), span(59), span(3661), span(-5)] == ["UNLIMITED", "0:59", "1:01:01", "0:00"]


@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_arguments_are_read_or_refused(arguments: list[str]) -> None:
    try:
        asked = read_arguments(arguments)
        script_text(asked, "#!/bin/sh\ntrue\n", {})
    except UsageError:
        return


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sbatch", "--array LIST"), ("squeue", "--states X"), ("sacct", "--parsable2"),
        ("scancel", "Job ID(s)."), ("sinfo", "One line per node."), ("scontrol", "show job"),
    ],
)  # fmt: skip
def test_every_command_has_a_usage_text(tessera: CommandLine, name: str, words: str) -> None:
    ran = tessera("slurm", name, "--help")

    assert (ran.status, ran.err) == (0, "")
    assert words in ran.out
    assert ran.out.lower().startswith("usage:")


def test_h_is_help_but_where_slurm_means_no_titles(portal: Portal, tessera: CommandLine) -> None:
    portal.answer("GET", "jobs/", {"results": [], "next_cursor": None})

    assert "usage:" in tessera("slurm", "scancel", "-h").out
    assert tessera("slurm", "squeue", "-h").out == ""
    assert tessera("slurm", "squeue", "--magic").status == 2
