"""Kills at any instant, full disks, damage and jumping clocks cost nothing that was saved."""

import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera import train
from tessera.train import checkpoints, reports
from tessera.train.checkpoints import CheckpointStore
from tests.support.elastic_training import events, write

SOURCE = str(Path(train.__file__).parents[2])

SAVING = """
import sys
from tessera.train.checkpoints import CheckpointStore

store, found = CheckpointStore(sys.argv[1], keep=2), None
found = store.load()
assert not store.broken, store.broken
step = found[0].step if found else 0
print(step, flush=True)
while True:
    step += 1
    store.save(step, {"step": step, "weights": bytes([step % 256]) * 300_000})
    print(step, flush=True)
"""


def test_whenever_a_save_is_killed_the_last_one_that_was_done_is_whole(tmp_path: Path) -> None:
    chance = random.Random(5)
    done = 0
    for _ in range(8):
        saving = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(tmp_path)],
            env={"PYTHONPATH": SOURCE},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert saving.stdout
        begun = int(saving.stdout.readline())
        assert begun >= done  # nothing that was once done is lost
        saving.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))  # the instant is what is drawn here
        saving.kill()
        rest, _ = saving.communicate(timeout=60)
        done = max([begun + 1, *map(int, rest.split())])

    store = CheckpointStore(str(tmp_path))
    found = store.load()

    assert found is not None
    assert found[0].step in {done, done + 1}
    assert found[1]["weights"] == bytes([found[0].step % 256]) * 300_000
    assert store.broken == []


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TESSERA_JOB_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(tmp_path / "reports.jsonl"))
    monkeypatch.setenv("TESSERA_JOB_CONTROL", str(tmp_path / "control.json"))
    return tmp_path


def check_that_training_outlives_it(job: Path, *, larger: Any) -> None:
    """The larger state is not taken, said so, and the one before is what is gone on from."""
    assert train.checkpoint({"text": "small"}, step=1)

    assert not train.checkpoint(larger, step=2)

    assert train.resume() == {"text": "small"}
    (failed,) = events(job, "checkpoint-failed")
    assert failed["step"] == 2
    assert failed["reason"]
    assert not list((job / "checkpoints").glob(".*"))


@pytest.fixture
def no_large_files() -> Iterator[None]:
    """No file of this process becomes larger than 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("no_large_files")
def test_a_file_that_may_not_grow_leaves_the_checkpoint_before(job: Path) -> None:
    check_that_training_outlives_it(job, larger={"weights": b"x" * 200_000})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    place = tmp_path / "checkpoints"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False, timeout=20)
    except OSError as error:
        pytest.skip(f"no small disk can be made: {error}")
    if done.returncode:
        pytest.skip(f"no small disk can be made: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=20)


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_is_really_full_leaves_the_checkpoint_before(job: Path) -> None:
    check_that_training_outlives_it(job, larger={"weights": b"x" * 400_000})
    assert "space" in events(job, "checkpoint-failed")[0]["reason"]


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_loop_continues_from_the_checkpoint_before_a_damaged_one_and_reports_it(
    damage: str, job: Path
) -> None:
    done: list[int] = []

    def loop(steps: int) -> train.Loop:
        done.clear()
        return train.Loop(steps, save=lambda: list(done), load=done.extend, every=5)

    for step in loop(20):
        done += [step]
    state = job / "checkpoints" / "step-000000000020" / checkpoints.STATE_FILE
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 4
    state.write_bytes(content[:-3] if damage == "cut" else content)

    for step in loop(30):
        done += [step]

    assert done == list(range(30))
    (broken,) = events(job, "checkpoint-broken")
    assert broken["path"] == "step-000000000020"
    assert "hash" in broken["reason"]
    assert events(job, "resumed")[-1]["step"] == 15


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_changes_neither_pace_nor_order(
    jump: float, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    saved: list[int] = []
    loop = train.Loop(6, save=lambda: list(saved), load=saved.extend, every=2)
    for step in loop:
        if step == 3:
            monkeypatch.setattr(time, "time", lambda: real() + jump)
            write(job / "control.json", {"throttle": 0.5})
        saved.append(step)
        loop.report(samples=4, loss=1.0)
    reports._reporters[str(job / "reports.jsonl")].flush()

    assert train.resume()["step"] == 6
    assert [told["step"] for told in events(job, "checkpoint")] == [2, 4, 6]
    lines = [json.loads(line) for line in (job / "reports.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "event" not in line]
    assert sum(line["steps"] for line in steps) == 6
    assert all(0 <= line["step_seconds"] < 60 for line in steps)
