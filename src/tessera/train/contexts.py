"""Contexts of logical workers: generators and buffers, switched between workers.

Needs PyTorch.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch

from tessera.train import randomness


class Contexts:
    """Generators and buffers of the workers of a process.

    Buffers are switched by exchanging the storage of the module's tensors: nothing is copied.

    Args:
        model: with buffers per worker.
        held: the workers of this process.
        seed: of each worker's generators.
    """

    def __init__(self, model: torch.nn.Module, held: Sequence[int], seed: int) -> None:
        self._places: List[Tuple[str, Any, str]] = [
            (f"{path}.{name}" if path else name, module, name)
            for path, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._held = held
        self._chance: Dict[int, Dict[str, Any]] = {}
        self._buffers: Dict[int, List[torch.Tensor]] = {}
        with randomness.kept():
            for worker in held:
                randomness.seed_all(seed, worker)
                self._chance[worker] = randomness.capture()
                self._buffers[worker] = [tensor.clone() for tensor in self._present()]
        randomness.seed_all(seed, -1)

    def _present(self) -> List[torch.Tensor]:
        return [module._buffers[name] for _, module, name in self._places]

    @contextmanager
    def switching(self) -> Iterator[None]:
        """Context manager around calls of `enter` and `leave`.

        Afterwards the shared generators are restored, and the buffers of the first held worker.
        """
        shared = randomness.capture()
        try:
            yield
        finally:
            randomness.restore(shared)
            if self._held:
                self.show(self._held[0])

    def enter(self, worker: int) -> None:
        """Activate a worker's generators and buffers."""
        randomness.restore(self._chance[worker])
        self.show(worker)

    def leave(self, worker: int) -> None:
        """Store the worker's generators and buffers."""
        self._chance[worker] = randomness.capture()
        self._buffers[worker] = self._present()

    # -- checkpoints -----------------------------------------------------------------------------

    def kept(self) -> List[Dict[str, Any]]:
        """Return the contexts of the workers held, in order, for a checkpoint."""
        return [
            {
                "chance": randomness.portable(self._chance[worker]),
                "buffers": {
                    path: tensor
                    for (path, _, _), tensor in zip(self._places, self._buffers[worker])
                },
            }
            for worker in self._held
        ]

    def hold(self, held: Sequence[int], contexts: Sequence[Dict[str, Any]]) -> None:
        """Replace the held workers.

        Args:
            held: the workers.
            contexts: those of all workers.
        """
        self._held = held
        self._chance, self._buffers = {}, {}
        self.take_up(contexts)

    def take_up(self, contexts: Sequence[Dict[str, Any]]) -> None:
        """Load the contexts of the held workers from those of a checkpoint."""
        present = self._present()
        for worker in self._held:
            context = contexts[worker]
            self._chance[worker] = randomness.from_portable(context["chance"])
            self._buffers[worker] = [
                context["buffers"][path].to(tensor.device)
                for (path, _, _), tensor in zip(self._places, present)
            ]
        if self._held:
            self.show(self._held[0])

    def lend(self, context: Dict[str, Any]) -> None:
        """Load into the model the buffers of a worker that other processes may hold."""
        for path, module, name in self._places:
            module._buffers[name] = context["buffers"][path].to(module._buffers[name].device)

    def show(self, worker: int) -> None:
        """Load a worker's buffers into the model, as for an evaluation."""
        for (_, module, name), tensor in zip(self._places, self._buffers[worker]):
            module._buffers[name] = tensor
