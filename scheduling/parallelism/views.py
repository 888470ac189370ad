"""Values of the tab *Parallelism*, which REST and the command line return, too."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduling.core.round.plan_accuracy import PlanAccuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class GridView:
    """One grid of a job.

    Attributes:
        type: device type.
        devices: number of devices.
        stages: number of pipeline stages.
        state: state of the grid: possible, too-large, not-profiled ...; ``barred`` if its plan
            is not used again.
        reason: the state as a sentence; empty if the grid is possible.
        shape: the plan in short, such as ``2 x (4 data)``; empty without a plan.
        predicted: predicted seconds per step; None without a plan.
        measured: measured seconds per step; None without enough steps.
        samples_per_second: throughput by the measured time, else by the predicted one.
        source: origin of the throughput: ``measured``, ``profiled``, or ``projected`` if messages
            of this size were not measured on this type; empty without a plan.
        fullest_bytes: memory of a device of the fullest stage; None if unknown.
        fullest_stage: its index, from 0; None if unknown.
        limit_bytes: memory of a device of this type; None if unknown.
        is_running: whether the job runs under this plan.
        stage_bytes: memory of a device of each stage.
        stage_seconds: for each stage, the seconds of a forward and a backward pass of one
            micro-batch, and of its transfers to the next stage and back; empty if unknown.
    """

    type: str
    devices: int
    stages: int
    state: str
    reason: str
    shape: str
    predicted: float | None
    measured: float | None
    samples_per_second: float | None
    source: str
    fullest_bytes: float | None
    fullest_stage: int | None
    limit_bytes: float | None
    is_running: bool
    plan: Mapping[str, Any]
    stage_bytes: tuple[float, ...] = ()
    stage_seconds: tuple[tuple[float, ...], ...] = ()

    @property
    def memory_share(self) -> float | None:
        """Share of the memory of a device that the fullest stage needs; None if unknown."""
        if self.fullest_bytes is None or not self.limit_bytes:
            return None
        return self.fullest_bytes / self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """The plan of one attempt.

    Attributes:
        attempt: number of the attempt.
        at: start of the attempt.
        ended_at: its end; None while it runs.
        type: device type.
        devices: number of devices.
        shape: the plan in short.
        source: origin of the plan.
        predicted: predicted seconds per step; None without an estimate.
        measured: measured seconds per step; None before the first report.
    """

    attempt: int
    at: datetime
    ended_at: datetime | None
    type: str
    devices: int
    shape: str
    source: str
    predicted: float | None
    measured: float | None
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """The profile of the job's model on one device type.

    Attributes:
        type: device type.
        version: versions of the profile and of PyTorch; empty before the measurement.
        measured_at: None while ``job`` measures, or if it failed.
        job: ID of the job that measures or has measured, if the viewer's job exists still.
        seconds: duration of the measurement; None before it.
    """

    type: str
    version: str
    measured_at: datetime | None
    job: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledPace:
    """Throughput of one device at the fastest batch of a profile.

    Attributes:
        type: device type.
        measured_at: time of the report.
        batch: samples of a step.
        samples_per_second: the throughput.
    """

    type: str
    measured_at: datetime
    batch: int
    samples_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParallelism:
    """Hybrid parallelism of one job.

    Attributes:
        batch: samples of a step.
        why: why the newest plan was chosen, as a sentence.
        grids: by type, devices and stages.
        plans: plans of the attempts, the newest first.
        profiles: by type.
        in_force: the plan of the running attempt, or None.
        sizes: minimum and maximum number of devices that the job allows.
        devices: node and index of each device of the running attempt, in the order of ranks.
        accuracy: errors of the newest predictions in the job's tenant, by type of its grids.
    """

    fingerprint: str
    batch: int
    micro_batches: int
    schedule: str
    why: str
    grids: tuple[GridView, ...]
    plans: tuple[PlanView, ...]
    profiles: tuple[ProfileView, ...]
    sizes: tuple[int, int] = (1, 1)
    devices: tuple[tuple[str, int], ...] = ()
    accuracy: tuple[PlanAccuracy, ...] = ()

    @property
    def in_force(self) -> PlanView | None:
        """The plan of the running attempt, or None."""
        newest = self.plans[0] if self.plans else None
        return newest if newest is not None and newest.ended_at is None else None
