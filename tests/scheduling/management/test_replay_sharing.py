"""``manage.py replay_sharing`` in a fresh process: no database, no Redis, no secrets."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

ROOT = Path(__file__).resolve().parents[3]
CASE = {
    "name": "p",
    "kernels": 2,
    "kernel_seconds": 0.01,
    "gap_seconds": 0.02,
    "guest_kernel_seconds": 0.005,
    "bound": 0.05,
    "seconds": 2,
}


@pytest.fixture
def plants(tmp_path: Path) -> Path:
    path = tmp_path / "plants.json"
    path.write_text(json.dumps({"version": 1, "cases": [CASE]}), encoding="utf-8")
    return path


def seeds_of(path: Path, *options: str) -> list[int]:
    out = io.StringIO()
    call_command("replay_sharing", "plants", str(path), *options, stdout=out)
    return [json.loads(line)["seed"] for line in out.getvalue().splitlines()]


def test_it_runs_from_any_directory_without_settings(tmp_path: Path, plants: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, ROOT / "manage.py", "replay_sharing", "plants", plants, "--seeds", "4"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["seed"] for line in done.stdout.splitlines()] == [4]
    assert [path.name for path in tmp_path.iterdir()] == ["plants.json"]


@pytest.mark.parametrize(("text", "seeds"), [("1-3", [1, 2, 3]), ("5", [5]), ("1,7-8", [1, 7, 8])])
def test_seeds_are_numbers_and_ranges(plants: Path, text, seeds) -> None:
    assert seeds_of(plants, "--seeds", text) == seeds


def test_twenty_seeds_are_the_default(plants: Path) -> None:
    assert seeds_of(plants) == list(range(1, 21))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1-99999"])
def test_other_seeds_are_refused(plants: Path, text) -> None:
    with pytest.raises(CommandError, match="--seeds"):
        seeds_of(plants, f"--seeds={text}")


def test_files_that_hold_no_cases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    with pytest.raises(CommandError, match="cannot read"):
        call_command("replay_sharing", "memory", str(path))
    path.write_text('{"version": 1, "cases": [{"name": "x"}]}')
    with pytest.raises(CommandError, match="case 'x': field 'device' is missing"):
        call_command("replay_sharing", "memory", str(path))


def test_a_reader_that_ends_early_gets_no_traceback(plants: Path) -> None:
    command = [sys.executable, "-B", str(ROOT / "manage.py"), "replay_sharing", "plants"]
    with subprocess.Popen(
        [*command, str(plants), "--seeds", "1-3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        assert process.stderr.read() == b""
    assert process.returncode == 1
