"""Training of large models with pipeline, data and tensor parallelism.

Needs PyTorch.
"""

from __future__ import annotations

import math
import os
import time
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import torch
from torch import distributed, nn

from tessera.train import control, randomness
from tessera.train.checkpoints import Saver
from tessera.train.elastic import Turns
from tessera.train.environment import device as device_of_process
from tessera.train.environment import job
from tessera.train.hybrid.layers import Layer, OwnLayers
from tessera.train.hybrid.pipeline import Feed, Groups, Loss, Pipeline
from tessera.train.hybrid.plans import (
    ParallelPlan,
    PlanError,
    Stage,
    parallel_of_job,
    plan_of_job,
)
from tessera.train.hybrid.profiling import Program, report_profile
from tessera.train.hybrid.splitting import Split
from tessera.train.hybrid.state import (
    collect,
    group_settings,
    merged,
    share_out,
)
from tessera.train.hybrid.ties import gradient_of
from tessera.train.lending import exchange, keep_group
from tessera.train.memory import keep_freed_memory
from tessera.train.peers import Peers
from tessera.train.reports import report

PRECISIONS = ("", "bf16", "fp16")
_BUCKET_BYTES = 25 << 20
_FIRST_SCALE, _GROWTH_STEPS = 2.0**16, 2000


class LossScale:
    """Factor of the loss that prevents an underflow of gradients in ``fp16``.

    Attributes:
        is_used: whether losses are scaled.
        factor: the factor; 1 if losses are not scaled.
    """

    def __init__(self, *, is_used: bool) -> None:
        self.is_used = is_used
        self.factor = _FIRST_SCALE if is_used else 1.0
        self._since_skip = 0

    def reduce(self) -> None:
        """Halve the factor after a step with overflowing gradients."""
        self.factor, self._since_skip = max(1.0, self.factor / 2.0), 0

    def count_step(self) -> None:
        """Double the factor after ``_GROWTH_STEPS`` steps without an overflow."""
        self._since_skip += 1
        if self.is_used and self._since_skip == _GROWTH_STEPS:
            self.factor, self._since_skip = self.factor * 2.0, 0

    def state(self) -> List[float]:
        """Return factor and number of steps since an overflow, for a checkpoint."""
        return [self.factor, self._since_skip]

    def load(self, state: Sequence[float]) -> None:
        """Load the values of a checkpoint, if losses are scaled."""
        if self.is_used:
            self.factor, self._since_skip = float(state[0]), int(state[1])


