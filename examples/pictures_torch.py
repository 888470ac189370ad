"""Train a small convolutional network to classify shapes, bit-identical on any number of devices.

The script generates the images: discs, crosses, frames and stripes with random size, position and
noise. The network has batch normalisation and dropout. Logical workers train it: with any number
of processes, and after a resize, every checkpoint has the same hash. Needs PyTorch.

    python3 pictures_torch.py --steps 60
    python3 -m tessera.train.launch pictures_torch.py        # one process for each device of a job
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # spinning threads are slow on a shared machine

import torch
from torch import nn

from tessera import train

SIDE, SHAPES = 16, 4


def make_pictures(count, seed):
    """Pictures (count, 1, SIDE, SIDE) and which shape is on each."""
    chance = torch.Generator().manual_seed(seed)
    shapes = torch.randint(0, SHAPES, (count,), generator=chance)
    down, across = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    pictures = torch.randn(count, 1, SIDE, SIDE, generator=chance) * 0.3
    for number, shape in enumerate(shapes.tolist()):
        row, column = torch.randint(5, SIDE - 5, (2,), generator=chance).tolist()
        size = int(torch.randint(3, 6, (), generator=chance))
        high, wide = (down - row).abs(), (across - column).abs()
        inside = (high <= size) & (wide <= size)
        drawn = (
            high**2 + wide**2 <= size**2,
            inside & ((high == 0) | (wide == 0)),
            inside & ((high == size) | (wide == size)),
            inside & (down % 3 == 0),
        )[shape]
        pictures[number, 0] += drawn
    return pictures, shapes


def make_network():
    """Two convolutions with batch normalisation, dropout and a head."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(24 * 16, SHAPES),
    )  # fmt: skip


def accuracy(network, pictures, shapes):
    """Share of images that are classified correctly."""
    network.eval()
    with torch.no_grad():
        right = (network(pictures).argmax(dim=1) == shapes).float().mean()
    network.train()
    return float(right)


def main():
    """Train with logical workers, and print the final accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=4, help="logical workers")
    parser.add_argument("--batch", type=int, default=32, help="of one logical worker")
    parser.add_argument("--every", type=int, default=20, help="steps from save to save")
    options = parser.parse_args()

    device = train.device()
    torch.manual_seed(0)
    network = make_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    data = torch.utils.data.TensorDataset(*make_pictures(2048, seed=1))
    feed = train.Feed(data, batch_size=options.batch, seed=2, draws=False)
    workers = int(os.environ.get("TESSERA_JOB_LOGICAL_WORKERS", options.workers))
    elastic = train.LogicalWorkers(network, optimizer, feed, workers=workers, seed=3)

    def loss_of(batch):
        pictures, shapes = (part.to(device) for part in batch)
        return nn.functional.cross_entropy(network(pictures), shapes)

    for step in elastic.steps(options.steps, every=options.every):
        loss = elastic.step(loss_of)
        if elastic.peers.rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}\n", end="", flush=True)
    if elastic.peers.rank == 0:
        if elastic.done < options.steps:
            print(f"asked to leave ({train.notice()}): saved step {elastic.done}", flush=True)
            return
        pictures, shapes = make_pictures(512, seed=99)
        unseen = accuracy(network, pictures.to(device), shapes.to(device))
        print(f"accuracy on unseen pictures: {unseen:.3f}", flush=True)


if __name__ == "__main__":
    main()
