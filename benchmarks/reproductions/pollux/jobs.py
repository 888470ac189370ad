"""Simulated training jobs under the rules of Pollux's artefact (OSDI '21), and their model.

A job trains for a fixed number of epochs, with the requested total batch or one of its own
choice, observes its own steps, and pays half a minute whenever the nodes of its devices change.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from benchmarks.reproductions.fitting import Observation
from benchmarks.reproductions.learned import LearnedModel, Learner
from benchmarks.reproductions.placement import shape_of
from benchmarks.reproductions.profiles import AppProfile, Placement
from benchmarks.reproductions.rounds import EpochJob
from scheduling.core.performance.goodput import (
    BatchLimits,
    Floats,
    Noise,
    candidates,
    exchange_time,
    pass_times,
    step_times,
)
from scheduling.core.policy_interface import PolicyJob, Shape
from scheduling.core.workloads.clusters import SimCluster
from scheduling.core.workloads.traces import Knowledge, SimulationError, TraceJob
from tessera.efficiency import gain

RESTART_SECONDS: Final = 30.0
_ROUNDING: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The artefact's settings for a program besides its measurements.

    Attributes:
        epochs: length of the training.
        initial_batch: the total batch at which a step counts as one.
        largest_local: a bound on the batch of one device, below the measured one.
        adapts: whether it can change size and batch; otherwise it runs on one device.
    """

    epochs: int
    initial_batch: int
    largest_local: int | None = None
    adapts: bool = True


PROGRAMS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "bert": Program(epochs=2, initial_batch=12),
        "cifar10": Program(epochs=100, initial_batch=128),
        "deepspeech2": Program(epochs=80, initial_batch=20),
        "imagenet": Program(epochs=90, initial_batch=200),
        "ncf": Program(epochs=10, initial_batch=256, adapts=False),
        "yolov3": Program(epochs=50, initial_batch=8, largest_local=8),
    }
)


