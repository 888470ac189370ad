"""Data and random states of logical workers, independent of processes and restarts.

Needs PyTorch.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
from torch.utils.data import DataLoader

from tessera.train import randomness

Key = Tuple[int, int]
"""Epoch and index of a sample."""


class Order:
    """Samples in an order that depends only on the seed and the epoch."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed
        self._epoch, self._drawn = -1, [0]

    def of(self, epoch: int) -> List[int]:
        """Return all samples of an epoch."""
        if self._epoch != epoch:
            order = list(range(self._samples))
            chance = random.Random(f"{self._seed}/{epoch}")  # noqa: S311 - no secret
            chance.shuffle(order)
            self._epoch, self._drawn = epoch, order
        return self._drawn

    def sample(self, place: int) -> int:
        """Return the sample at an index counted over all epochs."""
        epoch, within = divmod(place, self._samples)
        return self.of(epoch)[within]


class Feed:
    """The samples of every logical worker, epoch after epoch, infinite.

    The order of each epoch depends only on the seed and the epoch. Step ``k`` gives worker ``v``
    the ``v``-th of ``workers`` consecutive batches; samples that do not fill a complete step are
    omitted from their epoch. Random draws of the dataset for a sample depend on seed, epoch and
    sample only: not on loading processes, the calling process or restarts.

    Args:
        dataset: data set with ``__len__`` and ``__getitem__``.
        batch_size: samples of one logical worker in one step.
        seed: seed of the order and of random draws for samples.
        loading_processes: prefetchers of each training process.
        draws: whether samples use random draws (augmentation); False saves the seeding.
        collate: creates a batch from samples; PyTorch's own if None.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        seed: int = 0,
        loading_processes: int = 0,
        draws: bool = True,
        collate: Any = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; use at least 1")
        self.batch_size = batch_size
        self._dataset = dataset
        self._seed = seed
        self._processes = loading_processes
        self._draws = draws
        self._collate = collate
        self._order = Order(len(dataset), seed)

    def steps_of_an_epoch(self, workers: int) -> int:
        """Return the whole steps in one epoch.

        Raises:
            ValueError: the dataset does not fill one step.
        """
        steps = len(self._dataset) // (self.batch_size * workers)
        if steps == 0:
            raise ValueError(
                f"{len(self._dataset)} samples are not enough for one step of {workers} "
                f"logical workers"
                f" with {self.batch_size} samples each"
            )
        return int(steps)

    def keys(self, step: int, worker: int, workers: int) -> List[Key]:
        """Return the samples of one worker in one step of the whole training."""
        epoch, within = divmod(step, self.steps_of_an_epoch(workers))
        order = self._order.of(epoch)
        first = (within * workers + worker) * self.batch_size
        return [(epoch, index) for index in order[first : first + self.batch_size]]

    def batches(self, step: int, held: Sequence[int], workers: int) -> Iterator[Any]:
        """Yield the batches of a process from a step on: one for each held worker per step.

        It does not use random generators of this process.
        """
        loader = DataLoader(
            _Seeded(self._dataset, self._seed if self._draws else None),
            batch_sampler=_Endless(self, step, held, workers),
            num_workers=self._processes,
            collate_fn=self._collate,
            persistent_workers=False,
        )
        with randomness.kept():
            found: Iterator[Any] = iter(loader)
        return found

    def describe(self, workers: int) -> Dict[str, Any]:
        """Return the description of a feed for a checkpoint, to be compared on resume."""
        return {
            "batch_size": self.batch_size,
            "seed": self._seed,
            "samples": len(self._dataset),
            "steps_of_an_epoch": self.steps_of_an_epoch(workers),
        }


class _Endless:
    """Batches of keys, in order of use."""

    def __init__(self, feed: Feed, step: int, held: Sequence[int], workers: int) -> None:
        self._place = (feed, step, held, workers)

    def __iter__(self) -> Iterator[List[Key]]:
        feed, step, held, workers = self._place
        while True:
            for worker in held:
                yield feed.keys(step, worker, workers)
            step += 1


class _Seeded:
    """A dataset with separate random draws for each sample."""

    def __init__(self, dataset: Any, seed: Any) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, keys: Sequence[Key]) -> List[Any]:
        if self._seed is None:
            return [self._dataset[index] for _, index in keys]
        found = []
        with randomness.kept():
            for epoch, index in keys:
                randomness.seed_all(self._seed, epoch, index)
                found.append(self._dataset[index])
        return found

    def __getitem__(self, key: Key) -> Any:
        return self.__getitems__([key])[0]


class Contexts:
    """Generators and buffers of the workers of a process.

    Buffers are switched by exchanging the storage of the module's tensors: nothing is copied.

    Args:
        model: model with buffers per worker.
        held: the workers of this process.
        seed: seed of each worker's generators.
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
        """Restore the generators after calls of `enter` and `leave`.

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
        """Return the contexts of this process's logical workers, in order, for a checkpoint."""
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
            contexts: contexts of all workers.
        """
        self._held = held
        self._chance, self._buffers = {}, {}
        self.take_up(contexts)

    def take_up(self, contexts: Sequence[Dict[str, Any]]) -> None:
        """Load the contexts of the local workers from a checkpoint."""
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
