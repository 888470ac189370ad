"""Control files: notices are read at once, settings when they change, both validated."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tessera import train
from tessera.train import control
from tessera.train.control import Settings


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESSERA_JOB_CONTROL", str(tmp_path / "control.json"))
    monkeypatch.setenv("TESSERA_JOB_BATCH", str(tmp_path / "batch.json"))
    monkeypatch.delenv("TESSERA_JOB_LAYOUT", raising=False)
    return tmp_path


def write(path: Path, content: object) -> None:
    part = path.with_suffix(".part")
    part.write_text(content if isinstance(content, str) else json.dumps(content))
    part.replace(path)


def test_without_files_there_are_no_settings(job: Path) -> None:
    assert control.settings() == Settings(None, 1, 1.0, None)


def test_settings_are_read_again_when_they_change(job: Path) -> None:
    write(job / "batch.json", {"batch": 64})
    before = control.settings()
    write(job / "batch.json", {"batch": 128, "accumulation": 2, "layout": [[3], [1]]})

    assert before == Settings(batch=64)
    assert control.settings() == Settings(batch=128, accumulation=2, layout=[[3], [1]])
    assert not train.should_yield()


def test_a_notice_is_acknowledged_once(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = job / "reports.jsonl"
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(reports))
    assert not train.should_yield()

    write(job / "control.json", {"notice": "preempt", "grace_seconds": 30, "at": 0})
    assert train.should_yield()
    assert train.should_yield()

    (line,) = [json.loads(line) for line in reports.read_text().splitlines()]
    assert (line["event"], line["reason"]) == ("acknowledged", "preempt")


def test_settings_may_stand_beside_a_notice_and_are_none(job: Path) -> None:
    write(job / "control.json", {"batch": 32, "throttle": 0.5})
    assert control.settings() == Settings(batch=32, throttle=0.5)
    assert not train.should_yield()

    write(job / "batch.json", {"batch": 48})
    write(job / "control.json", {"notice": "preempted", "batch": 32, "throttle": 0.25})

    assert control.settings() == Settings(batch=48, throttle=0.25)
    assert train.notice() == "preempted"


@pytest.mark.parametrize(
    "content",
    [
        "", "[", "[]", "null", "7", '{"batch": 0}', '{"batch": true}', '{"batch": 1e30}',
        '{"throttle": -1}', '{"throttle": 2}', '{"throttle": "fast"}', '{"layout": []}',
        '{"layout": [[]]}', '{"layout": [[1], [-1]]}', '{"layout": [[1.5]]}',
        '{"layout": [3, 1]}', '{"accumulation": 0}', "[" * 100_000,
    ],
)  # fmt: skip
def test_values_out_of_range_count_as_missing(job: Path, content: str) -> None:
    write(job / "batch.json", content)

    assert control.settings() == Settings()
    assert control.starting_layout() is None


def test_nothing_is_opened_while_nothing_changes(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(job / "batch.json", {"batch": 64})
    control.settings()

    def refuse(*_arguments: object, **_named: object) -> None:
        raise AssertionError("a file was opened")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        assert all(control.settings().batch == 64 for _ in range(100))


def test_the_layout_of_the_file_wins_over_that_of_the_environment(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_JOB_LAYOUT", "[[2, 2]]")
    assert control.starting_layout() == [[2, 2]]

    write(job / "batch.json", {"layout": [[4]]})

    assert control.starting_layout() == [[4]]


class Clock:
    """A clock that only sleeping advances; it calls a function meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Any = None) -> None:
        self.now, self._then = 1000.0, then
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._then and self.now > 1002:
            self._then()


def test_a_throttle_leaves_a_part_of_the_time(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    write(job / "batch.json", {"throttle": 0.25})

    assert control.pause(0.5) == pytest.approx(1.5)


def test_without_a_throttle_nothing_waits(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)

    assert control.pause(0.5) == 0.0


@pytest.mark.parametrize(
    ("name", "content"),
    [("batch.json", {"throttle": 1}), ("control.json", {"notice": "preempted"})],
)
def test_a_throttled_job_continues_when_it_is_released_or_preempted(
    name: str, content: object, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, then=lambda: write(job / name, content))
    write(job / "batch.json", {"throttle": 0})

    assert 2 <= control.pause(0.001) < 3


def test_a_job_is_held_for_real(job: Path) -> None:
    write(job / "batch.json", {"throttle": 0})
    waited: list[float] = []
    held = threading.Thread(target=lambda: waited.append(control.pause(0.001)))
    held.start()
    held.join(0.3)
    still = held.is_alive()

    write(job / "batch.json", {})
    held.join(30)

    assert still
    assert waited[0] >= 0.3