class Application:
    """A program with its profile on the only device type; results are cached."""

    def __init__(self, profile: AppProfile, program: Program) -> None:
        self.profile = profile
        self.program = program
        ((self.device_type, self.steps),) = profile.types.items()
        largest = self.steps.largest_batch
        self.limits = BatchLimits(
            initial=profile.initial_batch,
            largest=profile.largest_batch,
            local_min=self.steps.smallest_batch,
            local_max=min(largest, program.largest_local or largest),
        )
        self._gains: dict[int, tuple[float, ...]] = {}

    @property
    def name(self) -> str:
        """The program's name."""
        return self.profile.name

    @property
    def work(self) -> float:
        """All steps of the initial batch."""
        return self.profile.milestones[-1]

    @property
    def most_devices(self) -> int:
        """Return the largest number of devices at the smallest batch per device."""
        return self.limits.largest // self.limits.local_min if self.program.adapts else 1

    def gains(self, batch: int) -> tuple[float, ...]:
        """Return the progress of one step at a batch by epoch, in steps of the initial batch."""
        if batch not in self._gains:
            (column,) = self._gain_table(np.array([float(batch)])).T.tolist()
            self._gains[batch] = tuple(column)
        return self._gains[batch]

    def _gain_table(self, batches: Floats) -> Floats:
        """Compute ``gains`` for many total batches, shape ``(epochs, batches)``."""
        sqr, var = self.profile.noise_table(batches)
        table: Floats = gain(sqr, var, self.limits.initial / batches)
        return table

    def split(self, batch: int, devices: int) -> tuple[int, int]:
        """Split a total batch into (samples per device and pass, accumulation passes).

        Each device runs the accumulation passes plus one final pass per iteration.
        """
        local = math.ceil(batch / devices - _ROUNDING)
        passes = math.ceil(local / self.limits.local_max - _ROUNDING) - 1
        if devices == 1 and batch > self.limits.initial:
            passes = max(1, passes)
        return self.within(math.ceil(local / (passes + 1) - _ROUNDING), passes, devices)

    def within(self, local: int, passes: int, devices: int) -> tuple[int, int]:
        """Reduce the batch per device so that the total stays within the largest batch."""
        return max(1, min(local, self.limits.largest // (devices * (passes + 1)))), passes

    def iteration(self, placement: Placement, local: int, passes: int) -> float:
        """Return the seconds of one iteration.

        Raises:
            SimulationError: nothing was measured around this placement.
        """
        step, sync = self.step_time(placement, local)
        return step + passes * (step - sync)

    def step_time(self, placement: Placement, local: int) -> tuple[float, float]:
        """Return the seconds of a step and of its exchange.

        Raises:
            SimulationError: nothing was measured around this placement.
        """
        step, sync = self.steps.step_time(placement, local)
        if step <= 0.0:
            raise SimulationError(
                f"{self.name}: {local} samples per device on {placement} are outside its profile"
            )
        return step, sync

    def alone_seconds(self, placement: Placement) -> float | None:
        """Return the run time alone at the best batch of each epoch; None if impossible."""
        devices = sum(placement)
        if devices > self.most_devices:
            return None
        table = candidates(self.limits, devices)
        splits = sorted(
            {
                self.within(int(local), int(passes), devices)
                for local, passes in zip(table.local_batch, table.accumulation, strict=True)
            }
        )
        rows = []
        for local, passes in splits:
            step, sync = self.steps.measured(placement, local) or (-1.0, -1.0)
            if step > 0.0:
                rows.append((devices * local * (passes + 1), step + passes * (step - sync)))
        if not rows:
            return None
        batches, seconds = np.array(rows, dtype=np.float64).T
        best = (self._gain_table(batches) / seconds).max(axis=1)
        lengths = np.diff([0.0, *self.profile.milestones])
        return float((lengths / best).sum())


class PolluxJob(EpochJob):
    """One job's state; all times in seconds of the simulated clock."""

    def __init__(self, index: int, job: TraceJob, app: Application) -> None:
        super().__init__(index, job)
        self.app = app
        self.nodes: tuple[int, ...] = ()
        self.batch = job.batch

    @property
    def devices(self) -> int:
        """Devices held."""
        return len(self.nodes)

    @property
    def total_batch(self) -> int:
        """Samples of one iteration."""
        return self.devices * self.local_batch * (self.accumulation + 1)

    def place(
        self, nodes: tuple[int, ...], batch: int | None, now: float, model: LearnedModel
    ) -> None:
        """Set the devices; any change in the list of their nodes is a start.

        Args:
            nodes: node of each device; empty removes all devices at no cost.
            batch: a fixed total batch; None if the job chooses.
            now: the simulated time.
            model: performance model of the job.
        """
        if not self.app.program.adapts and batch is None:
            batch = self.job.batch
        same = nodes == self.nodes
        if same and batch == self.batch:
            return
        self.batch = batch
        if not same:
            if bool(nodes) != bool(self.nodes):
                self.since = now
            self.nodes, self.placement = nodes, shape_of(nodes)
            self.countdown = RESTART_SECONDS if nodes else 0.0
            if nodes:
                self.starts += 1
                self.started = now if self.started is None else self.started
        if nodes:
            self._choose_batch(model)

    def run(self, start: float, seconds: float, model: LearnedModel) -> None:
        """Train for ``seconds`` from ``start``, or until it is complete."""
        if not self.nodes:
            return
        self._train(start, seconds, self.app.profile.milestones, model)
        end = self.finished if self.finished is not None else start + seconds
        self.executed += end - start
        self.attained += (end - start) * self.devices
        self.last_run = end

    def _useful_rate(self, model: LearnedModel) -> float:
        """Return the true progress per second, and add it to the job's observations."""
        batch = self.total_batch
        step, sync = self.app.step_time(self.placement, self.local_batch)
        observation = Observation(len(self.placement), self.devices, self.local_batch, step, sync)
        noise = Noise(*self.app.profile.noise(batch, self.epoch))
        if model.observe(self.index, self.app.device_type, observation, noise):
            self.learnt = True
        return self.app.gains(batch)[self.epoch] / (step + self.accumulation * (step - sync))

    def _choose_batch(self, model: LearnedModel) -> None:
        """Set the requested batch, or the best batch according to the job's observations."""
        app, devices = self.app, self.devices
        if self.batch is not None:
            self.local_batch, self.accumulation = app.split(self.batch, devices)
            return
        shape = Shape(app.device_type, len(self.placement), devices)
        choice = model.best_batch(self.index, app.limits, shape)
        if choice is None:
            batch = max(app.limits.initial, app.limits.local_min * devices)
            self.local_batch, self.accumulation = app.split(batch, devices)
        else:
            self.local_batch, self.accumulation = app.within(
                choice.local_batch, choice.accumulation, devices
            )


class PolluxModel(LearnedModel):
    """Observed performance; with an oracle true speeds, with sizes also the remaining work."""

    def __init__(self, cluster: SimCluster, knowledge: Knowledge) -> None:
        super().__init__()
        self._cluster = cluster
        self._knowledge = knowledge
        self._jobs: dict[int, PolluxJob] = {}
        self._rates: dict[tuple[str, int, int], float] = {}

    def introduce(self, job: PolluxJob) -> None:
        """Add a job on its arrival."""
        app = job.app
        shared = self._knowledge.oracle or self._knowledge.shared_history
        history = app.name if shared else f"job {job.index}"
        self._jobs[job.index] = job
        if self._knowledge.oracle:
            seen = [Observation(*row) for row in app.steps.observations()]
            self.seed(history, app.device_type, seen)
        self.add(
            job.index,
            Learner(
                history=history,
                limits={app.device_type: app.limits},
                requested=job.job.batch or app.limits.initial,
                speeds={app.device_type: app.steps.speed()},
                restart_seconds=RESTART_SECONDS,
                most_devices=min(app.most_devices, self._cluster.devices),
            ),
        )
        if self._knowledge.oracle:
            self.seed_noise(history, Noise(*app.profile.noise(app.limits.initial, 0)))

    def forget(self, job_id: int) -> None:
        """Drop a job; its observations remain if others share them."""
        del self._jobs[job_id]
        super().forget(job_id)

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Return iterations per second at a total batch (default: as requested) on packed nodes.

        With one device the gradient is always accumulated, as the artefact takes it.
        """
        mine = self._jobs[job.id]
        app, total = mine.app, batch or job.terms.batch or mine.app.limits.initial
        devices = shape.devices
        if devices > total // app.limits.local_min or (devices > 1 and not app.program.adapts):
            return 0.0
        if not self._knowledge.oracle:
            return self._learned_rate(mine, shape, total)
        key = (app.name, total, devices)
        if key not in self._rates:
            local, passes = self._split(mine, total, devices)
            placement = self._cluster.packed(shape.type, devices)
            self._rates[key] = 1.0 / app.iteration(placement, local, passes)
        return self._rates[key]

    def steps_left(self, job: PolicyJob, batch: int | None) -> float | None:
        """Return iterations at a fixed batch until the last epoch, then 1; None if hidden."""
        if batch is None or not self._knowledge.size_aware:
            return None
        mine = self._jobs[job.id]
        profile, last = mine.app.profile, mine.app.program.epochs - 1
        if mine.epoch >= last:
            return 1.0
        return profile.iteration(batch, last) - profile.iteration(batch, mine.epoch)

    def _learned_rate(self, job: PolluxJob, shape: Shape, batch: int) -> float:
        """Return the expected rate from the job's steps; before them, 1 per second and device."""
        fit = self.fitted(job.index, shape.type)
        if fit is None:
            return float(shape.devices)
        local, passes = self._split(job, batch, shape.devices)
        exchange = exchange_time(fit, shape.nodes, shape.devices)
        return 1.0 / float(step_times(fit, pass_times(fit, local), exchange, passes))

    def _split(self, job: PolluxJob, batch: int, devices: int) -> tuple[int, int]:
        local, passes = job.app.split(batch, devices)
        if devices == 1 and not passes:
            return -(-local // 2), 1
        return local, passes
