"""The batch follows the control plane, the noise is measured, and no sample is lost on the way."""

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tessera.efficiency import efficiency
from tests.support.elastic_training import be_rank, events, together, write

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SAMPLES, FEATURES = 240, 6


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> None:
    pytest.importorskip("torch")


def train(directory: Path, processes: int, orders: dict[str, Any], rank: int, port: int) -> None:
    """Train a linear model; every process writes down what it saw."""
    be_rank(rank, processes, port, directory)
    import torch

    from tessera.train import AdaptiveBatch

    torch.manual_seed(0)
    fixed = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, FEATURES, generator=fixed)
    truth = inputs @ torch.ones(FEATURES, 1) + torch.randn(SAMPLES, 1, generator=fixed)
    data = torch.utils.data.TensorDataset(inputs, truth, torch.arange(SAMPLES))
    model = torch.nn.Linear(FEATURES, 1)
    adaptive = AdaptiveBatch(
        model,
        torch.optim.SGD(model.parameters(), lr=0.02),
        data,
        initial_batch=12,
        largest_micro=orders.get("largest_micro", 1000),
        rule=orders.get("rule", "adascale"),
        loading_processes=orders.get("loading_processes", 0),
    )
    seen: list[int] = []

    def forward(batch: Any) -> Any:
        seen.extend(batch[2].tolist())
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    sizes = []
    for step in adaptive.steps(orders.get("progress", 20), every=5):
        if rank == processes - 1 and step == orders.get("choose_at"):
            path = directory / "batch.json"
            path.with_suffix(".part").write_text(json.dumps(orders["choice"]))
            path.with_suffix(".part").rename(path)
            if "leave_in" in orders:
                notice = (directory / "control.json", {"notice": "stop"})
                threading.Timer(orders["leave_in"], write, notice).start()
        if rank == 0 and step == orders.get("leave_at"):
            (directory / "control.json").write_text('{"notice": "resize"}')
        sizes.append(adaptive.batch)
        adaptive.step(forward)
    written = {
        "seen": seen,
        "sizes": sizes,
        "square": adaptive.noise.square,
        "variance": adaptive.noise.variance,
        "progress": adaptive.progress,
        "weights": model.weight.detach().reshape(-1).tolist(),
        "done": adaptive.done,
    }
    (directory / f"rank{rank}.json").write_text(json.dumps(written))


def trained(directory: Path, processes: int, **orders: Any) -> list[dict[str, Any]]:
    directory.mkdir(exist_ok=True)
    (directory / "control.json").unlink(missing_ok=True)
    assert together(train, processes, directory, processes, orders) == [0] * processes
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(processes)]


def test_the_number_of_processes_hardly_changes_the_model(tmp_path: Path) -> None:
    (alone,) = trained(tmp_path / "one", 1, rule="linear")
    first, second = trained(tmp_path / "two", 2, rule="linear")

    assert first["weights"] == second["weights"]
    assert first["weights"] == pytest.approx(alone["weights"], abs=1e-5)
    # The same sample goes to one process only, and none is left out.
    assert sorted(first["seen"] + second["seen"]) == sorted(alone["seen"])


def test_a_chosen_batch_is_taken_up_by_all_at_the_same_step(tmp_path: Path) -> None:
    orders = {"choose_at": 3, "choice": {"batch": 48, "accumulation": 2}, "rule": "sqrt"}

    ranks = trained(tmp_path, 2, **orders)

    sizes = ranks[0]["sizes"]
    assert [one["sizes"] for one in ranks] == [sizes, sizes]
    assert set(sizes) == {12, 48}
    assert sizes == sorted(sizes)
    together_seen = ranks[0]["seen"] + ranks[1]["seen"]
    assert len(together_seen) == sum(sizes)
    times = [together_seen.count(sample) for sample in range(SAMPLES)]
    assert max(times) - min(times) <= 1  # epoch after epoch, whatever the batch


