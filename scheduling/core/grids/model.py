"""Grids, stage shapes and parallel plans: the choices of a job with hybrid parallelism.

A *grid* is what Crius (EuroSys '26, arXiv 2403.16125) calls a Cell: a device type, a
number of devices and a number of pipeline stages. A *parallel plan* fixes the rest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class GridInputError(ValueError):
    """An invalid input of the planner.

    Attributes:
        field: path of the offending value, for example ``stages``.
        value: the offending value as received.
        remedy: how to correct it, one sentence.
    """

    def __init__(self, message: str, *, field: str, value: object = None, remedy: str) -> None:
        super().__init__(f"{field}: {message} {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class Schedule(StrEnum):
    """Order of forward and backward passes in a pipeline."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"

    def in_flight(self, stage: int, stages: int, micro_batches: int) -> int:
        """Return the maximum number of micro-batches whose activations a stage stores at once.

        Args:
            stage: index of the stage, from 0.
            stages: number of stages.
            micro_batches: number of micro-batches in a step.
        """
        if self is Schedule.GPIPE:
            return micro_batches
        return min(stages - stage, micro_batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShape:
    """Division of one stage over its devices.

    Attributes:
        data: number of replicas; each computes its part of every micro-batch.
        tensor: number of devices that share each layer of a replica.
    """

    data: int
    tensor: int

    def __post_init__(self) -> None:
        """Reject numbers that are not powers of two."""
        for name, value in (("data", self.data), ("tensor", self.tensor)):
            check_power_of_two(value, name)

    @property
    def devices(self) -> int:
        """Number of devices of the stage."""
        return self.data * self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """Layers ``first`` to ``last`` (exclusive) of a model, with their shape."""

    first: int
    last: int
    shape: StageShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """A complete choice for one job: its stages in order, their shapes and the schedule.

    Attributes:
        stages: stages in the order of layers; the first begins at layer 0.
        micro_batches: number of micro-batches in a step.
        schedule: order of forward and backward passes.
    """

    stages: tuple[PipelineStage, ...]
    micro_batches: int
    schedule: Schedule

    @property
    def devices(self) -> int:
        """Number of devices of all stages."""
        return sum(stage.shape.devices for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Device type, number of devices and number of pipeline stages of one job."""

    type: str
    devices: int
    stages: int

    @property
    def width(self) -> int:
        """Devices of each stage, if all stages have equally many."""
        return self.devices // self.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class GridLimits:
    """Limits of the grids of a job, all inclusive.

    Attributes:
        min_devices: minimum number of devices.
        max_devices: maximum number of devices.
        min_stages: minimum number of stages.
        max_stages: maximum number of stages: at most the layers and the micro-batches.
    """

    min_devices: int
    max_devices: int
    min_stages: int = 1
    max_stages: int


def grids_of(requested: int, types: Sequence[str], limits: GridLimits) -> tuple[Grid, ...]:
    """Return the grids of a job by type, devices and stages, as in Crius.

    The counts are half, once and twice the requested devices. The stages are powers of two up to
    the number of devices. So 8 requested devices give at most 12 grids of each type.

    Args:
        requested: number of devices that the owner requests, a power of two.
        types: device types that the job allows.
        limits: limits of devices and stages.

    Raises:
        GridError: ``requested`` is not a power of two.
    """
    check_power_of_two(requested, "requested")
    counts = [n for n in (requested // 2, requested, 2 * requested) if n >= 1]
    return tuple(
        Grid(type=name, devices=devices, stages=stages)
        for name in types
        for devices in counts
        if limits.min_devices <= devices <= limits.max_devices
        for stages in powers_of_two(devices)
        if limits.min_stages <= stages <= limits.max_stages
    )


def stage_shapes(devices: int) -> tuple[StageShape, ...]:
    """Return all shapes of a stage, from data parallelism only to tensor parallelism only."""
    check_power_of_two(devices, "devices")
    return tuple(StageShape(data=devices // t, tensor=t) for t in powers_of_two(devices))


def profiled_shapes(devices: int) -> tuple[StageShape, ...]:
    """Return the shapes that are profiled for a stage: data only, the middle one, tensor only.

    The estimator of Crius profiles the first and the last. The middle one removes the large
    regrets of stages for which both extremes are slow. Fewer than 4 devices have no middle shape.
    """
    shapes = stage_shapes(devices)
    middle = (len(shapes) - 1) // 2
    return tuple(shapes[t] for t in sorted({0, middle, len(shapes) - 1}))


def powers_of_two(most: int) -> Iterator[int]:
    """Yield 1, 2, 4 ... up to ``most``."""
    value = 1
    while value <= most:
        yield value
        value *= 2


def check_power_of_two(value: int, field: str) -> None:
    """Raise ``GridInputError`` unless ``value`` is a power of two."""
    if value < 1 or value & (value - 1):
        raise GridInputError(
            f"{value} is not a power of two.", field=field, value=value, remedy="Use 1, 2, 4, 8 …"
        )