class Hybrid(Turns):
    """A model as a list of layers, trained under a parallel plan.

    All processes of the job create it with the same arguments. Each one holds the layers of its
    stage, and a part of the modules in ``split``. Losses, gradients and updates equal those of one
    process, except for rounding; checkpoints do not depend on the plan.

    >>> hybrid = Hybrid(
    ...     [Embed(), *[Block() for _ in range(24)], Head()],
    ...     loss=cross_entropy,
    ...     optimizer=lambda parameters: AdamW(parameters, 1e-3),
    ...     feed=lambda step, samples: data.batch(step, samples),
    ...     split={Block: {"query": "column", "key": "column", "value": "column", "out": "row"}},
    ... )
    >>> for step in hybrid.steps(10_000, every=500):
    ...     hybrid.step()

    Args:
        layers: in their order; a function that creates a layer is called in the processes that
            hold it. Each layer takes the output of the one before, one tensor between stages.
        loss: mean loss of some samples, from the output of the last layer and the targets.
        optimizer: creates the optimizer of a list of parameters.
        feed: inputs and targets of ``samples``, a range within the batch of a step; the first
            dimension counts samples. It must depend on its arguments only.
        plan: the parallel plan; by default that of the job (``TESSERA_JOB_PLAN``), or replicas of
            the whole model.
        batch: samples of a step, if there is no plan; by default that of the job's document.
        split: linear modules to divide over the devices of a replica, by class of layer.
        tied: groups of parameters with one value, by names such as ``0.weight``; undivided.
        scheduler: creates the scheduler of the learning rate.
        clip: limit of the norm of all gradients together; 0 for none.
        precision: ``bf16`` or ``fp16`` for passes in this type (autocast; ``fp16`` scales the
            loss); empty for the type of the parameters.
        recompute: whether layers store only their inputs until the backward pass (activation
            checkpointing).
        seed: seed of random draws in layers; they depend on step, micro-batch and layer.
        timeout: seconds after which an exchange fails because another process has ended.
        saver: saver of checkpoints; the job's own if None.

    Attributes:
        plan: the parallel plan.
        place: position of this process in it.
        layers: the layers of this process by number.
        optimizer, scheduler: of this process's parameters.

    Raises:
        PlanError: the plan does not fit the layers or the processes, or a layer is not supported.
        ResumeError: the newest checkpoint belongs to another model.
        SystemExit: the job only measures a profile, which has been reported.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        loss: Loss,
        optimizer: Callable[[List[nn.Parameter]], torch.optim.Optimizer],
        feed: Feed,
        plan: Optional[ParallelPlan] = None,
        batch: int = 0,
        split: Optional[Split] = None,
        tied: Sequence[Sequence[str]] = (),
        scheduler: Optional[Callable[[torch.optim.Optimizer], Any]] = None,
        clip: float = 0.0,
        precision: str = "",
        recompute: bool = False,
        seed: int = 0,
        timeout: float = 600.0,
        saver: Optional[Saver] = None,
    ) -> None:
        super().__init__()
        dtype, split = _type_of_passes(precision), split or {}
        self._device = torch.device(device_of_process())
        if self._device.type == "cpu":
            keep_freed_memory()
        program = Program(layers, loss, optimizer, feed, split, batch, dtype, recompute, seed)
        _profile_if_declared(program, self._device)
        self.peers = Peers(self._device, timeout=timedelta(seconds=timeout))
        if self.peers.size > 1:
            keep_group(distributed.group.WORLD)
        self.plan = _fitting_plan(plan, len(layers), self.peers.size, batch)
        self.place = self.plan.place_of(self.peers.rank)
        self._stage = self.plan.stages[self.place.stage]
        self._groups = Groups(self.plan, self.place)
        self._seed, self._clip, self._feed = seed, clip, feed
        self._own = OwnLayers(
            layers,
            split=split,
            tied=tied,
            plan=self.plan,
            place=self.place,
            groups=self._groups,
            device=self._device,
            seed=seed,
        )
        self.layers = self._own.modules
        self.optimizer = optimizer(self._parameters_to_train())
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        self._scale = LossScale(is_used=precision == "fp16")
        self._pipeline = Pipeline(
            self.plan,
            self.place,
            self.layers,
            loss,
            self._groups,
            device=self._device,
            dtype=dtype,
            recompute=recompute,
        )
        self._saver = saver or Saver(leads=self.peers.rank == 0)
        self._resume()

    def _parameters_to_train(self) -> List[nn.Parameter]:
        # A stage of layers without parameters has an optimizer, too: an optimizer needs one.
        return self._own.parameters or [nn.Parameter(torch.zeros((), device=self._device))]

    # -- steps -----------------------------------------------------------------------------------

    def steps(self, total: int, *, every: int = 0) -> Iterator[int]:
        """Yield the step numbers from the last checkpoint up to ``total``.

        A checkpoint is saved every ``every`` steps (0 for never), on a notice to leave (then the
        loop ends), and after the last step.
        """
        yield from self._turns(lambda: self.done >= total, every)

    def step(self) -> float:
        """Train on one batch; to be called in the loop of `steps`, by all processes.

        Returns:
            The mean loss of the batch, the same in all processes.
        """
        began = time.perf_counter()
        for layer in self.layers.values():
            layer.train()
        self.optimizer.zero_grad(set_to_none=True)
        part = self._pipeline.train(
            self.done, self._feed, seed=self._seed, scale=self._scale.factor
        )
        met = time.perf_counter()
        self._exchange_gradients()
        sync = time.perf_counter() - met
        loss, asked, square = self.peers.agree(
            [self._own_loss(part), float(control.should_yield()), self._own_square()]
        )
        self._leaving = asked > 0
        self._update(math.sqrt(square) if square >= 0.0 else math.nan)
        seconds = self._finish_step(began)
        report(
            step=self.done - 1,
            samples=self.plan.batch / self.peers.size,
            step_seconds=seconds,
            sync_seconds=sync if self.peers.size > 1 else 0.0,
            loss=loss,
        )
        return loss

    def evaluate(self, feed: Feed, batches: int) -> float:
        """Return the mean loss of batches without training; to be called by all processes.

        Args:
            feed: as for training; its first argument counts the batches from 0.
            batches: number of batches.
        """
        for layer in self.layers.values():
            layer.eval()
        total = torch.zeros((), dtype=torch.float64)
        with randomness.kept():
            for number in range(batches):
                total += self._pipeline.evaluate(number, feed)
        return self.peers.agree([self._own_loss(total)])[0] / batches

    def _own_loss(self, part: torch.Tensor) -> float:
        """Return this process's summand of the loss: the parts of a replica have equal losses."""
        return float(part) if self.place.tensor == 0 else 0.0

    def _exchange_gradients(self) -> None:
        """Add up the gradients of all replicas and of tied parameters; missing ones are 0."""
        gradients = [gradient_of(one) for one in self._own.parameters]
        if self._groups.data is not None:
            for bucket in _buckets(gradients):
                flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
                exchange(distributed.all_reduce, flat, group=self._groups.data)
                at = 0
                for gradient in bucket:
                    gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
                    at += gradient.numel()
        self._own.ties.exchange_gradients(self._stage.devices)
        if self._scale.factor != 1.0:
            for gradient in gradients:
                gradient.div_(self._scale.factor)

    def _own_square(self) -> float:
        """Return this process's summand of the squared norm, if clipping or scaling needs it."""
        is_needed = (self._clip or self._scale.is_used) and not self.place.data
        return self._own.square() if is_needed else 0.0

    def _update(self, norm: float) -> None:
        """Update the parameters; a step with overflowing scaled gradients is skipped."""
        if self._scale.is_used and not math.isfinite(norm):
            self._scale.reduce()
            return
        if self._clip and norm > self._clip:
            for parameter in self._own.parameters:
                gradient_of(parameter).mul_(self._clip / (norm + 1e-6))
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self._scale.count_step()

    # -- checkpoints -----------------------------------------------------------------------------

    def save(self) -> None:
        """Save a checkpoint at this step; to be called by all processes.

        The first process collects the whole state in its host memory and writes it.
        """
        parts = collect(self._own.state(self.optimizer), self.plan, self.place)
        if parts is None:
            return
        whole = merged(parts)
        whole.update(
            step=self.done,
            groups=group_settings(self.optimizer),
            scheduler=None if self.scheduler is None else self.scheduler.state_dict(),
            scale=self._scale.state(),
            plan=self.plan.document(),
        )
        self._saver.save(self.done, whole)

    def state_dict(self) -> Optional[Dict[str, torch.Tensor]]:
        """Return all parameters and buffers by names ``<layer>.<name>``, in the first process.

        To be called by all processes. None in the others.
        """
        parts = collect(
            {**self._own.state(self.optimizer), "optimizer": {}}, self.plan, self.place
        )
        if parts is None:
            return None
        whole = merged(parts)
        values: Dict[str, torch.Tensor] = {**whole["parameters"], **whole["buffers"]}
        values.update({copy: values[first] for copy, first in self._own.ties.all_copies.items()})
        return values

    def load_state_dict(self, values: Dict[str, torch.Tensor]) -> None:
        """Load pretrained parameters and buffers, named as by `state_dict`, in all processes.

        Raises:
            ResumeError: a parameter is missing or has another shape.
        """
        self._own.load_values({"parameters": values, "buffers": values})

    def _resume(self) -> None:
        """Resume from the newest checkpoint of any node; one process of each node reads."""
        found = self._saver.load() if job().local_rank == 0 else None
        names = self.peers.gather_all(f"{found[0].step if found else -1}".encode("ascii"))
        steps = [int(name) for name in names]
        if max(steps) < 0:
            return
        owner = steps.index(max(steps))
        parts = None
        if self.peers.rank == owner and found is not None:
            places = [self.plan.place_of(rank) for rank in range(self.plan.processes)]
            parts = [self._own.state_of(found[1], self.plan.stages[p.stage]) for p in places]
        state = share_out(parts, owner)
        self._own.load_values(state)
        self._own.load_optimizer(state, self.optimizer)
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._scale.load(state["scale"])
        self.done = int(state["step"])


