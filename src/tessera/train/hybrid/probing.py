"""Times of messages between two processes of this host.

Needs PyTorch.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any, Callable, List, Tuple

import torch
from torch import distributed

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
REPEATS = 5
PATIENCE = timedelta(seconds=60)
Point = Tuple[str, int, int, float]
"""Primitive, processes in the group, bytes, seconds."""


def link_points(device: torch.device) -> List[Point]:
    """Measure messages between this process and another one of this host, over gloo.

    On a GPU, the copies from and to its memory are included. The second process runs on the same
    device, so the times are upper bounds of those between two devices.

    Returns:
        The measurements; none if the second process could not be started.
    """
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        command = [sys.executable, "-m", "tessera.train.hybrid.probing", store, str(device)]
        other = subprocess.Popen(command)
        try:
            return _measure(store, 0, device)
        except (RuntimeError, OSError):
            return []
        finally:
            other.kill()
            other.wait()


def _measure(store: str, rank: int, device: torch.device) -> List[Point]:
    shared = distributed.FileStore(store, 2)
    shared.set_timeout(PATIENCE)
    group = distributed.ProcessGroupGloo(shared, rank, 2, PATIENCE)
    found: List[Point] = []
    for size in SIZES:
        tensor = torch.ones(size // 4, device=device)

        def send(tensor: Any = tensor) -> None:
            host = tensor.cpu()
            if rank == 0:
                group.send([host], 1, 0).wait()
            else:
                group.recv([host], 0, 0).wait()
                tensor.copy_(host)

        def add_up(tensor: Any = tensor) -> None:
            host = tensor.cpu()
            group.allreduce([host]).wait()
            tensor.copy_(host)

        for primitive, exchange in (("send", send), ("all_reduce", add_up)):
            found.append((primitive, 2, size, _seconds(exchange, group)))
    return found


def _seconds(exchange: Callable[[], None], group: Any) -> float:
    """Return the median seconds of an exchange; both sides begin together."""
    seconds = []
    for _ in range(REPEATS + 1):
        group.barrier().wait()
        begun = time.perf_counter()
        exchange()
        group.barrier().wait()
        seconds.append(time.perf_counter() - begun)
    barriers = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        group.barrier().wait()
        barriers.append(time.perf_counter() - begun)
    net = statistics.median(seconds[1:]) - statistics.median(barriers)
    return float(f"{max(net, 1e-7):.4g}")


if __name__ == "__main__":
    _measure(sys.argv[1], 1, torch.device(sys.argv[2]))
