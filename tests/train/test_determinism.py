"""What stands against the same bits on devices of several types is found, told and refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tessera import train
from tests.support.elastic_training import events

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import json, sys, torch
from torch import nn
from tessera import train
from tessera.train.determinism import NotDeterministicError

class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1, 3))
    def forward(self, inputs):
        return nn.functional.conv1d(inputs.unsqueeze(1), self.weight).mean(dim=2)

layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
models = {
    "transformer": nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
    "convolution": nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 3), nn.BatchNorm1d(1)),
    "recurrent": nn.GRU(4, 2, batch_first=True),
    "hidden": Hidden(),
}
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
found = {}
for case in sys.argv[1:]:
    level, name = case.split(":")
    model = models[name]
    feed = train.Feed(data, batch_size=2, draws=False)
    try:
        elastic = train.LogicalWorkers(
            model, torch.optim.SGD(model.parameters(), lr=0.1), feed, workers=2, level=level,
            saver=train.checkpoints.Saver(f"{level}-{name}"),
        )
        for step in elastic.steps(3):
            elastic.step(lambda batch: model(batch[0].unsqueeze(1)).mean()
                         if name == "transformer" else model(batch[0]).mean())
        found[name] = "trained"
    except NotDeterministicError as error:
        found[name] = str(error)
print(json.dumps(found))
"""
PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> None:
    pytest.importorskip("torch")


def tried(directory: Path, *cases: str, **environment: str) -> dict[str, Any]:
    """What became of models under levels; all in one process, whose start takes longest."""
    source = str(Path(train.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *cases],
        env={
            **{name: value for name, value in os.environ.items() if name not in PORTABLE},
            "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
            "TESSERA_JOB_REPORTS": str(directory / "reports.jsonl"),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_models_without_tuned_kernels_train_under_d2_and_others_are_refused_with_reasons(
    tmp_path: Path,
) -> None:
    models = ("transformer", "convolution", "recurrent", "hidden")

    found = tried(tmp_path, *(f"D2:{name}" for name in models), **PORTABLE)

    assert found["transformer"] == "trained"
    assert "1 is a Conv1d, whose kernels depend on the device" in found["convolution"]
    assert "2 is a BatchNorm1d" in found["convolution"]
    assert "the model is a GRU" in found["recurrent"]
    assert "the operation convolution depends on the device" in found["hidden"]
    told = events(tmp_path, "determinism")
    assert [one["refused"] for one in told] == [False, True, True, False, True]
    assert told[0]["obstacles"] == []
    assert len(told[1]["obstacles"]) == 2
    assert told[-1]["obstacles"][0] == "the operation convolution depends on the device"


def test_d2_is_refused_where_own_vector_units_are_in_use_and_d1_tells_what_is_in_its_way(
    tmp_path: Path,
) -> None:
    found = tried(tmp_path, "D2:transformer", "D1:convolution", MKL_CBWR="COMPATIBLE")

    assert "vector instructions specific to this processor" in found["transformer"]
    assert "ATEN_CPU_CAPABILITY=default" in found["transformer"]
    assert found["convolution"] == "trained"
    told = events(tmp_path, "determinism")
    assert [(one["level"], one["refused"]) for one in told] == [("D2", True), ("D1", False)]
    assert [len(one["obstacles"]) for one in told] == [1, 3]
