"""A training that mostly waits, so that a second process on the device can fill its gaps.

python3 waiting_training.py STEPS SECONDS
"""

import random
import sys
import time

import torch

from tessera import train

EVERY, BATCH = 5, 4


def main() -> None:
    """Train by logical workers, each of which waits a number of seconds in each step."""
    steps, gap = int(sys.argv[1]), float(sys.argv[2])
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3),
        torch.nn.Linear(8, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(96, 6), torch.randn(96, 1))
    feed = train.Feed(data, batch_size=BATCH, seed=1)
    elastic = train.LogicalWorkers(model, optimizer, feed, workers=4, seed=2, level="D1")

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(gap)
        shift = random.random()
        return torch.nn.functional.mse_loss(model(batch[0] + shift), batch[1])

    for _ in elastic.steps(steps, every=EVERY):
        elastic.step(loss_of)


if __name__ == "__main__":
    main()
