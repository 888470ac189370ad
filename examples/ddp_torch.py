"""Train a small model by PyTorch's DistributedDataParallel (gloo) across the gang.

Every member of the gang starts this script. MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE come
from the job's environment; a gang of one member also works. After the notice to leave, all
processes save a checkpoint and end after the same step. The next attempt continues from the
checkpoint. Needs PyTorch.

    python3 ddp_torch.py --steps 100
"""

import argparse
import hashlib
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # spinning threads are slow on a shared machine
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29500")

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

try:
    from tessera import train
except ImportError:  # outside a job, without the package
    train = None

FEATURES, CLASSES = 64, 8


def say(line):
    """Print a line in one write: `print` makes two, and others may write between them."""
    print(f"{line}\n", end="", flush=True)


def make_batch(step, size, rank, seed):
    """One rank's part of a batch, and the same hidden rule behind all of them."""
    rule = torch.Generator().manual_seed(seed)
    truth = torch.randn(FEATURES, CLASSES, generator=rule)
    chance = torch.Generator().manual_seed(seed + 1 + step * 1009 + rank)
    features = torch.randn(size, FEATURES, generator=chance)
    return features, (features @ truth).argmax(dim=1)


def main():
    """Train together, report every step, and show that all members have the same weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=512, help="of the whole gang")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="steps from save to save")
    options = parser.parse_args()

    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    distributed.init_process_group("gloo", rank=rank, world_size=size)
    say(f"rank {rank} of {size} met the others")
    torch.manual_seed(options.seed)
    layers = (nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9)
    share = max(1, options.batch // size)
    loop = steps_of(model, optimizer, options)
    for step in loop:
        began = time.perf_counter()
        features, labels = make_batch(step, share, rank, options.seed)
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - began
        if step % 10 == 0 or step == options.steps - 1:
            say(f"step {step} loss {loss.item():.4f} ({seconds * 1000:.1f} ms)")
        if train is not None:
            loop.report(loss=loss.item(), samples=share)
    weights = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
    say(f"weights {hashlib.sha256(weights).hexdigest()[:16]}")
    distributed.destroy_process_group()


def steps_of(model, optimizer, options):
    """The steps from the last checkpoint until the notice to leave."""
    if train is None:
        return range(options.steps)

    def take_up(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    return train.Loop(options.steps, save=state, load=take_up, every=options.every)


if __name__ == "__main__":
    main()
