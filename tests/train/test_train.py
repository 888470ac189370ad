"""The in-job library: cheap, quiet outside a job, and never a reason for a training to fail."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import train
from tessera.train import reports
from tessera.train.reports import Reporter

NUMBERS = st.none() | st.floats() | st.integers() | st.text(max_size=3)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The environment of a job."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").write_text("hunter2")
    monkeypatch.setenv("TESSERA_JOB_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TESSERA_JOB_SECRETS_DIR", str(tmp_path / "secrets"))
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(tmp_path / "reports.jsonl"))
    monkeypatch.setenv("TESSERA_JOB_CONTROL", str(tmp_path / "control.json"))
    yield tmp_path
    if reporter := reports._reporters.pop(str(tmp_path / "reports.jsonl"), None):
        reporter.close()


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_outside_a_job_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TESSERA_JOB")]:
        monkeypatch.delenv(name)

    train.report(step=1, loss=0.5)

    assert train.should_yield() is False
    assert train.notice() == ""
    assert train.secret("token") is None
    assert (train.job().id, train.job().world_size) == ("", 1)


def test_a_report_is_one_line(job: Path) -> None:
    train.report(step=3, samples=64, step_seconds=0.5, loss=1.25)

    (line,) = lines_of(job / "reports.jsonl")
    assert line.pop("points") == [[3, pytest.approx(time.time(), abs=60), None, {"loss": 1.25}]]
    assert {**line, "time": 0} == {
        "time": 0, "step": 3, "steps": 1, "samples": 64.0, "step_seconds": 0.5, "loss": 1.25,
    }  # fmt: skip
    assert abs(float(str(line["time"])) - time.time()) < 60


def test_the_second_process_of_a_member_says_that_it_is_not_the_first(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    reports._reporters.clear()

    train.report(step=3, samples=64)

    (line,) = lines_of(job / "reports.jsonl")
    assert line["local_rank"] == 1


def test_steps_between_two_lines_are_counted_in_the_next(job: Path) -> None:
    for step in range(5):
        train.report(step=step, samples=10 * (step + 1), step_seconds=0.1, loss=step)
    reports._reporters[str(job / "reports.jsonl")].flush()

    lines = lines_of(job / "reports.jsonl")

    assert lines[0]["steps"] == 1
    assert sum(line["steps"] for line in lines) == 5  # type: ignore[misc]
    total = sum(line["steps"] * line["samples"] for line in lines)  # type: ignore[operator]
    assert total == 150
    assert lines[-1]["step"] == 4


@given(step=NUMBERS, samples=NUMBERS, seconds=NUMBERS, loss=NUMBERS)
def test_whatever_is_reported_the_line_is_json(
    step: object, samples: object, seconds: object, loss: object
) -> None:
    path = Path(f"/tmp/tessera-report-{os.getpid()}")
    reporter = Reporter(str(path))
    try:
        reporter.add(step=step, samples=samples, step_seconds=seconds, loss=loss)  # type: ignore[arg-type]
        reporter.flush()

        (line,) = path.read_text().splitlines()
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    finally:
        reporter.close()
        path.unlink(missing_ok=True)


def test_numbers_of_numpy_are_numbers(job: Path) -> None:
    numpy = pytest.importorskip("numpy")

    train.report(step=numpy.int64(2), samples=numpy.int32(8), loss=numpy.float32("nan"))

    (line,) = lines_of(job / "reports.jsonl")
    assert (line["step"], line["samples"], line["loss"]) == (2, 8.0, None)


def test_reports_within_a_tenth_of_a_second_are_one_line(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    for step in range(2000):
        train.report(step=step, samples=1, step_seconds=0.1, loss=1.0)

    assert len(lines_of(job / "reports.jsonl")) == 1


def test_should_yield_opens_no_file_without_a_notice(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train.should_yield()

    def refuse(*_arguments: object, **_named: object) -> None:
        raise AssertionError("a file was opened")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        assert not any(train.should_yield() for _ in range(1000))


def test_a_report_that_cannot_be_written_is_dropped(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(job / "missing" / "reports.jsonl"))

    train.report(step=1, loss=math.inf)


def test_a_notice_is_read_and_never_withdrawn(job: Path) -> None:
    assert train.should_yield() is False
    assert (job / "listens").exists()

    (job / "control.json").write_text('{"notice": "preempted"}')
    assert train.should_yield() is True
    assert train.notice() == "preempted"

    (job / "control.json").unlink()
    assert train.notice() == "preempted"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"notice": null}'])
def test_a_notice_that_cannot_be_read_is_a_notice(job: Path, content: str) -> None:
    (job / "control.json").write_text(content)

    assert train.notice() == "stop"


def test_secrets_are_read_by_name_and_no_path(job: Path) -> None:
    (job / "outside").write_text("no")

    assert train.secret("token") == "hunter2"
    assert train.secret("missing") is None
    assert train.secret("../outside") is None
    assert train.secret(str(job / "outside")) is None


def test_the_job_knows_its_place(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TESSERA_JOB_ID": "7", "TESSERA_JOB_NAME": "a 'b' ☃", "TESSERA_JOB_ROLE": "worker",
        "TESSERA_JOB_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "3", "NNODES": "4",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "not a number",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)

    found = train.job()

    assert (found.id, found.name, found.role, found.rank) == ("7", "a 'b' ☃", "worker", 1)
    assert (found.world_size, found.node_rank, found.nodes) == (4, 3, 4)
    assert (found.master_addr, found.master_port) == ("10.0.0.1", 29500)


def test_queued_lines_are_written_at_the_end(job: Path) -> None:
    code = "from tessera import train\nfor step in range(9): train.report(step=step, samples=1)"
    source = str(Path(train.__file__).parents[2])

    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": source}
    )

    lines = lines_of(job / "reports.jsonl")
    assert lines[-1]["step"] == 8
    assert sum(line["steps"] for line in lines) == 9  # type: ignore[misc]


def test_metrics_of_all_steps_are_in_the_line(job: Path) -> None:
    odd: dict[str, Any] = {"val/loss": math.nan, "a<b": 3}
    train.report(step=1, loss=2.0, epoch=0.5, total_steps=90, **odd)
    for step in (2, 3):
        train.report(step=step, loss=1.0, lr=0.5, note="no number")
    reports._reporters[str(job / "reports.jsonl")].flush()

    first, second = lines_of(job / "reports.jsonl")
    assert (first["epoch"], first["total_steps"]) == (0.5, 90)
    ((step, _, epoch, values),) = cast("list[Any]", first["points"])
    assert (step, epoch, values) == (1, 0.5, {"loss": 2.0, "val/loss": "nan", "a_b": 3.0})
    assert [(point[0], point[3]) for point in cast("list[Any]", second["points"])] == [
        (2, {"loss": 1.0, "lr": 0.5}),
        (3, {"loss": 1.0, "lr": 0.5}),
    ]


def test_points_of_fast_steps_are_thinned_to_the_length_of_a_line(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MIN_SECONDS", math.inf)
    names: dict[str, Any] = {f"{'n' * 90}{number}": 1.0 / 3 for number in range(200)}
    for step in range(300):
        train.report(step=step, **names)
    reports._reporters[str(job / "reports.jsonl")].flush()

    *_, line = (job / "reports.jsonl").read_bytes().splitlines()
    assert len(line) < reports.LONGEST_LINE
    points = json.loads(line)["points"]
    assert points[-1][0] == 299
    assert all(len(point[3]) == reports.MOST_METRICS for point in points)
