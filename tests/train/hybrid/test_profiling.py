"""Profiles of a model on one device."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from scheduling.core.grids.profile_documents import (  # noqa: E402
    profiled_estimates,
    read_profile,
)
from tessera.train import reports  # noqa: E402
from tests.support.hybrid_models import LENGTH, WIDTH, WORDS, Case, make  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def profile(directory: Path, monkeypatch: pytest.MonkeyPatch, **parallel: object) -> dict:
    """What a profile job reports."""
    path = directory / "reports.jsonl"
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(path))
    declared = {"batch": 16, "micro_batches": 2, "profile": "only", **parallel}
    monkeypatch.setenv("TESSERA_JOB_PARALLEL", json.dumps(declared))
    monkeypatch.setattr(reports, "_reporters", {})
    with pytest.raises(SystemExit) as ended:
        make(Case(steps=1, optimizer="adamw"), None)
    assert ended.value.code == 0
    (line,) = path.read_text().splitlines()
    found = json.loads(line)
    assert (found.pop("event"), found.pop("time") > 0) == ("profile", True)
    return found


def test_a_profile_counts_what_a_divided_layer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = profile(tmp_path, monkeypatch)

    assert found["layers"] == ["Embedding", *["Block"] * 4, "Head"]
    runs = {one["name"]: one["runs"] for one in found["classes"]}
    block = {(run["tensor"], run["samples"]): run for run in runs["Block"]}
    assert {width for width, _ in block} == {1, 2, 4}  # 8 parts of 4 heads cannot run
    assert {samples for _, samples in block} == {8, 4, 2, 1}
    whole, half = block[1, 8], block[2, 8]
    output = 8 * LENGTH * WIDTH * 4
    assert whole["boundary_bytes"] == half["boundary_bytes"] == output
    assert half["exchanges"] == [["all_reduce", output, 2], ["all_reduce_backward", output, 4]]
    assert whole["exchanges"] == []
    shared = 4 * (4 * WIDTH + WIDTH + WIDTH)  # two norms, and biases of both row-wise layers
    assert half["parameter_bytes"] - shared == (whole["parameter_bytes"] - shared) / 2
    assert whole["flops"] == pytest.approx(2 * half["flops"], rel=0.01)
    assert found["state_factor"] == pytest.approx(4.0, abs=0.05)  # AdamW
    assert runs["Head"][0]["flops"] == 3 * 2 * 8 * LENGTH * WIDTH * WORDS


def test_a_profile_is_valid_and_predicts_the_step_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = profile(tmp_path, monkeypatch, max_tensor=2)

    measured = read_profile(found, device_type="cpu")
    estimates = {
        (one.grid.devices, one.grid.stages): one
        for one in profiled_estimates(
            measured, batch=16, micro_batches=2, schedule="1f1b", max_tensor=2
        )
    }
    one_step = sum(
        times * run[name]
        for layer in found["layers"]
        for one in found["classes"]
        for run in one["runs"]
        if one["name"] == layer and (run["tensor"], run["samples"]) == (1, 8)
        for name, times in (("forward_s", 2), ("backward_s", 2), ("update_s", 1))
    )
    assert estimates[1, 1].step_seconds == pytest.approx(one_step, rel=1e-6)
    for size in ((2, 1), (2, 2), (4, 1), (4, 2)):
        assert estimates[size].plan is not None
    assert {point[0] for point in found["links"]} == {"send", "all_reduce"}
