"""Rounds of the artefact's simulator: arrivals, progress and completions."""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from benchmarks.reproductions.crius.devices import Span, Table, layout_of
from benchmarks.reproductions.crius.jobs import Job, Judge, Queues
from benchmarks.reproductions.crius.policies import POLICIES, ArtefactPolicy, CriusPolicy, Round
from benchmarks.reproductions.crius.steptimes import SEARCH_ORDER, read_step_times
from benchmarks.reproductions.driver import WorldRules
from scheduling.core.policy_interface import Plan, Pool, Snapshot
from scheduling.core.simulation.results import JobRecord
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import SimCluster
from scheduling.core.workloads.traces import SimulationError, TraceJob

_INTERVAL: Final = 300.0
_DEADLINE_FACTOR: Final = 5.0
_LOOSE_DEADLINE: Final = 1e9
_SIZES: Final = (16, 8, 4, 2, 1)
#: Steps that are left of a complete job by rounding.
_DONE: Final = 1e-9


class CriusWorld:
    """Jobs in rounds of 300 s; a round knows all jobs that arrive before the next one.

    Raises:
        SimulationError: the trace, the cluster or the policy does not fit these rules.
    """

    def __init__(self, setup: Setup) -> None:
        policy = setup.policy if setup.policy is not None else CriusPolicy()
        if not isinstance(policy, ArtefactPolicy):
            raise SimulationError(f"the rules crius run {', '.join(sorted(POLICIES))} only")
        self._policy = policy
        self._cluster = setup.cluster
        self._interval = setup.interval or _INTERVAL
        self._trace = setup.trace.jobs
        layout = layout_of(setup.cluster, SEARCH_ORDER)
        times = read_step_times(setup.files, layout, guesses=policy.guesses)
        self._judge = Judge(times=times, interval=self._interval)
        self._queues = Queues(Table(layout))
        self._start = float(int(self._trace[0].submitted)) if self._trace else 0.0
        self._round = -1
        self._jobs = [self._job(index, job) for index, job in enumerate(self._trace)]
        self._rounds = self._arrival_rounds()
        for job, number in zip(self._jobs, self._rounds, strict=True):
            job.submitted = self._start + number * self._interval
            job.deadline = self._deadline(job)
        self._scheduler = policy.scheduler(self._judge, self._queues, self._jobs)
        self._next = 0
        self._ended: list[Job] = []
        self._arrived: list[Job] = []
        self._started: dict[Job, float] = {}
        self._finished: dict[Job, float] = {}
        self._served = [0.0] * len(self._jobs)
        self._moves = [0] * len(self._jobs)
        self._decided = False
        self._before = self._queues.table

    @property
    def now(self) -> float:
        """Seconds on the trace's clock."""
        return self._start + max(0, self._round) * self._interval

    @property
    def cluster(self) -> SimCluster:
        """All devices."""
        return self._cluster

    @property
    def finished(self) -> bool:
        """Whether all jobs are complete, or nothing can complete any more."""
        return self._round >= 0 and self._is_quiet and self._next == len(self._jobs)

    @property
    def _is_quiet(self) -> bool:
        return not (self._queues.running or self._ended or self._arrived)

    @property
    def active(self) -> int:
        """Jobs that a round knows and that are not complete."""
        return self._next - self.done

    @property
    def done(self) -> int:
        """Jobs that are complete or refused."""
        return len(self._finished) + len(self._queues.dropped)

    @property
    def busy(self) -> int:
        """Devices that are held now."""
        return sum(job.shape.devices for job in self._queues.running)

    @property
    def holdings(self) -> Mapping[str, Span]:
        """The shape of each running job, by name."""
        return {job.name: job.shape for job in self._queues.running}

    @property
    def changed(self) -> bool:
        """Whether jobs ended or arrived in the last round."""
        return self._decided

    def next_time(self, wake: float | None) -> float | None:
        """Return the time of the next round, or None after the last one."""
        number = self._round + 1
        if self._is_quiet and self._next < len(self._jobs):
            number = max(number, self._rounds[self._next])
        if self._policy.rounds and number >= self._policy.rounds:
            return None
        return self._start + number * self._interval

    def advance(self, to: float) -> None:
        """Run all jobs until the round at ``to``, and collect its completions and arrivals."""
        self._round = round((to - self._start) / self._interval)
        self._judge.now = to
        for job in self._queues.running:
            self._served[job.index] += job.shape.devices * self._interval
        self._ended = [job for job in self._queues.running if self._progress(job)]
        for job in self._ended:
            self._finished[job] = to
            self._queues.running.remove(job)
        while self._next < len(self._jobs) and self._rounds[self._next] <= self._round:
            self._arrived.append(self._jobs[self._next])
            self._next += 1

    def snapshot(self) -> Snapshot | None:
        """Return the round, or None without completions and arrivals."""
        self._before = self._queues.table
        self._decided = bool(self._ended or self._arrived)
        if not self._decided:
            self._close()
            return None
        return Round(
            now=self.now,
            round_seconds=self._interval,
            round_number=self._round,
            seed=0,
            pool=Pool(capacity=self._cluster.capacity, types=self._cluster.infos),
            jobs=(),
            decide=lambda: self._scheduler.decide(self._ended, self._arrived),
        )

    def apply(self, plan: Plan) -> None:
        """Close the round: its decisions are in the queues already."""
        self._close()

    def records(self) -> tuple[JobRecord, ...]:
        """Return the records of all jobs, in the order of the trace."""
        dropped = self._queues.dropped
        return tuple(
            JobRecord(
                name=job.name,
                submitted=job.submitted,
                started=self._started.get(job),
                finished=self._finished.get(job),
                restarts=max(0, self._moves[job.index] - 1),
                gpu_seconds=self._served[job.index],
                refused=dropped.get(job),
            )
            for job in self._jobs
        )

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Return the run time of a job alone on its fastest size of at most n devices."""
        job = self._jobs[index]
        layout = self._queues.table.layout
        room = layout.room[device_type]
        steps = [
            self._judge.times.step_seconds(job.model, job.batch, layout.best(device_type, size))
            for size in _SIZES
            if size <= devices and (size <= room or size % room == 0)
        ]
        seconds = min((each for each in steps if each is not None), default=None)
        length = self._length(index)
        # A job of less than one step has no run time to compare with.
        return length * seconds if seconds is not None and length else None

    def restart_seconds(self, index: int) -> float:
        """Return 0: a restart costs nothing under these rules."""
        return 0.0

    def timeline(self) -> Mapping[str, Any]:
        """Return the state after a round."""
        return {
            "time_s": self.now,
            "active": self.active,
            "gpus_busy": self.busy,
            "jobs": {job.name: {job.kind: job.shape.devices} for job in self._queues.running},
        }

    def _job(self, index: int, job: TraceJob) -> Job:
        """Build a job as it is submitted.

        Raises:
            SimulationError: the job asks for an unknown type or an impossible size.
        """
        layout = self._queues.table.layout
        kind = job.types[0] if job.types else job.wish
        if kind not in layout.room:
            raise SimulationError(f"{job.name}: the cluster has no devices of type {kind!r}")
        room = layout.room[kind]
        if job.devices not in _SIZES or (room % job.devices and job.devices % room):
            raise SimulationError(
                f"{job.name}: asks for {job.devices} devices; use 1, 2, 4, 8 or 16"
            )
        steps = self._length(index)
        return Job(
            index=index,
            name=job.name,
            model=job.application,
            batch=job.batch or 1,
            steps=steps,
            left=steps,
            submitted=job.submitted,
            deadline=_LOOSE_DEADLINE if job.deadline is None else float(int(job.deadline)),
            shape=layout.best(kind, job.devices),
        )

    def _length(self, index: int) -> float:
        """Return the steps of a job at its submission."""
        return float(int(self._trace[index].steps or 0.0) // self._policy.divisor)

    def _arrival_rounds(self) -> list[int]:
        """Return the round that first knows each job: the last one before its submission."""
        rounds: list[int] = []
        number = 0
        for job in self._trace:
            passed = (int(job.submitted) - self._start) / self._interval
            number = max(number, ceil(passed) - 1)
            rounds.append(number)
        return rounds

    def _deadline(self, job: Job) -> float:
        """Return the loosened deadline: five times the time that the trace leaves."""
        if self._policy.loose_deadlines:
            return job.submitted + _LOOSE_DEADLINE
        return job.submitted + (job.deadline - job.submitted) * _DEADLINE_FACTOR

    def _progress(self, job: Job) -> bool:
        """Count a round's progress, and return whether the job is complete."""
        if job.tuning is not None:
            return False
        seconds = self._judge.times.step_seconds(job.model, job.batch, job.shape)
        if seconds is None:
            return False
        job.executed += self._interval
        job.done += self._interval / seconds
        job.left = job.steps - (job.done if self._policy.honest else job.executed // seconds)
        if job.left == job.steps:
            job.deadline = 0.0
        return job.left <= _DONE

    def _close(self) -> None:
        """Count starts and moves, and charge their searches for plans."""
        moved = set(self._queues.table.changed(self._before))
        each, most = self._policy.tuning
        for job in self._queues.running:
            self._started.setdefault(job, self.now)
            if job.index in moved:
                self._moves[job.index] += 1
                cost = min(each * job.shape.devices, most) if self._policy.charged else 0
                job.tuning = float(cost) if cost > self._interval else None
            if job.tuning is not None:
                job.tuning = job.tuning - self._interval
                job.tuning = job.tuning if job.tuning > 0.0 else None
        self._ended, self._arrived = [], []
        self._scheduler.end_round(self.now + self._interval)


RULES: Final = WorldRules(CriusWorld, POLICIES)
"""The rule set ``crius``."""
