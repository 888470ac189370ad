"""The loop wrapper: it resumes, saves, reads notices and leaves between two steps."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tessera import train
from tessera.train import reports
from tests.support.elastic_training import be_rank, events, together, write

SOURCE = Path(train.__file__).parents[2]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESSERA_JOB_CONTROL", str(tmp_path / "control.json"))
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(tmp_path / "reports.jsonl"))
    monkeypatch.setenv("TESSERA_JOB_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path


class Training:
    """A sum whose value shows which steps were done."""

    def __init__(self, steps: int, **how: Any) -> None:
        self.done: list[int] = []
        self.loop = train.Loop(steps, save=lambda: list(self.done), load=self.done.extend, **how)

    def run(self, *, leave_in: int = -1, directory: Path | None = None) -> None:
        for step in self.loop:
            if step == leave_in and directory:
                write(directory / "control.json", {"notice": "preempted"})
            self.loop.report(loss=1.0 / (step + 1), samples=8)
            self.done.append(step)


def test_a_loop_continues_after_the_step_of_its_notice(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Training(10)
    first.run(leave_in=3, directory=job)
    monkeypatch.setenv("TESSERA_JOB_CONTROL", str(job / "control-of-attempt-2.json"))
    second = Training(10)
    second.run()

    assert first.done == [0, 1, 2, 3]
    assert (first.loop.left, second.loop.left) == (True, False)
    assert second.done == list(range(10))
    assert [told["step"] for told in events(job, "checkpoint")] == [4, 10]


def test_a_killed_loop_repeats_at_most_the_steps_since_its_last_checkpoint(job: Path) -> None:
    first = Training(20, every=5)
    for step in first.loop:
        if step == 12:
            break  # nothing is saved on the way out
        first.done.append(step)
    second = Training(20, every=5)
    second.run()

    assert second.done == list(range(20))
    assert [told["step"] for told in events(job, "resumed")] == [10]


def test_a_loop_leaves_when_the_others_get_a_notice(job: Path) -> None:
    heard: list[bool] = []

    def agree(asked: bool) -> bool:
        heard.append(asked)
        return len(heard) == 4

    training = Training(10, agree=agree)
    training.run()

    assert training.done == [0, 1, 2, 3]
    assert heard == [False] * 4
    assert training.loop.left


def test_a_throttle_of_zero_stops_a_loop_until_its_notice(job: Path) -> None:
    training = Training(1 << 30)
    asking = threading.Timer(0.3, write, (job / "control.json", {"throttle": 0, "notice": "stop"}))
    for step in training.loop:
        if step == 2:
            write(job / "control.json", {"throttle": 0})
            asking.start()
        training.done.append(step)

    assert training.done == [0, 1, 2, 3]
    assert [told["step"] for told in events(job, "checkpoint")] == [4]


def test_every_step_is_reported_with_its_seconds(job: Path) -> None:
    Training(5).run()
    reports._reporters[str(job / "reports.jsonl")].flush()

    lines = [json.loads(line) for line in (job / "reports.jsonl").read_text().splitlines()]
    told = [line for line in lines if "event" not in line]
    assert sum(line["steps"] for line in told) == 5
    assert told[-1]["step"] == 4
    assert all(line["step_seconds"] >= 0 for line in told)


def train_by_ddp(directory: Path, rank: int, port: int) -> None:
    be_rank(rank, 2, port, directory)
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save() -> Any:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    loop, seen = train.Loop(12, save=save, load=load), []
    for step in loop:
        if step == 5 and rank == 1:
            (directory / "control1.json").write_text('{"notice": "resize"}')
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(step)
    found = [float(one) for value in model.parameters() for one in value.reshape(-1)]
    (directory / f"rank{rank}.json").write_text(json.dumps([seen, found]))
    distributed.destroy_process_group()


def train_by_ddp_and_leave(directory: Path, rank: int, port: int) -> None:
    """As on two nodes: each has a control file of its own, and one is told first."""
    be_rank(rank, 2, port, directory)
    own = directory / f"control{rank}.json"
    os.environ["TESSERA_JOB_CONTROL"] = str(own)
    be = globals()["be_rank"]
    globals()["be_rank"] = lambda *_: None
    try:
        train_by_ddp(directory, rank, port)
    finally:
        globals()["be_rank"] = be


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_processes_of_ddp_leave_after_the_same_step_and_reach_the_same_weights(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for directory in (whole, parts):
        directory.mkdir()

    assert together(train_by_ddp, 2, whole) == [0, 0]
    assert together(train_by_ddp_and_leave, 2, parts) == [0, 0]
    seen = [json.loads((parts / f"rank{rank}.json").read_text())[0] for rank in range(2)]
    assert together(train_by_ddp, 2, parts) == [0, 0]

    assert seen == [list(range(6))] * 2
    for rank in range(2):
        after, weights = json.loads((parts / f"rank{rank}.json").read_text())
        assert after == list(range(6, 12))
        assert weights == json.loads((whole / f"rank{rank}.json").read_text())[1]


def end_beside_a_busy_thread(directory: Path, rank: int, port: int) -> None:
    """Free model and group while a thread of the group is still at what was exchanged."""
    be_rank(rank, 2, port, directory)
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", rank=rank, world_size=2)
    store = distributed.distributed_c10d._get_default_store()
    busy, freed = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        busy.set()
        freed.wait()

    def train_once() -> None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        for _ in train.Loop(1, save=dict, load=lambda _: None):
            model(torch.ones(2, 4)).sum().backward()
        if rank == 1:
            store.wait(["held"])
        work = distributed.all_reduce(torch.ones(1), async_op=True)
        if rank == 0:
            work.get_future().add_done_callback(hold)
            store.set("held", "")
            busy.wait()
        else:
            work.wait()
        distributed.destroy_process_group()

    train_once()
    freed.set()


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_a_training_by_ddp_ends_though_a_thread_of_its_group_is_late(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    assert together(end_beside_a_busy_thread, 2, tmp_path) == [0, 0]


UNAWARE = """
import os, signal, sys, time
def leave(*_):
    os.write(1, b"saved by hand\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"works\\n")
time.sleep(600)
"""


def launch(code: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tessera.train.launch", "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_script_without_the_library_gets_sigterm(tmp_path: Path) -> None:
    launcher = launch(UNAWARE, TESSERA_JOB_LAYOUT="[[1, 1]]", TESSERA_JOB_RUN_DIR=str(tmp_path))
    assert launcher.stdout
    assert [launcher.stdout.readline() for _ in range(2)] == ["works\n"] * 2

    launcher.send_signal(signal.SIGTERM)
    output, _ = launcher.communicate(timeout=60)

    assert output == "saved by hand\n" * 2
    assert launcher.returncode == 0
    assert not (tmp_path / "listens").exists()


SAY = """
import os
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TESSERA_JOB_PROCESS_DEVICE")
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
"""


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [
        ("", ["2 0 4 2 0", "3 1 4 2 1"]),
        ("[[3], [1]]", ["1 0 2 1 0"]),
        ("[[1], [1, 1, 1, 1]]", ["1 0 5 4 0", "2 1 5 4 0", "3 2 5 4 1", "4 3 5 4 1"]),
        ("[[1], [1], [2]]", ["2 0 4 2 0", "3 1 4 2 1"]),  # of another gang
    ],
)
def test_a_member_starts_the_processes_of_its_layout(layout: str, wanted: list[str]) -> None:
    launcher = launch(
        SAY,
        TESSERA_JOB_LAYOUT=layout,
        NNODES="2",
        NODE_RANK="1",
        WORLD_SIZE="2",
        TESSERA_JOB_DEVICE_COUNT="2",
    )
    output, _ = launcher.communicate(timeout=60)

    assert sorted(output.splitlines()) == wanted
    assert launcher.returncode == 0


FAIL = """
import os, signal, time
if os.environ["LOCAL_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def test_when_one_process_fails_the_others_are_ended() -> None:
    began = time.monotonic()
    launcher = launch(FAIL, TESSERA_JOB_DEVICE_COUNT="3")

    launcher.communicate(timeout=60)

    assert launcher.returncode == 128 + signal.SIGKILL
    assert time.monotonic() - began < 60
