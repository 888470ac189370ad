"""Everything that a checkpoint holds is needed: without any one part training goes on otherwise.

The parts are taken from real checkpoints, so that a state which is captured from tomorrow on is
asked for as well. What has not changed since the training began cannot be missed and is passed
over; what has must leave a trace in the next checkpoint, or be refused.
"""

import json
from pathlib import Path

import pytest

from tests.support.elastic_training import together

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

NEEDED = {
    "logical": {
        *("step", "parameters", "optimizer", "scheduler", "extra"),
        *("contexts/python", "contexts/numpy", "contexts/torch", "contexts/buffers"),
        *("shared/python", "shared/numpy", "shared/torch"),
    },
    "adaptive": {
        *("done", "samples", "progress", "noise", "batch", "model", "optimizer", "scheduler"),
        *("chance/python", "chance/numpy", "chance/torch"),
    },
}
"""The parts of a checkpoint that change while a model trains on a processor."""


@pytest.mark.parametrize("kind", NEEDED)
def test_no_part_of_a_checkpoint_could_be_left_out(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = tmp_path / "found.json"

    codes = together(_try_all, 1, kind, tmp_path, found, patience=600.0)

    assert codes == [0]
    told = json.loads(found.read_text())
    assert told["goes on alike"], "the whole checkpoint does not lead to the same bits"
    assert set(told["changed"]) == NEEDED[kind]
    assert told["needless"] == []


def _try_all(kind: str, directory: Path, found: Path, _rank: int, _port: int) -> None:
    from tests.support.captured_states import try_all  # PyTorch, once it is forked

    found.write_text(json.dumps(try_all(kind, directory)))
