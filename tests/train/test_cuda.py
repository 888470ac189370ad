"""On a GPU: four logical workers give the bits of four processes, and every generator is kept."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.elastic_training import be_rank, hashes, together

pytestmark = [pytest.mark.torch, pytest.mark.gpu, pytest.mark.timeout(900)]

STEPS, EVERY, WORKERS = 12, 4, 4


@pytest.fixture(scope="module", autouse=True)
def _with_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no NVIDIA GPU here")


def train_on_cuda(case: tuple[str, int, int], directory: Path, rank: int, port: int) -> None:
    """Train one of the small models on the first GPU, with dropout drawn there."""
    model, processes, steps = case
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    be_rank(rank, processes, port, directory)
    import torch

    from tessera.train import Feed, LogicalWorkers
    from tests.support import elastic_models

    torch.manual_seed(0)
    if model == "cnn":
        network: Any = elastic_models.Convolutions()
        data = elastic_models.Drawn((3, 8, 8))
    else:
        network = elastic_models.Transformer()
        data = elastic_models.Drawn((12,), vocabulary=17)
    network = network.to("cuda:0")
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    feed = Feed(data, batch_size=4, seed=3)
    elastic = LogicalWorkers(network, optimizer, feed, workers=WORKERS, seed=5)
    for _ in elastic.steps(steps, every=EVERY):
        elastic.step(
            lambda batch: elastic_models.loss_of(network, [part.to("cuda:0") for part in batch])
        )


@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_one_gpu_gives_the_bits_of_four_processes_and_of_a_training_in_two_parts(
    model: str, tmp_path: Path
) -> None:
    runs = {"one": [(1, STEPS)], "four": [(4, STEPS)], "parts": [(2, 5), (1, STEPS)]}
    found = {}
    for name, phases in runs.items():
        (tmp_path / name).mkdir()
        for processes, steps in phases:
            case = (model, processes, steps)
            codes = together(train_on_cuda, processes, case, tmp_path / name, patience=300.0)
            assert codes == [0] * processes
        told = hashes(tmp_path / name)
        found[name] = {step: told[step] for step in range(EVERY, STEPS + 1, EVERY)}

    assert found["one"] == found["four"] == found["parts"]


def test_the_generator_of_the_gpu_is_taken_and_put_back() -> None:
    import torch

    from tessera.train import randomness

    states = randomness.capture()
    first = torch.rand(3, device="cuda").tolist()
    randomness.restore(randomness.from_portable(randomness.portable(states)))

    assert torch.rand(3, device="cuda").tolist() == first