def test_a_training_is_held_by_a_throttle_of_nothing_until_it_is_asked_to_leave(
    tmp_path: Path,
) -> None:
    orders = {"choose_at": 3, "choice": {"throttle": 0}, "leave_in": 0.5, "progress": 1 << 30}

    (alone,) = trained(tmp_path, 1, **orders)

    assert alone["done"] == 5
    assert [told["step"] for told in events(tmp_path, "checkpoint")] == [5]


def test_a_batch_that_does_not_fit_is_accumulated(tmp_path: Path) -> None:
    (alone,) = trained(
        tmp_path, 1, choose_at=0, choice={"batch": 60}, largest_micro=25, progress=10
    )

    assert alone["sizes"][-1] == 60
    reports = [json.loads(line) for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    assert [(one["batch"], one["accumulation"]) for one in events(tmp_path, "batch")] == [(60, 3)]
    told = [one for one in reports if "event" not in one and one["batch"] == 60]
    assert told
    assert {one["accumulation"] for one in told} == {3}
    for one in told:
        square, variance = one["noise"]
        scale = 60 / one["initial_batch"]
        wanted = efficiency(square, variance, 1 / scale) if square or variance else 1 / scale
        assert one["efficiency"] == pytest.approx(wanted)
        assert one["sync_seconds"] == 0.0


def test_noise_is_found_between_steps_and_between_processes_alike(tmp_path: Path) -> None:
    orders = {"rule": "linear", "progress": 400}
    (alone,) = trained(tmp_path / "one", 1, **orders)
    ranks = trained(tmp_path / "four", 4, **orders)

    assert alone["variance"] > 0
    assert ranks[0]["variance"] == pytest.approx(alone["variance"], rel=0.35)
    assert len({one["variance"] for one in ranks}) == 1
    assert ranks[0]["done"] == alone["done"] == 400  # a step of the initial batch is worth one


def test_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (whole,) = trained(tmp_path / "whole", 1, progress=20)
    directory = tmp_path / "parts"
    (early,) = trained(directory, 1, progress=20, leave_at=7)
    ranks = trained(directory, 2, progress=20, loading_processes=1)

    assert early["done"] == 8
    assert early["seen"] + sorted(ranks[0]["seen"] + ranks[1]["seen"]) == [
        *whole["seen"][: len(early["seen"])],
        *sorted(whole["seen"][len(early["seen"]) :]),
    ]


def train_apart(directory: Path, rank: int, port: int) -> None:
    """Train as one of two processes that share no directory."""
    train(directory / f"node{rank}", 2, {}, rank, port)


def test_processes_whose_nodes_share_no_directory_go_on_from_the_newest_checkpoint(
    tmp_path: Path,
) -> None:
    for name in ("node0", "node1"):
        (tmp_path / name).mkdir()
    (early,) = trained(tmp_path / "node1", 1, leave_at=3)
    (tmp_path / "node1" / "control.json").unlink()

    assert together(train_apart, 2, tmp_path) == [0, 0]

    ranks = [
        json.loads((tmp_path / f"node{rank}" / f"rank{rank}.json").read_text())
        for rank in range(2)
    ]
    assert early["done"] == 4
    assert len(ranks[0]["sizes"]) == len(ranks[1]["sizes"]) == ranks[0]["done"] - 4
    assert ranks[0]["weights"] == ranks[1]["weights"]


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_choices_fit_the_processes_and_their_memory(processes: int) -> None:
    from tessera.train.adaptive import fitting

    chance = random.Random(processes)
    for _ in range(300):
        batch, accumulation = chance.randint(1, 4096), chance.randint(1, 8)
        largest = chance.randint(1, 256)

        found = fitting(batch, accumulation, processes, largest)

        assert 1 <= found.micro <= largest
        assert found.accumulation >= 1
        assert found.batch(processes) <= max(batch, processes)
