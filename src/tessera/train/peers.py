"""Group of the processes that train one model; a single process needs no group.

Needs PyTorch.
"""

from __future__ import annotations

import io
import itertools
import os
import socket
from datetime import timedelta
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import distributed

from tessera.train.codec import read_state, write_state
from tessera.train.environment import job
from tessera.train.lending import exchange, wait_for_threads


class Peers:
    """This process within its group.

    Attributes:
        rank: 0 up to, without, `size`.
        size: number of processes.

    Args:
        device: device of this process.
        timeout: limit of an exchange when this creates the group; PyTorch's own if None.
    """

    def __init__(self, device: torch.device, *, timeout: Optional[timedelta] = None) -> None:
        is_cuda = device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(device)  # the contexts contain the generator of this device
        if not distributed.is_initialized() and job().world_size > 1:
            rank = int(os.environ.get("RANK", job().rank))
            backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
            distributed.init_process_group(
                backend, rank=rank, world_size=job().world_size, timeout=timeout
            )
        together = distributed.is_initialized()
        self.rank: int = distributed.get_rank() if together else 0
        self.size: int = distributed.get_world_size() if together else 1
        self._words: Any = distributed.new_group(backend="gloo") if together and is_cuda else None
        self._staged = is_cuda and self._share_devices()

    def _share_devices(self) -> bool:
        """Return whether several processes use one GPU, which NCCL refuses: then CPUs exchange."""
        if self.size == 1:
            return False
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        name = str(getattr(device, "uuid", "")) or f"{socket.gethostname()}/{device}"
        return len(set(self.gather_all(name.encode("utf-8")))) < self.size

    def agree(self, numbers: Sequence[float]) -> List[float]:
        """Return the element-wise sums of the numbers of all processes.

        The result is exact, and thus equal for every number of processes, if at most one process
        has a number other than 0 in each element.
        """
        return list(numbers) if self.size == 1 else _sums(numbers, self._words)

    def add_up(self, flat: torch.Tensor) -> None:
        """Replace a tensor by the sum of all processes' tensors, in the library's own order."""
        if self.size == 1:
            return
        if self._staged:
            on_cpu = flat.cpu()
            exchange(distributed.all_reduce, on_cpu, group=self._words)
            flat.copy_(on_cpu)
        else:
            exchange(distributed.all_reduce, flat)

    def share(self, flat: torch.Tensor, owner: int) -> None:
        """Broadcast the tensor of one process to all."""
        if self.size == 1:
            return
        if self._staged:
            on_cpu = flat.cpu()
            exchange(distributed.broadcast, on_cpu, src=owner, group=self._words)
            flat.copy_(on_cpu)
        else:
            exchange(distributed.broadcast, flat, src=owner)

    def gather(self, content: bytes) -> Optional[List[bytes]]:
        """Gather the contents of all processes in order; None except in the first process."""
        found = self.gather_all(content)
        return found if self.rank == 0 else None

    def gather_all(self, content: bytes) -> List[bytes]:
        """Gather the contents of all processes in order, in all of them."""
        return [content] if self.size == 1 else _gathered(content, self._words)

    def wait(self) -> None:
        """Wait for all processes, and for the release of exchanged tensors by all threads."""
        self.agree([0.0])
        wait_for_threads()


def newest(name: Tuple[int, str], state: Any) -> Any:
    """Return the state of the furthest process, in all processes of the group.

    So training resumes if nodes share no directory and only one of them has the checkpoint.

    Args:
        name: step and hash of this process's state; (0, "") for none.
        state: state of this process.
    """
    names = _gathered(f"{name[0]} {name[1]}".encode("ascii"), None)
    if len(set(names)) == 1:
        return state
    steps = [int(one.split()[0]) for one in names]
    owner, own = steps.index(max(steps)), io.BytesIO()
    if distributed.get_rank() == owner:
        write_state(state, own)
    brought = _gathered(own.getvalue(), None)[owner]
    return state if distributed.get_rank() == owner else read_state(io.BytesIO(brought))


def _gathered(content: bytes, group: Any) -> List[bytes]:
    """Gather the contents of all processes of a group: each fills its part of one sum."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    lengths = [0.0] * size
    lengths[rank] = float(len(content))
    ends = [int(end) for end in itertools.accumulate(_sums(lengths, group))]
    begins = [0, *ends[:-1]]
    flat = torch.zeros(ends[-1], dtype=torch.uint8)
    if content:
        flat[begins[rank] : ends[rank]] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    flat = flat.to(_device(group))
    if ends[-1]:
        exchange(distributed.all_reduce, flat, group=group)
    joined = flat.cpu().numpy().tobytes()
    wait_for_threads()
    return [joined[begin:end] for begin, end in zip(begins, ends)]


def _sums(numbers: Sequence[float], group: Any) -> List[float]:
    shared = torch.tensor(numbers, dtype=torch.float64, device=_device(group))
    exchange(distributed.all_reduce, shared, group=group)
    return [float(number) for number in shared.tolist()]


def _device(group: Any) -> str:
    """Return the device of a group's exchanges."""
    return "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
