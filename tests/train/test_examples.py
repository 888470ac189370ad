"""The examples really train, alone and together."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def start(script: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
    )


def finish(process: "subprocess.Popen[str]", seconds: float = 60) -> str:
    output, _ = process.communicate(timeout=seconds)
    return output


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss ([0-9.]+)", output)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def gang_of(size: int, script: str, *arguments: str) -> list[str]:
    """Run a gang on this machine; the outputs by rank."""
    port = str(free_port())
    members = [
        start(
            script,
            *arguments,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            NODE_RANK=str(rank),
            NNODES=str(size),
            RANK=str(rank),
            WORLD_SIZE=str(size),
        )
        for rank in reversed(range(size))
    ]
    outputs = [finish(member) for member in reversed(members)]
    assert [member.returncode for member in members] == [0] * size, outputs
    return outputs


def weights(output: str) -> str:
    return output.rpartition("weights ")[2].strip()


def test_the_digits_are_learnt_and_reported(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    reports = tmp_path / "reports.jsonl"
    arguments = ["--steps=300", "--batch=128", "--hidden=64"]
    places = {
        "TESSERA_JOB_REPORTS": str(reports),
        "TESSERA_JOB_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
    }

    output = finish(start("digits_numpy.py", *arguments, **places))

    assert len(losses(output)) == 300
    assert losses(output)[-1] < 0.5 * losses(output)[0]
    assert float(output.split()[-1]) > 0.6
    assert '"step":299' in reports.read_text()


def test_the_digits_go_on_to_the_same_bits_when_they_were_asked_to_leave(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    control = tmp_path / "control.json"
    arguments = ["--batch=64", "--hidden=32"]
    kept = {"TESSERA_JOB_CHECKPOINT_DIR": str(tmp_path / "kept")}
    first = start(
        "digits_numpy.py", "--steps=1000000", *arguments, TESSERA_JOB_CONTROL=str(control), **kept
    )
    assert first.stdout
    while "step 3 " not in first.stdout.readline():
        pass

    control.write_text('{"notice": "preempted"}')
    saved = int(re.findall(r"saved step (\d+)", finish(first))[0])
    length = f"--steps={saved + 5}"
    second = finish(start("digits_numpy.py", length, *arguments, **kept))
    other = {"TESSERA_JOB_CHECKPOINT_DIR": str(tmp_path / "other")}
    undisturbed = finish(start("digits_numpy.py", length, *arguments, **other))

    assert first.returncode == 0
    assert second.startswith(f"step {saved} ")
    assert losses(second) == losses(undisturbed)[-5:]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_gang_of_any_size_trains_to_the_same_weights_in_every_rank(size: int) -> None:
    pytest.importorskip("numpy")

    outputs = gang_of(size, "gang_allreduce_numpy.py", "--steps=60", "--batch=96")

    assert len({weights(output) for output in outputs}) == 1
    assert losses(outputs[0])[-1] < 0.8 * losses(outputs[0])[0]


def test_a_gang_whose_member_dies_ends_and_says_so() -> None:
    pytest.importorskip("numpy")
    port = str(free_port())
    members = [
        start(
            "gang_allreduce_numpy.py",
            "--steps=1000000",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            NODE_RANK=str(rank),
            NNODES="2",
        )
        for rank in range(2)
    ]
    assert members[0].stdout
    deadline = time.monotonic() + 30
    while "step 10 " not in members[0].stdout.readline():
        assert time.monotonic() < deadline

    members[1].send_signal(signal.SIGKILL)
    output = finish(members[0])
    finish(members[1])

    assert members[0].returncode == 1
    assert "the gang is broken" in output


@pytest.mark.torch
def test_ddp_trains_the_same_weights_in_every_rank() -> None:
    pytest.importorskip("torch")

    outputs = gang_of(2, "ddp_torch.py", "--steps=40")

    assert len({weights(output) for output in outputs}) == 1
    assert losses(outputs[0])[-1] < losses(outputs[0])[0]
