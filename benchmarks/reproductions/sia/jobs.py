"""A simulated training job under the rules of Sia's artefact (SOSP '23).

It trains for a fixed number of epochs, chooses its own batch, observes its own steps, and pays
for every start.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from benchmarks.reproductions.fitting import Observation
from benchmarks.reproductions.learned import LearnedModel
from benchmarks.reproductions.profiles import AppProfile, Placement, TypeProfile
from benchmarks.reproductions.rounds import EpochJob
from scheduling.core.performance.goodput import BatchLimits, Noise, candidates
from scheduling.core.policy_interface import Shape
from scheduling.core.workloads.traces import SimulationError, TraceJob
from tessera.efficiency import gain

_ROUNDING: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class AppRules:
    """The artefact's settings for an application besides its profile.

    Attributes:
        initial_batch: the total batch of its first validation file; others double it.
        epochs: length of the training.
        restart_seconds: duration of each start, with devices but without progress.
        slowdown: ratio of real step times to the profiles.
    """

    initial_batch: int
    epochs: int
    restart_seconds: int
    slowdown: float


APPLICATIONS: Final[Mapping[str, AppRules]] = MappingProxyType(
    {
        "cifar10": AppRules(initial_batch=128, epochs=100, restart_seconds=50, slowdown=1.8),
        "deepspeech2": AppRules(initial_batch=20, epochs=80, restart_seconds=25, slowdown=1.2),
        "bert": AppRules(initial_batch=12, epochs=2, restart_seconds=120, slowdown=1.2),
        "yolov3": AppRules(initial_batch=8, epochs=50, restart_seconds=80, slowdown=1.2),
        "imagenet": AppRules(initial_batch=200, epochs=90, restart_seconds=250, slowdown=1.2),
        "ncf": AppRules(initial_batch=256, epochs=10, restart_seconds=15, slowdown=1.5),
    }
)
#: Batches per device that run out of memory although they were measured.
LARGEST_LOCAL: Final = MappingProxyType({("deepspeech2", "rtx"): 57})


def batch_limits(app: AppProfile, device_type: str) -> BatchLimits:
    """Return the batches that an application may use on a type."""
    profile = app.types[device_type]
    largest = LARGEST_LOCAL.get((app.name, device_type), profile.largest_batch)
    return BatchLimits(
        initial=app.initial_batch,
        largest=app.largest_batch,
        local_min=profile.smallest_batch,
        local_max=largest,
    )


def split_batch(
    app: AppProfile, profile: TypeProfile, placement: Placement, batch: int, *, noisy_alone: bool
) -> tuple[int, int]:
    """Split a total batch into (batch per device, passes before the last).

    Args:
        app: the application.
        profile: profile on the type.
        placement: devices per node.
        batch: total batch size.
        noisy_alone: whether one device accumulates at least once for any batch.
    """
    devices = sum(placement)
    local = math.ceil(batch / devices - _ROUNDING)
    accumulation = math.ceil(local / profile.largest_batch_at(placement) - _ROUNDING) - 1
    if devices == 1 and (noisy_alone or batch > app.initial_batch):
        accumulation = max(1, accumulation)
    return math.ceil(local / (accumulation + 1) - _ROUNDING), accumulation


class SimJob(EpochJob):
    """One job's state; all times in seconds of the simulated clock."""

    def __init__(self, index: int, job: TraceJob, app: AppProfile, rules: AppRules) -> None:
        super().__init__(index, job)
        self.app = app
        self.rules = rules
        self.device_type: str | None = None
        self.by_type: dict[str, float] = {}

    @property
    def devices(self) -> int:
        """Devices held."""
        return sum(self.placement)

    @property
    def steps_left(self) -> float:
        """Steps of the initial batch until it is complete."""
        return self.app.milestones[-1] - self.progress

    def place(
        self,
        device_type: str,
        placement: Placement,
        batch: int | None,
        now: float,
        model: LearnedModel,
    ) -> None:
        """Set the devices; a new type or shape is a restart, other nodes of one shape are free.

        Args:
            device_type: type of all devices.
            placement: devices per node, in order.
            batch: a fixed total batch; None if the job chooses.
            now: the simulated time.
            model: performance model of the job.
        """
        same_batch = batch == self.batch
        self.batch = batch
        if device_type == self.device_type and placement == self.placement:
            if not same_batch:
                self._choose_batch(model)
            return
        self.device_type, self.placement = device_type, placement
        self._choose_batch(model)
        self.countdown = float(self.rules.restart_seconds)
        self.starts += 1
        self.since = now
        if self.started is None:
            self.started = now

    def suspend(self, now: float) -> None:
        """Take all devices; free, but the next start is paid in full."""
        self.device_type, self.placement = None, ()
        self.countdown = 0.0
        self.since = now

    def run(self, start: float, seconds: float, model: LearnedModel) -> None:
        """Train for ``seconds`` from ``start``, or until it is complete."""
        if self.device_type is None:
            return
        self._train(start, seconds, self.app.milestones, model)
        held = (self.finished if self.finished is not None else start + seconds) - start
        self.executed += held
        self.attained += held * self.devices
        self.by_type[self.device_type] = (
            self.by_type.get(self.device_type, 0.0) + held * self.devices
        )
        self.last_run = start + held

    def _useful_rate(self, model: LearnedModel) -> float:
        """Return the true current progress per second; the job learns from it."""
        assert self.device_type is not None  # run has checked it
        devices = self.devices
        batch = devices * self.local_batch * (self.accumulation + 1)
        sqr, var = self.app.noise(batch, self.epoch)
        step, sync = self.app.types[self.device_type].step_time(self.placement, self.local_batch)
        if step <= 0.0:
            raise SimulationError(
                f"{self.job.name}: {self.local_batch} samples on {self.placement} devices of "
                f"{self.device_type} are outside its profile"
            )
        observation = Observation(len(self.placement), devices, self.local_batch, step, sync)
        if model.observe(self.index, self.device_type, observation, Noise(sqr, var)):
            self.learnt = True
        worth = gain(sqr, var, self.app.initial_batch / batch)
        seconds = step + self.accumulation * (step - sync)
        return float(worth / seconds / self.rules.slowdown)

    def _choose_batch(self, model: LearnedModel) -> None:
        """Choose the batch as the job's agent does, after every start and every step."""
        assert self.device_type is not None  # only called while it holds devices
        profile = self.app.types[self.device_type]
        devices = self.devices
        if self.batch is not None or not self._choose_freely(model, profile):
            batch = self.batch
            if batch is None:
                batch = max(self.app.initial_batch, profile.smallest_batch * devices)
            self.local_batch, self.accumulation = split_batch(
                self.app, profile, self.placement, batch, noisy_alone=False
            )
        largest = profile.largest_batch_on(devices)
        if largest is not None:
            self.local_batch = min(self.local_batch, largest)
        count = devices * (self.accumulation + 1)
        self.local_batch = min(self.local_batch, self.app.largest_batch // count)

    def _choose_freely(self, model: LearnedModel, profile: TypeProfile) -> bool:
        """Use the batch with the best predicted goodput; return False without observations."""
        assert self.device_type is not None  # only called while it holds devices
        limits = BatchLimits(
            initial=self.app.initial_batch,
            largest=self.app.largest_batch,
            local_min=profile.smallest_batch,
            local_max=profile.largest_batch_at(self.placement),
        )
        shape = Shape(self.device_type, len(self.placement), self.devices)
        choice = model.best_batch(self.index, limits, shape)
        if choice is None:
            return False
        self.local_batch, self.accumulation = choice.local_batch, choice.accumulation
        return True


def alone_seconds(
    app: AppProfile, rules: AppRules, device_type: str, placement: Placement
) -> float | None:
    """Return the run time of a job that always has these devices and the best batch per epoch."""
    profile = app.types.get(device_type)
    if profile is None:
        return None
    devices = sum(placement)
    limits = batch_limits(app, device_type)
    if devices * limits.local_min > limits.largest:
        return None
    try:
        most = min(limits.local_max, profile.largest_batch_at(placement))
    except SimulationError:
        return None
    limits = replace(limits, local_max=most)
    table = candidates(limits, devices)
    choices = {
        (int(local), int(passes))
        for local, passes, no in zip(
            table.local_batch, table.accumulation, table.blocked, strict=True
        )
        if not no and local * devices * (passes + 1) <= limits.largest
    }
    rows = []
    for local, passes in sorted(choices):
        step, sync = profile.measured(placement, local) or (-1.0, -1.0)
        if step > 0.0:
            rows.append((devices * local * (passes + 1), step + passes * (step - sync)))
    if not rows:
        return None
    batches, seconds = np.array(rows, dtype=np.float64).T
    sqr, var = app.noise_table(batches)
    best = (gain(sqr, var, app.initial_batch / batches) / seconds).max(axis=1)
    lengths = np.diff([0.0, *app.milestones])
    return float((lengths / best).sum() * rules.slowdown)
