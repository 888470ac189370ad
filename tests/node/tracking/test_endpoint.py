"""A job reaches the endpoint of its own run, at every level, and nobody else does."""

import errno
import json
import os
import signal
import socket
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from session import (
    ALICE,
    ORDINARY,
    PLACES,
    ROOT,
    Session,
    make_spec,
    node,
    wait_until,
)

from tessera import protocol
from tessera.isolation import NONE, OWN_NETWORK, SHARED_NETWORK, USER
from tessera.node import kernel
from tessera.node.tracking import endpoint
from tessera.node.tracking.endpoint import OWN_PORT
from tessera.protocol import RunSpec

ALL_PLACES = [(NONE, ROOT), (NONE, ORDINARY), *PLACES]
CALL = """
import json, os, urllib.request
def call(path, **body):
    request = urllib.request.Request(
        os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/" + path,
        json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request, timeout=30).read())
run = call("runs/create", experiment_id="0", run_name="raw")["run"]["info"]["run_id"]
call("runs/log-batch", run_id=run, params=[{"key": "lr", "value": "0.1"}],
     metrics=[{"key": "loss", "value": 0.25, "step": 7, "timestamp": 1000}])
print(os.environ["MLFLOW_TRACKING_URI"])
"""


def script(text: str, python: str = "python3") -> str:
    return f"{python} - <<'END'\n{text}\nEND"


def lines(session: Session, spec: RunSpec) -> list[dict[str, Any]]:
    content = session.bytes_of(spec, protocol.STREAM_REPORTS)
    return [json.loads(line) for line in content.splitlines()]


def points(session: Session, spec: RunSpec) -> list[Any]:
    return [point for line in lines(session, spec) for point in line.get("points", [])]


@pytest.mark.parametrize("network", [OWN_NETWORK, SHARED_NETWORK])
@pytest.mark.parametrize(("level", "account"), ALL_PLACES)
def test_a_job_reports_by_plain_http(level: str, account: str, network: str) -> None:
    if level == NONE and network == OWN_NETWORK:
        pytest.skip("a job without isolation has the network of the node")
    with node(level, account) as session:
        uid = ALICE if level == USER else None
        spec = make_spec(script(CALL), uid=uid, network=network)
        session.start(spec)
        status = session.exit_of(spec)
        output, found = session.log(spec), lines(session, spec)

    assert status.exit is not None
    assert status.exit.code == 0, output
    assert status.network == network
    assert (output.strip() == f"http://127.0.0.1:{OWN_PORT}") == (network == OWN_NETWORK)
    assert [line["points"] for line in found if "points" in line] == [
        [[7, 1.0, None, {"loss": 0.25}]]
    ]
    assert {"lr": "0.1"} in [line["params"] for line in found if "params" in line]
    assert {line["name"] for line in found if "name" in line} == {"raw"}


def test_another_process_of_the_node_is_refused(plain: Session) -> None:
    spec = make_spec('echo "$MLFLOW_TRACKING_URI"; sleep 60')
    plain.start(spec)
    address = wait_until(lambda: plain.log(spec).strip(), "the address")
    port = int(address.rpartition(":")[2])

    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(b"GET /api/2.0/mlflow/experiments/search HTTP/1.1\r\n\r\n")
        try:
            answer = line.recv(1000)
        except ConnectionResetError:
            answer = b""
    plain.ask("stop", run_id=spec.run_id, grace_seconds=0, reason="user")
    plain.exit_of(spec)

    assert answer == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_job_with_its_own_server_keeps_it(plain: Session) -> None:
    spec = make_spec(
        'echo "[$MLFLOW_TRACKING_URI]"', env={"MLFLOW_TRACKING_URI": "http://own:5000"}
    )
    plain.start(spec)
    plain.exit_of(spec)

    assert plain.log(spec) == "[http://own:5000]\n"


def test_clients_that_send_nothing_or_too_much_do_not_delay_the_end(plain: Session) -> None:
    text = """
import os, socket, threading
port = int(os.environ["MLFLOW_TRACKING_URI"].rpartition(":")[2])
head = b"POST /api/2.0/mlflow/runs/create HTTP/1.1\\r\\nContent-Length: 900000\\r\\n\\r\\n"
open_lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
for line in open_lines:
    try:
        line.sendall(head + b"x" * 1000)
    except OSError:
        pass
print("done", flush=True)
"""
    spec = make_spec(script(text))
    plain.start(spec)
    status = plain.exit_of(spec, seconds=60)

    assert status.exit is not None
    assert (status.exit.code, plain.log(spec)) == (0, "done\n")
    assert lines(plain, spec) == []


