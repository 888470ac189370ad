"""Train a small GPT to add numbers, with a batch size that the control plane may change.

The script generates the text: sums such as "23+58=81". A transformer of two layers learns to
predict the characters after the equals sign. The batch size may change between two steps; the
learning rate of AdamW scales with its square root. Needs PyTorch.

    python3 gpt_torch.py --progress 150
    python3 -m tessera.train.launch gpt_torch.py        # one process for each device of a job
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # spinning threads are slow on a shared machine

import torch
from torch import nn

from tessera import train

LETTERS = "0123456789+="
LENGTH, WIDTH = 8, 48


def make_sums(count, seed):
    """Texts (count, LENGTH) of sums of two numbers below 50, as numbers of letters."""
    chance = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, 50, (count, 2), generator=chance).tolist()
    texts = [f"{one:02}+{other:02}={one + other:02}" for one, other in pairs]
    return torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])


class Block(nn.Module):
    """Causal attention and a feed-forward part, each beside a shortcut."""

    def __init__(self):
        super().__init__()
        self.before_attention, self.before_forward = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.forward_part = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, values):
        length = values.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=values.device).triu(1)
        normal = self.before_attention(values)
        found, _ = self.attention(normal, normal, normal, attn_mask=mask, need_weights=False)
        values = values + found
        return values + self.forward_part(self.before_forward(values))


class Gpt(nn.Module):
    """Letters and places in, scores of the next letter out."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS)))

    def forward(self, texts):
        places = torch.arange(texts.shape[1], device=texts.device)
        return self.head(self.blocks(self.letters(texts) + self.places(places)))


def loss_of(model, texts):
    """Loss of the two predicted digits after the equals sign."""
    scores = model(texts[:, :-1])[:, -2:]
    return nn.functional.cross_entropy(scores.flatten(0, 1), texts[:, -2:].flatten())


def main():
    """Train with an adaptive batch size, and print the final loss on unseen sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--progress", type=float, default=150, help="in steps of the first batch")
    parser.add_argument("--batch", type=int, default=64, help="of the first step, all processes")
    parser.add_argument("--every", type=int, default=50, help="steps from save to save")
    options = parser.parse_args()

    device = train.device()
    torch.manual_seed(0)
    model = Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    adaptive = train.AdaptiveBatch(
        model,
        optimizer,
        make_sums(8192, seed=1),
        initial_batch=int(os.environ.get("TESSERA_JOB_INITIAL_BATCH", options.batch)),
        largest_micro=int(os.environ.get("TESSERA_JOB_MAX_LOCAL_BATCH", "256")),
        rule="sqrt",
        seed=2,
    )
    for step in adaptive.steps(options.progress, every=options.every):
        loss = adaptive.step(lambda texts: loss_of(model, texts.to(device)))
        if adaptive.peers.rank == 0 and step % 10 == 0:
            print(f"step {step} batch {adaptive.batch} loss {loss:.4f}\n", end="", flush=True)
    if adaptive.peers.rank == 0:
        if adaptive.progress < options.progress:
            print(f"asked to leave ({train.notice()}): saved step {adaptive.done}", flush=True)
            return
        with torch.no_grad():
            unseen = loss_of(model, make_sums(512, seed=99).to(device))
        print(f"on unseen sums: {float(unseen):.4f}", flush=True)


if __name__ == "__main__":
    main()
