"""Parallel plans: layers and devices of each stage of a pipeline; standard library only."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

VERSION = 1
PLAN_VARIABLE = "TESSERA_JOB_PLAN"
PARALLEL_VARIABLE = "TESSERA_JOB_PARALLEL"
SCHEDULES = ("1f1b", "gpipe")
_PLAN_KEYS = {"version", "stages", "micro_batches", "schedule", "batch", "id"}
_STAGE_KEYS = {"first", "last", "data", "tensor"}


class PlanError(ValueError):
    """A parallel plan is not valid, or does not fit the model or the processes."""


class Place(NamedTuple):
    """The position of a process in a plan.

    Attributes:
        stage: index of its stage.
        data: index of its replica within the stage.
        tensor: index of its part within the replica.
    """

    stage: int
    data: int
    tensor: int


@dataclass(frozen=True)
class Stage:
    """A contiguous part of the layers and its devices.

    Attributes:
        first, last: its layers from ``first`` up to ``last``, exclusive.
        data: number of replicas (data parallelism).
        tensor: devices of each replica (tensor parallelism).
    """

    first: int
    last: int
    data: int = 1
    tensor: int = 1

    @property
    def devices(self) -> int:
        """Number of devices, one process each."""
        return self.data * self.tensor


@dataclass(frozen=True)
class ParallelPlan:
    """The division of a training step over processes.

    Processes are numbered by stages, then replicas, then parts of a replica, so that the parts of
    one replica are neighbours.

    Attributes:
        stages: in the order of the layers.
        micro_batches: parts of a batch that pass through the pipeline one after another.
        schedule: ``1f1b`` or ``gpipe`` (all forward passes first).
        batch: samples of a step, over all replicas.

    Raises:
        PlanError: the layers have gaps, or the batch does not divide evenly.
    """

    stages: Tuple[Stage, ...]
    micro_batches: int
    batch: int
    schedule: str = "1f1b"

    def __post_init__(self) -> None:
        numbers = [self.micro_batches, self.batch]
        numbers += [n for s in self.stages for n in (s.last - s.first, s.data, s.tensor)]
        if not self.stages or min(numbers) < 1:
            raise PlanError("a plan needs stages with layers and devices, and a positive batch")
        ends = [0, *(stage.last for stage in self.stages)]
        if [stage.first for stage in self.stages] != ends[:-1]:
            raise PlanError("the stages do not cover all layers in their order: begin at layer 0")
        if self.schedule not in SCHEDULES:
            raise PlanError(f"unknown schedule {self.schedule!r}: use {' or '.join(SCHEDULES)}")
        for stage in self.stages:
            if self.batch % (self.micro_batches * stage.data):
                raise PlanError(
                    f"batch {self.batch} does not divide by {self.micro_batches} micro-batches"
                    f" x {stage.data} replicas: use a multiple of both"
                )

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.stages[-1].last

    @property
    def processes(self) -> int:
        """Number of processes, one per device."""
        return sum(stage.devices for stage in self.stages)

    def place_of(self, rank: int) -> Place:
        """Return the position of a process by its rank, from 0."""
        for index, stage in enumerate(self.stages):
            if rank < stage.devices:
                return Place(index, *divmod(rank, stage.tensor))
            rank -= stage.devices
        raise PlanError(f"the plan has {self.processes} processes")

    def rank_of(self, place: Place) -> int:
        """Return the rank of a position."""
        before = sum(stage.devices for stage in self.stages[: place.stage])
        return before + place.data * self.stages[place.stage].tensor + place.tensor

    @property
    def samples(self) -> int:
        """Samples of a micro-batch, over all replicas."""
        return self.batch // self.micro_batches

    def document(self) -> Dict[str, Any]:
        """Return the plan as a JSON object, with its ID."""
        content = {
            "version": VERSION,
            "stages": [
                {"first": s.first, "last": s.last, "data": s.data, "tensor": s.tensor}
                for s in self.stages
            ],
            "micro_batches": self.micro_batches,
            "schedule": self.schedule,
            "batch": self.batch,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return {**content, "id": hashlib.sha256(text.encode("ascii")).hexdigest()[:12]}


def read_plan(document: Any) -> ParallelPlan:
    """Parse a plan's JSON object.

    Raises:
        PlanError: it is not a valid plan of this version.
    """
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise PlanError(f"the plan is not an object of version {VERSION}")
    _require_keys(document, _PLAN_KEYS)
    stages = document.get("stages")
    if not isinstance(stages, list):
        raise PlanError("`stages` is not a list")
    return ParallelPlan(
        stages=tuple(_read_stage(stage) for stage in stages),
        micro_batches=_whole(document, "micro_batches"),
        batch=_whole(document, "batch"),
        schedule=str(document.get("schedule", "1f1b")),
    )


def plan_of_job() -> Optional[ParallelPlan]:
    """Return the plan in ``TESSERA_JOB_PLAN``, or None.

    Raises:
        PlanError: it is not valid.
    """
    text = os.environ.get(PLAN_VARIABLE)
    if not text:
        return None
    try:
        return read_plan(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{PLAN_VARIABLE}: {error}") from error


def parallel_of_job() -> Dict[str, Any]:
    """Return the field ``parallel`` of the job's document; empty outside a hybrid job."""
    try:
        found = json.loads(os.environ.get(PARALLEL_VARIABLE) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_stage(document: Any) -> Stage:
    if not isinstance(document, dict):
        raise PlanError("a stage is not an object")
    _require_keys(document, _STAGE_KEYS)
    return Stage(*(_whole(document, name) for name in ("first", "last", "data", "tensor")))


def _require_keys(document: Dict[str, Any], known: Any) -> None:
    unknown = sorted(set(document) - known)
    if unknown:
        raise PlanError(f"unknown key {unknown[0]!r}: use {', '.join(sorted(known))}")


def _whole(document: Dict[str, Any], name: str) -> int:
    value = document.get(name, 1 if name in ("data", "tensor") else None)
    if type(value) is not int or not 0 <= value <= 1 << 20:
        raise PlanError(f"`{name}` is not a whole number from 0 to {1 << 20}")
    return value


class Action(NamedTuple):
    """A pass of one micro-batch through a stage.

    Attributes:
        is_forward: forward or backward pass.
        micro_batch: index of the micro-batch.
    """

    is_forward: bool
    micro_batch: int


def actions_of(plan: ParallelPlan, stage: int) -> List[Action]:
    """Return the passes of a stage in order.

    ``1f1b`` runs as many forward passes as there are stages behind this one, and then one
    backward pass after each forward pass (PipeDream-Flush; Narayanan et al., ICML '21). Both
    schedules add up gradients in the order of the micro-batches, so they give the same sums.
    """
    numbers = range(plan.micro_batches)
    ahead = len(plan.stages) - 1 - stage if plan.schedule == "1f1b" else plan.micro_batches
    ahead = min(ahead, plan.micro_batches)
    found = [Action(True, number) for number in numbers[:ahead]]
    for done, number in enumerate(numbers[ahead:]):
        found += [Action(True, number), Action(False, done)]
    return found + [Action(False, number) for number in numbers[plan.micro_batches - ahead :]]


class Transfer(NamedTuple):
    """Samples of a micro-batch that one process sends to another one.

    Attributes:
        source, target: positions of the processes.
        first, last: samples of the micro-batch from ``first`` up to ``last``, exclusive.
    """

    source: Place
    target: Place
    first: int
    last: int


def transfers_of(plan: ParallelPlan, source: int, target: int) -> List[Transfer]:
    """Return the transfers of one micro-batch from a stage to a neighbouring one.

    Each replica holds an equal, contiguous part of the samples, and each process of a replica
    holds all of them. So each process of the target receives its samples once, from the replicas
    of the source that have them; the sending processes of a replica take turns.
    """
    sender, receiver = plan.stages[source], plan.stages[target]
    sent, received = plan.samples // sender.data, plan.samples // receiver.data
    found = []
    for data in range(receiver.data):
        low, high = data * received, (data + 1) * received
        for tensor in range(receiver.tensor):
            found += [
                Transfer(
                    source=Place(source, replica, tensor % sender.tensor),
                    target=Place(target, data, tensor),
                    first=max(low, replica * sent),
                    last=min(high, (replica + 1) * sent),
                )
                for replica in range(low // sent, (high - 1) // sent + 1)
            ]
    return found
