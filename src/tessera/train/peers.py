"""The processes that train one model together; one process alone needs no group.

Needs PyTorch.
"""

from __future__ import annotations

import os
import socket
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import distributed

from tessera.train.environment import job


class Peers:
    """This process among the others.

    Attributes:
        rank: 0 up to, without, `size`.
        size: how many processes there are.
    """

    def __init__(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(device)  # whose generator belongs to the contexts
        if not distributed.is_initialized() and job().world_size > 1:
            rank = int(os.environ.get("RANK", job().rank))
            backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
            distributed.init_process_group(backend, rank=rank, world_size=job().world_size)
        together = distributed.is_initialized()
        self.rank: int = distributed.get_rank() if together else 0
        self.size: int = distributed.get_world_size() if together else 1
        self._words: Any = distributed.new_group(backend="gloo") if together and is_cuda else None
        self._staged = is_cuda and self._share_devices()

    def _share_devices(self) -> bool:
        """Whether several processes use one GPU, which NCCL refuses: then CPUs exchange."""
        if self.size == 1:
            return False
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        name = str(getattr(device, "uuid", "")) or f"{socket.gethostname()}/{device}"
        return len(set(self.gather_all(name.encode("utf-8")))) < self.size

    def agree(self, numbers: Sequence[float]) -> List[float]:
        """Sums of what all processes bring, place by place.

        Exact, and so the same for every number of processes, where at most one of them brings
        something else than 0 to a place.
        """
        if self.size == 1:
            return list(numbers)
        shared = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(shared, group=self._words)
        return [float(number) for number in shared.tolist()]

    def add_up(self, flat: torch.Tensor) -> None:
        """Replace a tensor by the sum of all processes', in an order of the library's own."""
        if self.size == 1:
            return
        if self._staged:
            on_cpu = flat.cpu()
            distributed.all_reduce(on_cpu, group=self._words)
            flat.copy_(on_cpu)
        else:
            distributed.all_reduce(flat)

    def share(self, flat: torch.Tensor, owner: int) -> None:
        """Give all processes what one of them has."""
        if self.size == 1:
            return
        if self._staged:
            on_cpu = flat.cpu()
            distributed.broadcast(on_cpu, src=owner, group=self._words)
            flat.copy_(on_cpu)
        else:
            distributed.broadcast(flat, src=owner)

    def gather(self, content: bytes) -> Optional[List[bytes]]:
        """What all processes bring, in their order; None everywhere but in the first."""
        if self.size == 1:
            return [content]
        found: Optional[List[bytes]] = [b""] * self.size if self.rank == 0 else None
        distributed.gather_object(content, found, group=self._words)
        return found

    def gather_all(self, content: bytes) -> List[bytes]:
        """What all processes bring, in their order, in all of them."""
        if self.size == 1:
            return [content]
        found: List[bytes] = [b""] * self.size
        distributed.all_gather_object(found, content, group=self._words)
        return found

    def wait(self) -> None:
        """Go on only when all have come here."""
        self.agree([0.0])


def newest(name: Tuple[int, str], state: Any) -> Any:
    """The state of the process that has come farthest, in all processes of the group.

    So training goes on though nodes share no directory and only one of them has the checkpoint.

    Args:
        name: step and hash of what this process has found; (0, "") for nothing.
        state: what it has found.
    """
    names: List[Tuple[int, str]] = [name] * distributed.get_world_size()
    distributed.all_gather_object(names, name)
    if len(set(names)) == 1:
        return state
    steps = [step for step, _ in names]
    owner = steps.index(max(steps))
    box = [state if distributed.get_rank() == owner else None]
    distributed.broadcast_object_list(box, src=owner)
    return box[0]
