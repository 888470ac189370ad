"""A small GPT in two stages: two replicas of the first, the second divided over two devices.

Start it on four devices (``examples/hybrid.yaml``), or anywhere with
``torchrun --nproc-per-node 4 hybrid_torch.py``. It resumes under another plan after a preemption.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

from tessera import train

WIDTH, HEADS, WORDS, LENGTH, BLOCKS = 64, 4, 96, 32, 4


class Embedding(nn.Module):
    """Words and places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.words(tokens) + self.places(places)


class Block(nn.Module):
    """Attention and a perceptron; heads are counted by their size, so that they can be divided."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        size, length, _ = inputs.shape
        normed = self.before(inputs)
        heads = [
            one(normed).view(size, length, -1, WIDTH // HEADS).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        ]
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        inputs = inputs + self.out(attended.transpose(1, 2).reshape(size, length, -1))
        return inputs + self.down(functional.gelu(self.up(self.between(inputs))))


class Head(nn.Module):
    """Scores of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.words(self.norm(inputs))


SPLIT = {
    Block: {
        "query": "column",
        "key": "column",
        "value": "column",
        "out": "row",
        "up": "column",
        "down": "row",
    }
}
PLAN = train.ParallelPlan(
    stages=(train.Stage(0, 3, data=2), train.Stage(3, BLOCKS + 2, tensor=2)),
    micro_batches=4,
    batch=32,
)


def feed(step: int, samples: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences that repeat with a period, so that the model can learn them."""
    chance = torch.Generator().manual_seed(step)
    starts = torch.randint(0, WORDS, (PLAN.batch, 1), generator=chance)
    tokens = ((starts + 5 * torch.arange(LENGTH + 1)) % WORDS)[samples.start : samples.stop]
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def main() -> None:
    """Train, and print the loss now and then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    hybrid = train.Hybrid(
        [Embedding, *[Block] * BLOCKS, Head],
        loss=loss_of,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 3e-3),
        feed=feed,
        # In a job, Tessera chooses the plan; without one, all processes are replicas.
        plan=train.plan_of_job() or (None if train.job().id else PLAN),
        batch=PLAN.batch,
        split=SPLIT,
        tied=[("0.words.weight", f"{BLOCKS + 1}.words.weight")],
        clip=1.0,
    )
    for step in hybrid.steps(options.steps, every=50):
        loss = hybrid.step()
        if hybrid.peers.rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
