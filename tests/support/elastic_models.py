"""Small models with every kind of state that logical workers capture. Needs PyTorch."""

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from tessera.train import randomness
from tessera.train.logical import LogicalWorkers
from tessera.train.workers import Contexts, Feed, Order
from tests.support.elastic_training import BATCH, SAMPLES

CLASSES = 4


def numpy_draw(low: float, high: float) -> float:
    """Return a number from NumPy's global generator, which old training scripts use."""
    return float(np.random.uniform(low, high))  # noqa: NPY002


class Drawn(torch.utils.data.Dataset[Any]):
    """Samples with augmentation by all three random generators."""

    def __init__(self, shape: tuple[int, ...], vocabulary: int = 0) -> None:
        fixed = torch.Generator().manual_seed(7)
        if vocabulary:
            self._inputs = torch.randint(0, vocabulary, (SAMPLES, *shape), generator=fixed)
        else:
            self._inputs = torch.randn(SAMPLES, *shape, generator=fixed)
        self._labels = torch.randint(0, CLASSES, (SAMPLES,), generator=fixed)
        self._is_text = vocabulary > 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        inputs, label = self._inputs[index], self._labels[index]
        if self._is_text:
            return inputs.roll(random.randrange(4) + int(numpy_draw(0, 2))), label
        noise = torch.randn_like(inputs) * 0.1
        if random.random() < 0.5:
            inputs = inputs.flip(-1)
        return inputs * numpy_draw(0.8, 1.2) + noise, label


class Convolutions(nn.Module):
    """Convolutions with batch normalisation and dropout, and random numbers of Python and
    NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()
        )
        self.head = nn.Linear(6 * 36, CLASSES)

    def forward(self, pictures: torch.Tensor) -> Any:
        if random.random() < 0.5:
            pictures = pictures.flip(-2)
        found = self.head(self.body(pictures) * numpy_draw(0.9, 1.1))
        # In training mode, the running statistics do not affect the loss.
        return found + self.body[1].running_mean.mean()


class Transformer(nn.Module):
    """A transformer of two layers over short texts, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, texts: torch.Tensor) -> Any:
        return self.head(self.layers(self.embedding(texts)).mean(dim=1))


def make(
    name: str,
    *,
    workers: int,
    layout: Any = None,
    loading_processes: int = 0,
    without: str = "",
) -> LogicalWorkers:
    """Return a model with optimizer and data under logical workers, from the newest checkpoint."""
    forget(without)
    torch.manual_seed(0)
    if name == "cnn":
        model: nn.Module = Convolutions()
        data = Drawn((3, 8, 8))
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        model = Transformer()
        data = Drawn((12,), vocabulary=17)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    feed = Feed(data, batch_size=BATCH, seed=3, loading_processes=loading_processes)
    return LogicalWorkers(
        model,
        optimizer,
        feed,
        workers=workers,
        seed=5,
        layout=layout,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5),
    )


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def forget(state: str) -> None:
    """Disable the capture of one state in this process."""
    _forget_of_the_feed(state)
    _forget_of_the_rules(state)
    if state in {"python", "numpy", "torch"}:
        real = randomness.restore

        def restore(states: dict[str, Any]) -> None:
            real({**states, state: randomness.capture()[state]})

        randomness.restore = restore
    elif state == "buffers":
        Contexts.show = lambda *_: None  # type: ignore[method-assign]
    elif state == "contexts":
        Contexts.take_up = lambda *_: None  # type: ignore[method-assign]
    elif state == "shared":
        take_up = LogicalWorkers._take_up

        def forgetting(elastic: LogicalWorkers, found: Any) -> None:
            present = randomness.portable(randomness.capture())
            take_up(elastic, {**found, "shared": present})

        LogicalWorkers._take_up = forgetting  # type: ignore[assignment, method-assign]
    elif state == "dropout":
        capture = randomness.capture

        def without_torch() -> dict[str, Any]:
            return {name: found for name, found in capture().items() if name != "torch"}

        randomness.capture = without_torch


def _forget_of_the_rules(state: str) -> None:
    if state == "optimizer":
        torch.optim.SGD.load_state_dict = lambda *_: None  # type: ignore[method-assign]
    elif state == "scheduler":
        torch.optim.lr_scheduler.StepLR.load_state_dict = lambda *_: None


def _forget_of_the_feed(state: str) -> None:
    if state == "sampler":
        Order.of = lambda order, _epoch: random.sample(range(SAMPLES), SAMPLES)  # type: ignore[assignment, method-assign]
    elif state == "samples":
        seeded = randomness.seed_all
        randomness.seed_all = lambda *parts: seeded(*parts) if len(parts) < 3 else None
    elif state == "position":
        batches = Feed.batches
        Feed.batches = lambda feed, _step, *held: batches(feed, 0, *held)  # type: ignore[method-assign]
