"""Training of large models with pipeline, data and tensor parallelism.

Needs PyTorch.
"""

from __future__ import annotations

import math
import os
import time
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple, Union

import torch
from torch import distributed, nn

from tessera.train import control, randomness
from tessera.train.checkpoints import Saver
from tessera.train.elastic import ResumeError, Turns
from tessera.train.environment import device as device_of_process
from tessera.train.environment import job
from tessera.train.hybrid.pipeline import Feed, Groups, Loss, Pipeline
from tessera.train.hybrid.plans import (
    ParallelPlan,
    PlanError,
    Stage,
    parallel_of_job,
    plan_of_job,
)
from tessera.train.hybrid.profiling import Program, report_profile
from tessera.train.hybrid.splitting import Split, split_layer
from tessera.train.hybrid.state import (
    State,
    collect,
    group_settings,
    is_divided_like,
    merged,
    optimizer_state,
    part_of,
    share_out,
)
from tessera.train.hybrid.ties import Ties, gradient_of, layer_of
from tessera.train.lending import exchange, keep_group
from tessera.train.memory import keep_freed_memory
from tessera.train.peers import Peers
from tessera.train.reports import report

Layer = Union[nn.Module, Callable[[], nn.Module]]
PRECISIONS = ("", "bf16", "fp16")
_BUCKET_BYTES = 25 << 20
_FIRST_SCALE, _GROWTH_STEPS = 2.0**16, 2000


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
        if precision not in PRECISIONS:
            raise PlanError(f"unknown precision {precision!r}: use bf16, fp16 or nothing")
        self._device = torch.device(device_of_process())
        if self._device.type == "cpu":
            keep_freed_memory()
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        declared = parallel_of_job()
        if declared.get("profile") == "only":
            samples = max(1, declared.get("batch", batch) // declared.get("micro_batches", 1))
            program = Program(
                layers, loss, optimizer, feed, split or {}, samples, dtype, recompute, seed
            )
            _profile(program, self._device, declared.get("max_tensor"))
        self.peers = Peers(self._device, timeout=timedelta(seconds=timeout))
        if self.peers.size > 1:
            keep_group(distributed.group.WORLD)
        self.plan = plan or plan_of_job() or _replicas(len(layers), self.peers.size, batch)
        if self.plan.processes != self.peers.size or self.plan.layers != len(layers):
            raise PlanError(
                f"the plan is for {self.plan.layers} layers on {self.plan.processes} devices; the"
                f" job has {len(layers)} layers and {self.peers.size} processes"
            )
        self.place = self.plan.place_of(self.peers.rank)
        self._stage = self.plan.stages[self.place.stage]
        self._groups = Groups(self.plan, self.place)
        self._seed, self._clip, self._feed = seed, clip, feed
        self._dimensions: Dict[str, int] = {}
        self._shapes: Dict[str, Tuple[int, ...]] = {}
        self.layers = self._own_layers(layers, split or {})
        self._tied = Ties(self.plan, self.place.stage, tied, self.layers, self._dimensions)
        self._names = _named_parameters(self.layers)
        self._parameters = [one for one in self._names if one.requires_grad]
        # A stage of layers without parameters has an optimizer, too: an optimizer needs one.
        own = self._parameters or [nn.Parameter(torch.zeros((), device=self._device))]
        self.optimizer = optimizer(own)
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        self._scale = _FIRST_SCALE if precision == "fp16" else 1.0
        self._scales, self._since_skip = precision == "fp16", 0
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

    # -- layers ----------------------------------------------------------------------------------

    def _own_layers(self, layers: Sequence[Layer], split: Split) -> Dict[int, nn.Module]:
        found: Dict[int, nn.Module] = {}
        for number in range(self._stage.first, self._stage.last):
            given = layers[number]
            if not isinstance(given, nn.Module):
                randomness.seed_all(self._seed, number)
            layer = given if isinstance(given, nn.Module) else given()
            for name, module in layer.named_modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    raise PlanError(
                        f"layer {number} contains BatchNorm ({name or 'itself'}), whose statistics"
                        " depend on the plan: use GroupNorm or LayerNorm"
                    )
            shapes = {f"{number}.{name}": tuple(p.shape) for name, p in layer.named_parameters()}
            divided = split_layer(
                layer, split, self.place.tensor, self._stage.tensor, self._groups.tensor
            )
            self._shapes.update(shapes)
            self._dimensions.update({f"{number}.{name}": dim for name, dim in divided.items()})
            found[number] = layer.to(self._device)
        return found

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
        part = self._pipeline.train(self.done, self._feed, seed=self._seed, scale=self._scale)
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
        gradients = [gradient_of(one) for one in self._parameters]
        if self._groups.data is not None:
            for bucket in _buckets(gradients):
                flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
                exchange(distributed.all_reduce, flat, group=self._groups.data)
                at = 0
                for gradient in bucket:
                    gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
                    at += gradient.numel()
        self._tied.exchange_gradients(self._stage.devices)
        if self._scale != 1.0:
            for gradient in gradients:
                gradient.div_(self._scale)

    def _own_square(self) -> float:
        """Return this process's summand of the squared norm of the gradient.

        Each entry of the gradient is counted in one process.
        """
        if not (self._clip or self._scales) or self.place.data:
            return 0.0
        total = 0.0
        for parameter in self._parameters:
            name = self._names[parameter]
            if self._tied.is_copy(name) or (self.place.tensor and name not in self._dimensions):
                continue
            total += float(gradient_of(parameter).to(torch.float64).square().sum())
        return total

    def _update(self, norm: float) -> None:
        """Update the parameters; a step with overflowing scaled gradients is skipped."""
        if self._scales and not math.isfinite(norm):
            self._scale, self._since_skip = max(1.0, self._scale / 2.0), 0
            return
        if self._clip and norm > self._clip:
            for parameter in self._parameters:
                gradient_of(parameter).mul_(self._clip / (norm + 1e-6))
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self._since_skip += 1
        if self._scales and self._since_skip == _GROWTH_STEPS:
            self._scale, self._since_skip = self._scale * 2.0, 0

    # -- checkpoints -----------------------------------------------------------------------------

    def save(self) -> None:
        """Save a checkpoint at this step; to be called by all processes.

        The first process collects the whole state in its host memory and writes it.
        """
        parts = collect(self._own_state(), self.plan, self.place)
        if parts is None:
            return
        whole = merged(parts)
        whole.update(
            step=self.done,
            groups=group_settings(self.optimizer),
            scheduler=None if self.scheduler is None else self.scheduler.state_dict(),
            scale=[self._scale, self._since_skip],
            plan=self.plan.document(),
        )
        self._saver.save(self.done, whole)

    def state_dict(self) -> Optional[Dict[str, torch.Tensor]]:
        """Return all parameters and buffers by names ``<layer>.<name>``, in the first process.

        To be called by all processes. None in the others.
        """
        parts = collect({**self._own_state(), "optimizer": {}}, self.plan, self.place)
        if parts is None:
            return None
        whole = merged(parts)
        values: Dict[str, torch.Tensor] = {**whole["parameters"], **whole["buffers"]}
        values.update({copy: values[first] for copy, first in self._tied.all_copies.items()})
        return values

    def load_state_dict(self, values: Dict[str, torch.Tensor]) -> None:
        """Load pretrained parameters and buffers, named as by `state_dict`, in all processes.

        Raises:
            ResumeError: a parameter is missing or has another shape.
        """
        self._load_values({"parameters": values, "buffers": values})

    def _own_state(self) -> State:
        """Return the state of this process, with the divided dimensions."""
        buffers = {
            f"{number}.{name}": value.detach().cpu()
            for number, layer in self.layers.items()
            for name, value in layer.state_dict().items()
            if name not in dict(layer.named_parameters(remove_duplicate=False))
        }
        names = {one: name for one, name in self._names.items() if not self._tied.is_copy(name)}
        return {
            "parameters": {name: one.detach().cpu() for one, name in names.items()},
            "buffers": buffers,
            "optimizer": optimizer_state(self.optimizer, names),
            "dimensions": self._dimensions,
        }

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
            parts = [self._state_of(found[1], self.plan.stages[p.stage]) for p in places]
        state = share_out(parts, owner)
        self._load_values(state)
        self._load_optimizer(state)
        self.done = int(state["step"])

    def _state_of(self, whole: State, stage: Stage) -> State:
        """Return the state of the layers of a stage, and what all stages have in common."""
        first_of = self._tied.all_copies
        wanted = {
            name for name in whole["parameters"] if stage.first <= layer_of(name) < stage.last
        }
        for copy, first in first_of.items():
            if stage.first <= layer_of(copy) < stage.last:
                wanted.add(first)
        return {
            **whole,
            "parameters": {name: whole["parameters"][name] for name in sorted(wanted)},
            "optimizer": {
                name: value for name, value in whole["optimizer"].items() if name in wanted
            },
            "buffers": {
                name: value
                for name, value in whole["buffers"].items()
                if stage.first <= layer_of(name) < stage.last
            },
        }

    def _load_values(self, state: State) -> None:
        parts, part = self._stage.tensor, self.place.tensor
        with torch.no_grad():
            for parameter, name in self._names.items():
                whole = state["parameters"].get(self._tied.first_of(name))
                if whole is None or tuple(whole.shape) != self._shapes[name]:
                    raise ResumeError(
                        f"the parameter {name} of shape {list(self._shapes[name])} is missing or"
                        " has another shape: the checkpoint belongs to another model"
                    )
                parameter.copy_(part_of(whole, self._dimensions.get(name), part, parts))
            for number, layer in self.layers.items():
                for name, buffer in layer.named_buffers():
                    value = state["buffers"].get(f"{number}.{name}")
                    if value is not None:
                        buffer.copy_(value)

    def _load_optimizer(self, state: State) -> None:
        parts, part = self._stage.tensor, self.place.tensor
        for parameter, name in self._names.items():
            saved = state["optimizer"].get(self._tied.first_of(name))
            if saved is None:
                continue
            shape, dimension = self._shapes[name], self._dimensions.get(name)
            self.optimizer.state[parameter].update(
                {
                    key: part_of(value, dimension, part, parts).to(parameter.device).clone()
                    if is_divided_like(value, shape)
                    else value
                    for key, value in saved.items()
                }
            )
        for group, settings in zip(self.optimizer.param_groups, state["groups"]):
            group.update(settings)
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self._scales:
            self._scale, self._since_skip = float(state["scale"][0]), int(state["scale"][1])


def _profile(program: Program, device: torch.device, max_tensor: Optional[int]) -> NoReturn:
    """Report a profile from the first process, and end the process: such a job does not train."""
    if int(os.environ.get("RANK", "0")) == 0:
        report_profile(program, device=device, max_tensor=max_tensor)
    raise SystemExit(0)


def _replicas(layers: int, processes: int, batch: int) -> ParallelPlan:
    """Return the plan with one replica in each process, with the batch of the job's document."""
    declared = parallel_of_job()
    batch = batch or declared.get("batch", 0)
    if batch < 1:
        raise PlanError("without a plan, `batch` must be the number of samples of a step")
    stages = (Stage(0, layers, data=processes),)
    return ParallelPlan(stages, declared.get("micro_batches", 1), batch)


def _named_parameters(layers: Dict[int, nn.Module]) -> Dict[nn.Parameter, str]:
    """Return each parameter with its first name, in the order of the layers."""
    found: Dict[nn.Parameter, str] = {}
    for number, layer in layers.items():
        for name, parameter in layer.named_parameters():
            found.setdefault(parameter, f"{number}.{name}")
    return found


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
