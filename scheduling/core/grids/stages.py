"""Times and memory of one stage in one shape, and of the messages between two stages."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from scheduling.core.grids.assembly import EdgeTimes, StageTimes
from scheduling.core.grids.links import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    SEND,
    Links,
    UnmeasuredLinkError,
)
from scheduling.core.grids.memory import MemoryRules
from scheduling.core.grids.model import Grid, GridInputError, Schedule, StageShape
from scheduling.core.grids.profiles import LayerRun, Profile, UnprofiledError, in_sequence

BACKWARD: Final = "_backward"
NO_TIMES: Final = StageTimes(0.0, 0.0)


class GridState(StrEnum):
    """Whether a grid or a shape can run, or the obstacle; the first value is nearest to a plan."""

    POSSIBLE = "possible"
    TOO_LARGE = "too-large"
    TOO_SLOW_LINK = "too-slow-link"
    NOT_PROFILED = "not-profiled"
    NOT_ALLOWED = "not-allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The declared part of a hybrid-parallel training.

    Attributes:
        batch: samples of a step.
        micro_batches: number of micro-batches in a step.
        schedule: order of forward and backward passes.
        max_tensor: maximum tensor width; None for any.
        tensor_within: widest link class that a tensor group may use; None for any.
        memory: memory use of the training.
    """

    batch: int
    micro_batches: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    max_tensor: int | None = None
    tensor_within: str | None = None
    memory: MemoryRules = field(default_factory=MemoryRules)

    def __post_init__(self) -> None:
        """Reject a batch that cannot be divided into the micro-batches."""
        if self.micro_batches < 1 or self.batch < 1 or self.batch % self.micro_batches:
            raise GridInputError(
                f"{self.batch} samples cannot be divided into {self.micro_batches} micro-batches.",
                field="batch",
                value=self.batch,
                remedy="Use a multiple of `micro_batches`.",
            )

    @property
    def samples(self) -> int:
        """Samples of one micro-batch."""
        return self.batch // self.micro_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOption:
    """A stage in one shape.

    Attributes:
        state: whether the stage can run in this shape. The other values are valid if it can run;
            the memory also if it is too large.
        shape: the shape.
        times: times of the stage.
        device_bytes: memory of one device.
        output_bytes: output of one micro-batch, over all replicas.
    """

    state: GridState
    shape: StageShape
    times: StageTimes = NO_TIMES
    device_bytes: float = 0.0
    output_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GridStage:
    """One stage of a grid whose stages have the same number of devices.

    Ranks are numbered by stage, then replica, then position in the tensor group, so that tensor
    groups use the narrowest links.

    Attributes:
        grid: the grid.
        index: index of the stage, from 0.
        first: index of its first layer.
        last: index after its last layer.
    """

    grid: Grid
    index: int
    first: int
    last: int

    @property
    def rank(self) -> int:
        """Number of the first device of the stage."""
        return self.index * self.grid.width


def stage_option(
    stage: GridStage, shape: StageShape, *, profile: Profile, links: Links, training: Training
) -> StageOption:
    """Return times and memory of a stage in a shape, or the reason why it cannot run."""
    too_wide = training.max_tensor is not None and shape.tensor > training.max_tensor
    if too_wide or training.samples % shape.data:
        return StageOption(state=GridState.NOT_ALLOWED, shape=shape)
    within = training.tensor_within
    if within and not links.is_within(stage.rank, stage.rank + shape.tensor - 1, within):
        return StageOption(state=GridState.TOO_SLOW_LINK, shape=shape)
    try:
        runs = profile.runs(stage.first, stage.last, shape, training.samples)
        layers = in_sequence(runs)
        times = _times(stage, shape, layers, links=links, memory=training.memory)
    except (UnprofiledError, UnmeasuredLinkError):
        return StageOption(state=GridState.NOT_PROFILED, shape=shape)
    in_flight = training.schedule.in_flight(stage.index, stage.grid.stages, training.micro_batches)
    needed = training.memory.stage_bytes(runs, data=shape.data, in_flight=in_flight)
    fits = needed <= profile.device_memory
    return StageOption(
        state=GridState.POSSIBLE if fits else GridState.TOO_LARGE,
        shape=shape,
        times=times,
        device_bytes=needed,
        output_bytes=layers.boundary_bytes * shape.data,
    )


def edge_times(
    stage: GridStage, before: StageOption, after: StageShape, links: Links
) -> EdgeTimes:
    """Return the times of the messages between a stage and the next one.

    Stages of equal shapes send each device's output to its counterpart. Otherwise each device
    sends its share of the micro-batch. Then the tensor groups of the receiver gather the shares:
    those of the next stage the activations, those of this stage the gradients.

    Raises:
        UnmeasuredLinkError: the links were not measured.
    """
    rank, width = stage.rank, stage.grid.width

    def gather(first: int, shape: StageShape) -> float:
        if shape.tensor == 1:
            return 0.0
        size = before.output_bytes / shape.data
        last = first + shape.tensor - 1
        return links.seconds(ALL_GATHER, first, last, size, group=shape.tensor)

    if before.shape == after:
        send = links.seconds(SEND, rank, rank + width, before.output_bytes / after.data)
        return EdgeTimes(send, send)
    send = links.seconds(SEND, rank, rank + width, before.output_bytes / width)
    return EdgeTimes(send + gather(rank + width, after), send + gather(rank, before.shape))


def _times(
    stage: GridStage, shape: StageShape, layers: LayerRun, *, links: Links, memory: MemoryRules
) -> StageTimes:
    rank = stage.rank
    forward, backward = layers.forward_s, layers.backward_s
    for primitive, size, times in layers.exchanges if shape.tensor > 1 else ():
        name = primitive.removesuffix(BACKWARD)
        last = rank + shape.tensor - 1
        seconds = times * links.seconds(name, rank, last, size, group=shape.tensor)
        if primitive.endswith(BACKWARD):
            backward += seconds
        else:
            forward += seconds
    if memory.checkpointing:
        backward += forward
    exchange = 0.0
    for primitive in _gradient_primitives(shape, memory):
        last = rank + stage.grid.width - shape.tensor
        size = layers.parameter_bytes
        exchange += links.seconds(primitive, rank, last, size, group=shape.data)
    update = layers.update_s / (shape.data if memory.sharded else 1)
    return StageTimes(forward, backward, exchange, update)


def _gradient_primitives(shape: StageShape, memory: MemoryRules) -> tuple[str, ...]:
    if shape.data == 1:
        return ()
    return (REDUCE_SCATTER, ALL_GATHER) if memory.sharded else (ALL_REDUCE,)