def _type_of_passes(precision: str) -> Optional[torch.dtype]:
    """Return the data type of the passes; None for that of the parameters."""
    if precision not in PRECISIONS:
        raise PlanError(f"unknown precision {precision!r}: use bf16, fp16 or nothing")
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def _profile_if_declared(program: Program, device: torch.device) -> None:
    """Report a profile and end the process, if the job does not train but measures a profile.

    Args:
        program: with the samples of a step, which the job's document may replace.
        device: the device of this process; only the first process measures.
    """
    declared = parallel_of_job()
    if declared.get("profile") != "only":
        return
    if int(os.environ.get("RANK", "0")) == 0:
        batch = declared.get("batch", program.samples)
        samples = max(1, batch // declared.get("micro_batches", 1))
        report_profile(
            program._replace(samples=samples),
            device=device,
            max_tensor=declared.get("max_tensor"),
        )
    raise SystemExit(0)


def _fitting_plan(
    plan: Optional[ParallelPlan], layers: int, processes: int, batch: int
) -> ParallelPlan:
    """Return the given plan, that of the job, or replicas of the whole model.

    Raises:
        PlanError: the plan is for other numbers of layers or processes.
    """
    plan = plan or plan_of_job() or _replicas(layers, processes, batch)
    if plan.processes != processes or plan.layers != layers:
        raise PlanError(
            f"the plan is for {plan.layers} layers on {plan.processes} devices; the"
            f" job has {layers} layers and {processes} processes"
        )
    return plan


def _replicas(layers: int, processes: int, batch: int) -> ParallelPlan:
    """Return the plan with one replica in each process, with the batch of the job's document."""
    declared = parallel_of_job()
    batch = batch or declared.get("batch", 0)
    if batch < 1:
        raise PlanError("without a plan, `batch` must be the number of samples of a step")
    stages = (Stage(0, layers, data=processes),)
    return ParallelPlan(stages, declared.get("micro_batches", 1), batch)


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    """Yield lists of tensors of one data type, to be exchanged together."""
    bucket: List[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (size > _BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel() * gradient.element_size()
    if bucket:
        yield bucket
