"""Profiles of variable batches, measured by real steps."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from scheduling.core.performance.batch_profiles import read_batch_profile  # noqa: E402
from tessera.train import AdaptiveBatch, reports  # noqa: E402
from tessera.train.batch_profiling import REPEATS, WARM_UP  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def profiled(directory: Path, monkeypatch: pytest.MonkeyPatch, most: int = 10**9) -> Any:
    """What a profile job reports, with the number of its steps and its exit code."""
    path = directory / "reports.jsonl"
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(path))
    monkeypatch.setenv("TESSERA_JOB_PROFILE", "only")
    monkeypatch.chdir(directory)
    monkeypatch.setattr(reports, "_reporters", {})
    data = torch.utils.data.TensorDataset(torch.randn(240, 6), torch.randn(240, 1))
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    adaptive = AdaptiveBatch(model, optimizer, data, initial_batch=16, largest_micro=64)

    def forward(batch: Any) -> Any:
        if len(batch[0]) > most:
            raise torch.OutOfMemoryError("the device is full")
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    steps: list[int] = []

    def train() -> None:
        for step in adaptive.steps(1_000_000):
            adaptive.step(forward)
            steps.append(step)

    with pytest.raises(SystemExit) as ended:
        train()
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    found = [line for line in lines if line.get("event") == "profile"]
    return found, len(steps), ended.value.code


def test_a_profile_times_some_batches_and_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,), steps, code = profiled(tmp_path, monkeypatch)

    document = {key: value for key, value in found.items() if key not in ("event", "time")}
    profile = read_batch_profile(document, device_type="a")
    assert [one.batch for one in profile.points] == [4, 8, 16, 32, 64]
    assert {one.steps for one in profile.points} == {REPEATS}
    assert (steps, code) == (5 * (WARM_UP + REPEATS), 0)
    assert profile.noise is not None
    assert profile.noise[1] > 0.0
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_batch_that_does_not_fit_ends_the_profile_at_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,), _, code = profiled(tmp_path, monkeypatch, most=20)

    assert [one["batch"] for one in found["points"]] == [4, 8, 16]
    assert code == 0


def test_a_profile_fails_if_no_batch_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, code = profiled(tmp_path, monkeypatch, most=1)

    assert (found, code) == ([], 1)