CLIENT = """
import mlflow
mlflow.set_experiment("digits")
with mlflow.start_run(run_name="real") as run:
    mlflow.log_params({"lr": 0.1, "depth": 4})
    mlflow.log_metric("loss", 0.5, step=1)
    mlflow.log_metrics({"accuracy": 0.25, "f1": 0.75}, step=2)
    mlflow.set_tag("stage", "first")
    try:
        mlflow.log_text("x", "file.txt")
    except Exception as error:
        print("refused:", error)
again = mlflow.get_run(run.info.run_id)
print(sorted(again.data.params.items()), again.info.status)
print(len(mlflow.MlflowClient().search_runs([again.info.experiment_id])))
"""


def test_the_real_client_of_mlflow_works_unchanged(plain: Session) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the client of MLflow is not installed")
    place = Path(mlflow.__file__).parents[1]
    spec = make_spec(script(CLIENT, sys.executable), env={"PYTHONPATH": str(place)})
    plain.start(spec)
    status = plain.exit_of(spec, seconds=180)
    output = plain.log(spec)

    assert status.exit is not None
    assert status.exit.code == 0, output
    assert "tessera-artifacts-are-not-supported" in output
    assert "[('depth', '4'), ('lr', '0.1')] FINISHED\n1\n" in output
    named = [
        (step, name, value)
        for step, _, _, found in points(plain, spec)
        for name, value in found.items()
    ]
    assert named == [(1, "loss", 0.5), (2, "accuracy", 0.25), (2, "f1", 0.75)]
    found = lines(plain, spec)
    assert found[-1]["status"] == "finished"
    assert {"lr": "0.1", "depth": "4"} in [line.get("params") for line in found]


TRAINER = """
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

class Line(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.weight = torch.nn.Parameter(torch.zeros(1))
    def forward(self, x, labels=None):
        return {"loss": ((x * self.weight - labels) ** 2).mean(), "logits": x * self.weight}

rows = [{"x": torch.tensor([float(n)]), "labels": torch.tensor([2.0 * n])} for n in range(8)]
options = TrainingArguments(
    output_dir="out", report_to="mlflow", run_name="trainer", max_steps=6, logging_steps=2,
    per_device_train_batch_size=4, learning_rate=0.01, save_strategy="no", use_cpu=True,
    disable_tqdm=True)
Trainer(model=Line(PretrainedConfig()), args=options, train_dataset=rows).train()
"""


@pytest.mark.torch
def test_the_trainer_of_hugging_face_reports_unchanged(plain: Session) -> None:
    for package in ("torch", "transformers", "accelerate", "mlflow"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    spec = make_spec(
        script(TRAINER, sys.executable),
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if "-packages" in path)},
    )
    plain.start(spec)
    status = plain.exit_of(spec, seconds=300)

    assert status.exit is not None
    assert status.exit.code == 0, plain.log(spec)
    losses = {step: found["loss"] for step, _, _, found in points(plain, spec) if "loss" in found}
    assert list(losses) == [2, 4, 6]
    assert losses[6] < losses[2]
    found = lines(plain, spec)
    assert {"trainer"} == {line["name"] for line in found if line.get("name")}
    parameters = {name: value for line in found for name, value in line.get("params", {}).items()}
    assert parameters["max_steps"] == "6"
    assert found[-1]["status"] == "finished"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize("may_enter", [True, False])
def test_root_listens_in_the_network_of_a_job_by_a_child_only_if_it_has_to(
    monkeypatch: pytest.MonkeyPatch, *, may_enter: bool
) -> None:
    forks: list[int] = []
    fork, inside = os.fork, kernel.inside_network
    pid = kernel.fork_into(kernel.CLONE_NEWNET)
    if pid == 0:
        while True:
            signal.pause()

    def counted() -> int:
        forks.append(1)
        return fork()

    def entered(space: int) -> AbstractContextManager[None]:
        if may_enter:
            return inside(space)
        raise OSError(errno.EPERM, "setns")

    monkeypatch.setattr(os, "fork", counted)
    monkeypatch.setattr(kernel, "inside_network", entered)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    try:
        found = endpoint.listen_in(pid)
        assert found is not None
        with found:
            assert found.getsockname() == ("127.0.0.1", OWN_PORT)
            table = Path(f"/proc/{pid}/net/tcp").read_text()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    assert f"0100007F:{OWN_PORT:04X}" in table
    assert len(forks) == (0 if may_enter else 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
