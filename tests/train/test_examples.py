"""The examples really train, alone and together."""

import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import httpx
import pytest
import yaml

from scheduling.core.jobspec.parsing import parse
from tessera.cli import upload
from tessera.client import Client
from tests.support.elastic_training import events

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def start(script: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "PYTHONFAULTHANDLER": "1",
            **environment,
        },
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", seconds: float = 100) -> str:
    """What it has printed; one that hangs, and what it has started, say where."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        output, _ = process.communicate(timeout=10)
        raise AssertionError(f"hung:\n{output}") from None
    return output


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss ([0-9.]+)", output)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def gang_of(size: int, script: str, *arguments: str, **environment: str) -> list[str]:
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
            **environment,
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


def kept_in(directory: Path) -> dict[str, str]:
    return {
        "TESSERA_JOB_CHECKPOINT_DIR": str(directory / "checkpoints"),
        "TESSERA_JOB_REPORTS": str(directory / "reports.jsonl"),
    }


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_ddp_trains_the_same_weights_in_every_rank_and_goes_on_to_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()

    outputs = gang_of(2, "ddp_torch.py", "--steps=25", **kept_in(tmp_path / "whole"))
    gang_of(2, "ddp_torch.py", "--steps=9", **kept_in(tmp_path / "parts"))
    gone_on = gang_of(2, "ddp_torch.py", "--steps=25", **kept_in(tmp_path / "parts"))

    assert len({weights(output) for output in outputs}) == 1
    assert losses(outputs[0])[-1] < losses(outputs[0])[0]
    assert "step 0 " not in gone_on[0]
    assert weights(gone_on[0]) == weights(outputs[0])


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_the_pictures_are_learnt_to_the_same_bits_by_one_process_and_by_three(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    places = [tmp_path / "one", tmp_path / "three"]
    for place in places:
        place.mkdir()

    length = ["--steps=24", "--every=8"]
    alone = finish(start("pictures_torch.py", *length, **kept_in(places[0])), 300)
    three = launch("pictures_torch.py", "[[2, 1], [1]]", *length, **kept_in(places[1]))
    launched = finish(three, 300)

    assert float(alone.split()[-1]) > 0.6
    assert launched.splitlines()[-1] == alone.splitlines()[-1]
    hashes = [
        [(told["step"], told["sha256"]) for told in events(place, "checkpoint")]
        for place in places
    ]
    assert hashes[0] == hashes[1]
    assert [step for step, _ in hashes[0]] == [8, 16, 24]


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_the_gpt_learns_to_add_while_its_batch_changes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "batch.json").write_text('{"batch": 128, "accumulation": 2}')
    told = {"TESSERA_JOB_BATCH": str(tmp_path / "batch.json"), **kept_in(tmp_path)}

    output = finish(start("gpt_torch.py", "--progress=80", **told), 300)

    assert " batch 128 " in output
    assert float(output.split()[-1]) < 0.8 * losses(output)[0]
    assert events(tmp_path, "batch")[0]["accumulation"] == 2


def launch(
    script: str, layout: str, *arguments: str, **environment: str
) -> "subprocess.Popen[str]":
    """Start an example as both members of a gang of two would, on this machine."""
    command = [sys.executable, "-m", "tessera.train.launch", str(EXAMPLES / script), *arguments]
    members = " & ".join(f"NODE_RANK={number} {shlex.join(command)}" for number in (1, 0))
    return subprocess.Popen(
        ["/bin/sh", "-c", f"{members} && wait"],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "NNODES": "2",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "TESSERA_JOB_LAYOUT": layout,
            **environment,
        },
    )


# -- their specifications ------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_the_specification_of_an_example_is_accepted_and_names_its_script(name: str) -> None:
    document = yaml.safe_load((EXAMPLES / name).read_text())

    spec = parse(document)
    scripts = upload.scripts_of(document["roles"], EXAMPLES)

    assert spec.roles
    assert [script.stem.split("_")[0] for script in scripts] == [name.partition(".")[0]]


def test_an_example_is_packed_and_uploaded() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(201, json={"sha256": "a" * 64})

    with Client("http://portal", transport=httpx.MockTransport(answer)) as client:
        stored = client.upload("digits.tar.gz", upload.packed([EXAMPLES / "digits_numpy.py"]))

    assert stored == "a" * 64
    with tarfile.open(fileobj=io.BytesIO(asked[0].content)) as archive:
        assert archive.getnames() == ["digits_numpy.py"]
    assert asked[0].headers["content-type"] == "application/gzip"
    assert asked[0].url.params["name"] == "digits.tar.gz"


@pytest.mark.torch
def test_the_hybrid_example_trains_on_four_processes_and_resumes_on_one(tmp_path: Path) -> None:
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": "4",
        "TESSERA_JOB_CHECKPOINT_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    port = str(free_port())
    ranks = [
        start("hybrid_torch.py", "--steps=21", RANK=str(rank), MASTER_PORT=port, **environment)
        for rank in range(4)
    ]
    outputs = [finish(process, 200) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 4, outputs
    found = losses(outputs[0])
    assert len(found) == 2
    assert found[1] < 0.7 * found[0]

    plan = {
        "version": 1,
        "stages": [{"first": 0, "last": 6, "data": 1, "tensor": 1}],
        "micro_batches": 1,
        "batch": 32,
    }
    environment |= {"WORLD_SIZE": "1", "RANK": "0", "TESSERA_JOB_PLAN": json.dumps(plan)}
    alone = start("hybrid_torch.py", "--steps=41", MASTER_PORT=str(free_port()), **environment)
    output = finish(alone, 200)
    assert alone.returncode == 0, output
    (last,) = losses(output)
    assert last < found[1]
