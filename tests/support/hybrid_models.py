"""A small GPT as layers for hybrid training, and the processes that train it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tessera.train import Hybrid, ParallelPlan, Stage
from tests.support.elastic_training import be_rank, together, write

WIDTH, HEADS, WORDS, LENGTH = 32, 4, 48, 12
BATCH, SEED = 16, 7
LAYERS = 6
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places: torch.Tensor = self.places(torch.arange(tokens.shape[1]))
        embedded: torch.Tensor = self.words(tokens)
        return embedded + places


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        size, length, _ = inputs.shape
        normed = self.before(inputs)
        query, key, value = (
            one(normed).view(size, length, -1, WIDTH // HEADS).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.out(attended.transpose(1, 2).reshape(size, length, -1))
        found: torch.Tensor = inputs + self.dropout(
            self.down(functional.gelu(self.up(self.between(inputs))))
        )
        return found


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.words(self.norm(inputs))
        return scores


SPLIT = {
    Block: dict.fromkeys(("query", "key", "value", "up"), "column") | {"out": "row", "down": "row"}
}
TIED = (("0.words.weight", "5.words.weight"),)
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 3e-3),
}


@dataclass(frozen=True)
class Case:
    """One training: the values that are equal under every plan.

    Attributes:
        steps: number of steps.
        tied: whether embedding and head share their weight.
        options: further arguments of ``Hybrid``.
    """

    steps: int
    optimizer: str = "sgd"
    dtype: str = "float32"
    tied: bool = False
    dropout: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    decay: float = 0.0


def feed(step: int, samples: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Yield periodic sequences, which a model can learn."""
    chance = torch.Generator().manual_seed(1_000 + step)
    starts = torch.randint(0, WORDS, (BATCH, 1), generator=chance)
    tokens = (starts + 5 * torch.arange(LENGTH + 1)) % WORDS
    chosen = tokens[samples.start : samples.stop]
    return chosen[:, :-1], chosen[:, 1:]


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def make(case: Case, plan: ParallelPlan | None) -> Hybrid:
    """Create the training in this process: four blocks between embedding and head."""
    torch.set_num_threads(1)
    torch.set_default_dtype(DTYPES[case.dtype])
    layers = [Embedding, *[lambda: Block(case.dropout)] * 4, Head]
    return Hybrid(
        layers,
        loss=loss_of,
        optimizer=OPTIMIZERS[case.optimizer],
        feed=feed,
        plan=plan,
        batch=BATCH,
        split=SPLIT,
        tied=TIED if case.tied else (),
        seed=SEED,
        timeout=60.0,
        scheduler=(
            (lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, case.decay))
            if case.decay
            else None
        ),
        **case.options,
    )


def train(
    case: Case, plan: ParallelPlan, directory: Path, *, leave_after: int = -1
) -> list[float]:
    """Train under a plan in its processes; return the losses of the completed steps.

    Raises:
        AssertionError: a process has failed, or two report different losses.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "control.json").unlink(missing_ok=True)
    codes = together(_rank, plan.processes, case, plan, directory, leave_after)
    assert codes == [0] * plan.processes
    found = [json.loads(path.read_text()) for path in sorted(directory.glob("losses-*.json"))]
    for path in directory.glob("losses-*.json"):
        path.unlink()
    assert all(losses == found[0] for losses in found)
    losses: list[float] = found[0]
    return losses


def _rank(
    case: Case, plan: ParallelPlan, directory: Path, leave_after: int, *of_process: int
) -> None:
    rank, port = of_process
    be_rank(rank, plan.processes, port, directory)
    hybrid = make(case, plan)
    losses = []
    for step in hybrid.steps(case.steps):
        if step == leave_after and rank == plan.processes - 1:
            write(directory / "control.json", {"notice": "resize"})
        losses.append(hybrid.step())
    (directory / f"losses-{rank}.json").write_text(json.dumps(losses))


def difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest relative difference."""
    return max(abs(one - other) / abs(other) for one, other in zip(losses, others, strict=True))


def plan_of(
    *shapes: tuple[int, int], micro_batches: int = 4, schedule: str = "1f1b"
) -> ParallelPlan:
    """Return stages with numbers of layers as equal as possible, by (data, tensor)."""
    cuts = [round(LAYERS * index / len(shapes)) for index in range(len(shapes) + 1)]
    return ParallelPlan(
        stages=tuple(
            Stage(first, last, data, tensor)
            for first, last, (data, tensor) in zip(cuts[:-1], cuts[1:], shapes, strict=True)
        ),
        micro_batches=micro_batches,
        batch=BATCH,
        schedule=schedule,
    )


def named(shapes: list[tuple[int, int]]) -> str:
    return "|".join(f"{data}x{tensor}" for data, tensor in shapes)


ONE = plan_of((1, 1))


def require_equal(case: Case, plan: ParallelPlan, limit: float, directory: Path) -> None:
    alone = train(case, ONE, directory / "one")

    losses = train(case, plan, directory / "plan")

    assert losses[-1] < 0.9 * losses[0]
    assert difference(losses, alone) <= limit
