"""The common part of rule sets with fixed rounds: epochs of jobs, the queue and the snapshot."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

from benchmarks.reproductions.learned import LearnedModel
from benchmarks.reproductions.profiles import Placement
from scheduling.core.policies.plans import settle
from scheduling.core.policy_interface import Alloc, Event, Model, Plan, PolicyJob, Pool, Snapshot
from scheduling.core.simulation.results import JobRecord
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import SimCluster
from scheduling.core.workloads.traces import TraceJob

_INTERVAL: Final = 60.0


class RoundJob(Protocol):
    """Interface of a job to the common part of the rules.

    Attributes:
        index: index in the trace.
        job: the job of the trace.
        learnt: whether there are new observations since the last snapshot.
        started: time at which it first held devices; None if never.
        finished: time of completion; None before it.
    """

    index: int
    job: TraceJob
    learnt: bool
    started: float | None
    finished: float | None

    @property
    def devices(self) -> int:
        """Devices held."""
        ...

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        ...


_Job = TypeVar("_Job", bound=RoundJob)


class EpochJob(ABC):
    """A job that trains for a fixed number of epochs; all times in seconds of the simulated clock.

    How useful a second is changes with the epoch, and so does the best batch.
    """

    def __init__(self, index: int, job: TraceJob) -> None:
        self.index = index
        self.job = job
        self.progress = 0.0
        self.epoch = 0
        self.placement: Placement = ()
        self.batch: int | None = None
        self.local_batch = 0
        self.accumulation = 0
        self.countdown = 0.0
        self.starts = 0
        self.started: float | None = None
        self.finished: float | None = None
        self.since = job.submitted
        self.last_run: float | None = None
        self.executed = 0.0
        self.attained = 0.0
        self.learnt = False

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

    @abstractmethod
    def _useful_rate(self, model: LearnedModel) -> float:
        """Return the true current progress per second; the job learns from it."""

    @abstractmethod
    def _choose_batch(self, model: LearnedModel) -> None:
        """Choose the batch of the next steps from the model."""

    def _train(
        self, start: float, seconds: float, milestones: Sequence[float], model: LearnedModel
    ) -> None:
        """Make progress for ``seconds`` from ``start``, or until it is complete.

        Args:
            start: when it begins.
            seconds: maximum duration.
            milestones: progress at the end of each epoch.
            model: learns from each rate, and helps to choose the batch after it.
        """
        waiting = min(self.countdown, seconds)
        self.countdown -= waiting
        clock, left = start + waiting, seconds - waiting
        while left > 0 and self.finished is None:
            rate = self._useful_rate(model)
            milestone = milestones[self.epoch]
            if self.progress + rate * left < milestone:
                self.progress += rate * left
                clock, left = clock + left, 0.0
            else:
                taken = round((milestone - self.progress) / rate)
                self.progress = milestone
                self.epoch += 1
                clock, left = clock + taken, left - taken
                if self.epoch == len(milestones):
                    self.finished = clock
            self._choose_batch(model)


class RoundWorld(ABC, Generic[_Job]):
    """Jobs that advance by a fixed interval, after which the policy decides.

    A rule set defines the policy's view of a job, its training, and the application of a plan.
    It also defines the facts that are added at the arrival of a job and dropped at its end.
    """

    def __init__(self, setup: Setup, jobs: Sequence[_Job], model: Model, pool: Pool) -> None:
        self._setup = setup
        self._interval = setup.interval or _INTERVAL
        self._now = 0.0
        self._jobs = list(jobs)
        self._waiting = sorted(
            self._jobs, key=lambda job: (job.job.submitted, job.index), reverse=True
        )
        self._active: dict[int, _Job] = {}
        self._allocs: dict[int, Alloc] = {}
        self._model = model
        self._pool = pool
        self._rounds = 0
        self._event = Event.TICK
        self._changed = False
        self._snapshot: Snapshot | None = None

    @property
    def now(self) -> float:
        """Seconds from the trace's start."""
        return self._now

    @property
    def cluster(self) -> SimCluster:
        return self._setup.cluster

    @property
    def finished(self) -> bool:
        """Whether all jobs are complete."""
        return not self._waiting and not self._active

    @property
    def active(self) -> int:
        """Jobs that have been submitted and are not complete."""
        return len(self._active)

    @property
    def done(self) -> int:
        """Jobs that are complete or refused."""
        return len(self._jobs) - len(self._waiting) - len(self._active)

    @property
    def busy(self) -> int:
        """Devices that are held now."""
        return sum(job.devices for job in self._active.values())

    @property
    def changed(self) -> bool:
        """Whether a job arrived or left, or was observed again, before the last snapshot."""
        return self._changed

    def next_time(self, wake: float | None) -> float | None:
        """Return the time of the next round."""
        return self._now + self._interval

    def advance(self, to: float) -> None:
        """Train all jobs until ``to``."""
        for job in list(self._active.values()):
            self._train(job, to - self._now)
            if job.finished is not None:
                del self._active[job.index]
                self._allocs.pop(job.index, None)
                self._forget(job)
                self._event = Event.COMPLETION
        self._now = to

    def snapshot(self) -> Snapshot | None:
        """Return the current jobs."""
        arrived = self._admit()
        learnt = [job for job in self._active.values() if job.learnt]
        for job in learnt:
            job.learnt = False
        self._changed = bool(arrived or learnt or self._event is Event.COMPLETION)
        event, self._event = Event.ARRIVAL if arrived else self._event, Event.TICK
        if not self._active:
            return None
        self._prepare()
        self._rounds += 1
        self._snapshot = Snapshot(
            now=self._now,
            round_seconds=self._interval,
            round_number=self._rounds,
            seed=self._setup.seed,
            pool=self._pool,
            jobs=tuple(self._view(job) for _index, job in sorted(self._active.items())),
            event=event,
            model=self._model,
        )
        return self._snapshot

    def records(self) -> tuple[JobRecord, ...]:
        """Return the records of all jobs, in the order of the trace."""
        return tuple(
            JobRecord(
                name=job.job.name,
                submitted=job.job.submitted,
                started=job.started,
                finished=job.finished,
                restarts=job.restarts,
                gpu_seconds=self._attained(job),
            )
            for job in self._jobs
        )

    def _settled(self, plan: Plan) -> dict[int, Alloc]:
        """Return the allocations for the jobs of the last snapshot."""
        assert self._snapshot is not None  # a plan follows a snapshot
        self._allocs = settle(self._snapshot, plan)
        return self._allocs

    def _admit(self) -> bool:
        """Activate arrived jobs."""
        arrived = False
        while self._waiting and self._waiting[-1].job.submitted <= self._now:
            job = self._waiting.pop()
            self._active[job.index] = job
            self._introduce(job)
            arrived = True
        return arrived

    def _prepare(self) -> None:
        """Prepare a snapshot; does nothing by default."""

    @abstractmethod
    def _introduce(self, job: _Job) -> None:
        """Add the initial facts of a job at its arrival."""

    @abstractmethod
    def _forget(self, job: _Job) -> None:
        """Drop the facts of a job that has ended."""

    @abstractmethod
    def _train(self, job: _Job, seconds: float) -> None:
        """Start the training of a job."""

    @abstractmethod
    def _view(self, job: _Job) -> PolicyJob:
        """Build the policy's view of a job."""

    @abstractmethod
    def _attained(self, job: _Job) -> float:
        """Return the device-seconds attained by a job."""
