"""Training with a batch that the control plane chooses (Pollux, OSDI'21; Sia, SOSP'23).

Every process computes `accumulation` micro-batches of the same size in a step; gradients are
averaged over all of them. From their norms the noise scale is estimated, from it the learning
rate, and both are reported, so that the portal can choose the batch of the highest goodput and
send it to the job. It is applied between two steps, by all processes at once. Needs PyTorch.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch.utils.data import DataLoader

from tessera.train import control, randomness
from tessera.train.batch_profiling import profiler_of_job
from tessera.train.checkpoints import Saver
from tessera.train.elastic import Elastic, ResumeError
from tessera.train.noise import NoiseScale, rate_factor
from tessera.train.reports import report, report_event
from tessera.train.workers import Order

VERSION = 1


class BatchSplit(NamedTuple):
    """Composition of a step's batch.

    Attributes:
        micro: samples of one process in one micro-batch.
        accumulation: micro-batches of one process in one step.
    """

    micro: int
    accumulation: int

    def batch(self, processes: int) -> int:
        """Return the number of samples of a step."""
        return self.micro * self.accumulation * processes


def fitting(batch: int, accumulation: int, processes: int, largest_micro: int) -> BatchSplit:
    """Return the choice nearest to a batch, not above it if possible, that fits the devices.

    >>> fitting(100, 1, 4, 64)
    BatchSplit(micro=25, accumulation=1)
    >>> fitting(100, 1, 2, 20)
    BatchSplit(micro=16, accumulation=3)
    """
    each = max(1, batch // processes)
    accumulation = max(1, min(accumulation, each), -(-each // largest_micro))
    return BatchSplit(max(1, each // accumulation), accumulation)


class AdaptiveBatch(Elastic):
    """Trains a model with a batch that may change between steps.

    >>> adaptive = AdaptiveBatch(model, optimizer, dataset, initial_batch=128, largest_micro=256)
    >>> for step in adaptive.steps(10_000):
    ...     loss = adaptive.step(lambda batch: cross_entropy(model(batch[0]), batch[1]))

    Args:
        model: created with the same seed in all processes, on its device, not wrapped by DDP.
        optimizer: optimizer of its parameters, with the learning rates of the initial batch.
        dataset: data set with ``__len__`` and ``__getitem__``.
        initial_batch: samples of all processes, for which the rates were chosen.
        largest_micro: samples that a device's memory holds at once.
        rule: learning-rate rule: ``adascale``, ``sqrt`` or ``linear``.
        seed: seed of the order of samples.
        scheduler: learning-rate scheduler, stepped once for each step's worth of progress.
        loading_processes: number of prefetching processes for each training process.
        saver: saver of checkpoints; the job's own if None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        *,
        initial_batch: int,
        largest_micro: int,
        rule: str = "adascale",
        seed: int = 0,
        scheduler: Any = None,
        loading_processes: int = 0,
        saver: Optional[Saver] = None,
    ) -> None:
        if initial_batch < 1 or largest_micro < 1:
            raise ValueError("initial_batch and largest_micro must be at least 1")
        rate_factor(rule, NoiseScale(), 1.0)  # raises if the rule does not exist
        super().__init__(model, optimizer, scheduler=scheduler, saver=saver)
        self.initial_batch, self.largest_micro, self.rule = initial_batch, largest_micro, rule
        self._dataset, self._loading = dataset, loading_processes
        self._order = Order(len(dataset), seed)
        self.noise = NoiseScale()
        self.samples, self.progress = 0, 0.0
        self.choice = fitting(initial_batch, 1, self.peers.size, largest_micro)
        self._chosen = (0, 0)
        self._earlier: Optional[torch.Tensor] = None
        self._profiler = profiler_of_job(min(largest_micro, len(dataset)))
        self._start()

    @property
    def batch(self) -> int:
        """Samples of a step, of all processes together."""
        return self.choice.batch(self.peers.size)

    @property
    def scale(self) -> float:
        """The batch in multiples of the initial batch."""
        return self.batch / self.initial_batch

    # -- steps -----------------------------------------------------------------------------------

    def steps(self, progress: float, *, every: int = 0) -> Iterator[int]:
        """Yield the step numbers until the progress equals ``progress`` initial steps.

        A checkpoint is saved every ``every`` steps (0 for never), on a notice to leave
        (then the loop ends), and after the last step.

        Raises:
            SystemExit: the job only measures a profile, which has been reported.
        """
        if self._profiler is not None:
            yield from self._profiled_steps()
            raise SystemExit(0 if self._report_profile() else 1)
        yield from self._turns(lambda: self.progress >= progress, every)

    def step(self, forward: Callable[[Any], torch.Tensor]) -> float:
        """Compute one batch and update the parameters; to be called in the loop of `steps`.

        Args:
            forward: returns the mean loss of one micro-batch.

        Returns:
            The mean loss over the whole batch, the same in all processes.
        """
        if self._profiler is None:
            return self._train(forward)
        try:
            loss = self._train(forward)
        except torch.OutOfMemoryError:
            if self.peers.size > 1:
                raise
            self._profiler.is_out_of_memory = True
            return float("nan")
        self._profiler.add_step(self._worked_seconds)
        return loss

    def _train(self, forward: Callable[[Any], torch.Tensor]) -> float:
        began = time.perf_counter()
        choice, squares, loss_sum = self.choice, 0.0, 0.0
        total: Optional[torch.Tensor] = None
        for _ in range(choice.accumulation):
            loss = forward(next(self._batches))
            loss.backward()
            flat = self._take_gradient()
            squares += float(flat.square().sum())
            loss_sum += float(loss.detach())
            total = flat if total is None else total.add_(flat)
        assert total is not None  # noqa: S101 - accumulation is 1 at least
        met = time.perf_counter()
        self.peers.add_up(total)
        sync = time.perf_counter() - met
        mean, loss_mean = self._average(total, squares, loss_sum)
        self._update(mean)
        self.samples += self.batch
        seconds = self._finish_step(began)
        report(
            step=self.done - 1,
            samples=choice.micro * choice.accumulation,
            step_seconds=seconds,
            sync_seconds=sync if self.peers.size > 1 else 0.0,
            loss=loss_mean,
            batch=self.batch,
            accumulation=choice.accumulation,
            noise=(self.noise.square, self.noise.variance),
            efficiency=self.noise.efficiency(self.scale),
            initial_batch=self.initial_batch,
        )
        return loss_mean

    def _take_gradient(self) -> torch.Tensor:
        parts = []
        for parameter in self._parameters:
            gradient = parameter.grad
            part = torch.zeros_like(parameter) if gradient is None else gradient
            parts.append(part.reshape(-1).float())
            parameter.grad = None
        return torch.cat(parts)

    def _average(
        self, total: torch.Tensor, squares: float, loss_sum: float
    ) -> Tuple[torch.Tensor, float]:
        """Average gradient and loss over all micro-batches, and update the noise estimate."""
        parts = self.choice.accumulation * self.peers.size
        mean = total / parts
        wanted = control.settings() if self.peers.rank == 0 else control.Settings()
        told = [wanted.batch or 0, wanted.accumulation if wanted.batch else 0]
        squares, loss_sum, asked, *chosen = self.peers.agree(
            [squares, loss_sum, float(control.should_yield()), *(float(one) for one in told)]
        )
        self._leaving = asked > 0
        self._chosen = (int(chosen[0]), int(chosen[1]))
        square = float(mean.square().sum())
        if parts > 1:
            self.noise.update(
                parts=parts,
                mean_of_squares=squares / parts,
                square_of_mean=square,
                scale=self.scale,
            )
        elif self._earlier is not None:
            self.noise.between(
                earlier_square=float(self._earlier.square().sum()),
                square=square,
                product=float(self._earlier @ mean),
                scale=self.scale,
            )
        self._earlier = mean.clone() if parts == 1 else None
        return mean, loss_sum / parts

    def _update(self, mean: torch.Tensor) -> None:
        pieces = mean.split([parameter.numel() for parameter in self._parameters])
        for parameter, piece in zip(self._parameters, pieces):
            parameter.grad = piece.view(parameter.shape).to(parameter.dtype)
        factor = rate_factor(self.rule, self.noise, self.scale)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate * factor
        self.optimizer.step()
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate
        for parameter in self._parameters:
            parameter.grad = None
        before = int(self.progress)
        self.progress += self.noise.gain(self.scale)
        if self.scheduler is not None:
            for _ in range(int(self.progress) - before):
                self.scheduler.step()

    # -- profile ---------------------------------------------------------------------------------

    def _profiled_steps(self) -> Iterator[int]:
        """Yield the steps of a profile, with each of its batches in turn."""
        assert self._profiler is not None  # noqa: S101 - the caller has checked it
        for micro in self._profiler.sizes():
            self.choice, self._earlier = BatchSplit(micro, 1), None
            self._open()
            for _ in self._profiler.turns():
                yield self.done
            self._profiler.end_size(self.batch)

    def _report_profile(self) -> bool:
        assert self._profiler is not None  # noqa: S101 - the caller has checked it
        return self.peers.rank != 0 or self._profiler.report(self.noise)

    # -- the batch -------------------------------------------------------------------------------

    def _between(self) -> None:
        """Apply the control plane's choice, in all processes at the same step."""
        batch, accumulation = self._chosen
        if batch < 1:
            return
        limit = min(batch, len(self._dataset))
        chosen = fitting(limit, accumulation or 1, self.peers.size, self.largest_micro)
        if chosen != self.choice:
            self.choice = chosen
            self._earlier = None
            self._open()
            if self.peers.rank == 0:
                accumulation = chosen.accumulation
                report_event("batch", step=self.done, batch=self.batch, accumulation=accumulation)

    def _open(self) -> None:
        """Start loading from the current sample, in pieces of the current size."""
        with randomness.kept():
            self._batches = iter(
                DataLoader(
                    self._dataset,
                    batch_sampler=self._micro_batches(),
                    num_workers=self._loading,
                )
            )

    def _micro_batches(self) -> Iterator[List[int]]:
        at, choice, rank = self.samples, self.choice, self.peers.rank
        while True:
            first = at + rank * choice.micro * choice.accumulation
            for turn in range(choice.accumulation):
                begin = first + turn * choice.micro
                yield [self._order.sample(place) for place in range(begin, begin + choice.micro)]
            at += choice.batch(self.peers.size)

    # -- checkpoints -----------------------------------------------------------------------------

    def save(self) -> None:
        """Save a checkpoint at this step; to be called by all processes."""
        state = {
            "version": VERSION,
            "done": self.done,
            "samples": self.samples,
            "progress": self.progress,
            "initial_batch": self.initial_batch,
            "noise": self.noise.to_state(),
            "batch": [self.batch, self.choice.accumulation],
            "model": self.model.state_dict(),
            **self._rules(),
            "chance": randomness.portable(randomness.capture()),
        }
        self._saver.save(self.done, state)
        self.peers.wait()

    def _take_up(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != VERSION or state.get("initial_batch") != self.initial_batch:
            raise ResumeError(
                f"the checkpoint belongs to another training job (initial batch"
                f" {state.get('initial_batch')}, here {self.initial_batch})"
            )
        self.model.load_state_dict(state["model"])
        self._take_up_rules(state)
        self.noise = NoiseScale.from_state(state["noise"])
        self.done, self.samples = int(state["done"]), int(state["samples"])
        self.progress = float(state["progress"])
        batch, accumulation = state["batch"]
        self.choice = fitting(batch, accumulation, self.peers.size, self.largest_micro)
        if self.peers.rank == 0:
            randomness.restore(randomness.from_portable(state["chance"]))
