"""``tessera import``, what ``submit`` says of scripts, and executables with Slurm's names."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prepared_portal import CommandLine, Portal

SCRIPT = "#!/bin/bash\n#SBATCH --gres=gpu:2\nsrun python train.py\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "s.sh"
    file.write_text(SCRIPT)
    return file


def answer(**changes: Any) -> dict[str, Any]:
    return {
        "format": "sbatch", "spec": {"name": "train", "note": "ü"}, "more": [], "nodes": [],
        "warnings": ["srun: differs."],
        "unsupported": [
            {"field": "--magic", "message": "It is lost.", "needed": True, "value": ""},
            {"field": "--nice", "message": "It is left.", "needed": False, "value": ""},
        ],
        "remarks": [
            {"heading": heading, "entries": [{"field": field, "message": message}]}
            for heading, field, message in (
                ("Translated", "srun", "differs."),
                ("Left out", "--nice", "It is left."),
                ("Not supported", "--magic", "It is lost."),
            )
        ],
        "job": None, "jobs": [], **changes,
    }  # fmt: skip


def test_a_script_is_submitted_and_what_was_not_understood_is_reported(
    portal: Portal, tessera: CommandLine, job: dict[str, Any], script: Path
) -> None:
    portal.answer("POST", "import/auto/", answer(job=job, jobs=[7, 8]), status=201)

    ran = tessera("import", str(script), "--vc", "vision-a")

    assert (ran.status, ran.out) == (0, "job 7 hello: queued\narray tasks: jobs 7, 8\n")
    assert ran.err.splitlines() == [
        "format: sbatch",
        "Translated",
        "  srun: differs.",
        "Left out",
        "  --nice: It is left.",
        "Not supported",
        "  --magic: It is lost.",
    ]
    (asked,) = portal.asked
    assert (asked.path, asked.body) == (
        "/api/v1/import/auto/?virtual_cluster=vision-a",
        SCRIPT.encode(),
    )
    assert len(asked.headers["Idempotency-Key"]) == 32


def test_a_dry_run_prints_a_document_that_can_be_submitted(
    portal: Portal, tessera: CommandLine
) -> None:
    spec = {"name": "train", "roles": {"w": {"secrets": {"A": "(redacted)"}}}}
    portal.answer("POST", "import/slurm/", answer(spec=spec, more=[spec, spec]))

    ran = tessera("import", "-", "--format", "slurm", "--dry-run", stdin=SCRIPT)

    assert (ran.status, yaml.safe_load(ran.out)) == (0, spec)
    assert "and 2 more jobs of the same form" in ran.err
    assert "secrets are not printed" in ran.err
    assert portal.asked[0].path == "/api/v1/import/slurm/?dry_run=1"


def test_a_list_of_nodes_is_printed_as_what_it_is(portal: Portal, tessera: CommandLine) -> None:
    nodes = [{"name": "lab-0", "host": "10.0.0.1"}]
    portal.answer("POST", "import/dstack/", answer(spec=None, nodes=nodes))

    ran = tessera("import", "-", "--format", "dstack", "--dry-run", stdin="type: fleet")

    assert yaml.safe_load(ran.out) == {"nodes": nodes}
    assert "tessera node add" in ran.err


def test_what_cannot_be_imported_exits_as_a_refusal(portal: Portal, tessera: CommandLine) -> None:
    fault = {"field": "format", "value": "auto", "message": "It is unclear.", "remedy": "Name it."}
    problem = {"code": "unsupported-format", "title": "No", "errors": [fault]}
    portal.answer("POST", "import/auto/", problem, status=400)

    ran = tessera("import", "-", stdin="a: 1")

    assert ran.status == 1
    assert "It is unclear." in ran.err
    assert "Name it." in ran.err


@pytest.mark.parametrize("text", [SCRIPT, "\n#SBATCH -N 1\nhostname\n"])
@pytest.mark.parametrize("command", ["submit", "plan"])
def test_a_script_is_no_command_and_the_error_names_import(
    portal: Portal, tessera: CommandLine, script: Path, command: str, text: str
) -> None:
    script.write_text(text)

    for words, stdin in (((str(script),), ""), (("-",), text)):
        ran = tessera(command, *words, "--vc", "vision-a", stdin=stdin)
        assert ran.status == 2
        assert f"tessera import {words[0]}" in ran.err
    assert portal.asked == []


def test_behind_dashes_the_name_of_a_script_is_a_command(
    portal: Portal, tessera: CommandLine, job: dict[str, Any], script: Path
) -> None:
    portal.answer("POST", "jobs/", job, status=201)

    assert tessera("submit", "--vc", "vision-a", "--", str(script)).status == 0

    assert portal.asked[0].json["roles"]["worker"]["command"] == str(script)


def test_scripts_find_slurms_names_as_executables(
    portal: Portal, tessera: CommandLine, tmp_path: Path
) -> None:
    there = tmp_path / "bin of mine"
    portal.answer("POST", "import/sbatch/", answer(job={"id": 7}, jobs=[7]), status=201)

    assert tessera("slurm", "wrappers", str(there)).status == 0
    assert tessera("slurm", "wrappers", str(there)).status == 0, "its own files may be replaced"

    path = f"{there}:{os.environ['PATH']}"
    printed = subprocess.run(
        ["/bin/sh", "-c", "sbatch --parsable -Q --wrap 'echo \"a b\"'"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert printed.stdout == "7\n"
    assert portal.asked[-1].body == b'#!/bin/sh\necho "a b"\n'
    names = {"sbatch", "squeue", "scancel", "sinfo", "scontrol", "sacct"}
    assert {file.name for file in there.iterdir()} == names


def test_somebody_elses_executables_are_not_replaced(tessera: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\necho real\n")

    ran = tessera("slurm", "wrappers", str(tmp_path))

    assert ran.status == 2
    assert "squeue would be replaced" in ran.err
    assert [file.name for file in tmp_path.iterdir()] == ["squeue"]
