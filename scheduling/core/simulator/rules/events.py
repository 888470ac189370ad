"""Rules without rounds: a decision at each arrival, completion and instant that a policy names.

A job runs for its recorded duration on what it asked for; on more or fewer devices it runs
proportionally faster or slower. What it has done is kept when it stops, and going on, or going on
at another size, costs what the model says of a restart; the first start is free.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.planning import (
    Alloc,
    Event,
    Facts,
    JobPhase,
    Kind,
    LinearModel,
    Plan,
    PolicyJob,
    Pool,
    Scale,
    Snapshot,
    Terms,
)
from scheduling.core.policies.plans import settle
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.errors import SimulationError
from scheduling.core.simulator.traces import TraceJob
from scheduling.core.simulator.worlds import JobRecord, Setup

_DONE: Final = 1e-6


class _Run:
    """One job: ``left`` is in device-seconds, ``view`` what the policy sees while it waits."""

    def __init__(self, index: int, job: TraceJob, tenant: int) -> None:
        if job.duration is None:
            raise SimulationError(f"{job.name}: has no duration; the rules events need one")
        self.index = index
        self.job = job
        self.left = job.duration * job.devices
        self.alloc: Alloc | None = None
        self.countdown = 0.0
        self.starts = 0
        self.started: float | None = None
        self.finished: float | None = None
        self.executed = 0.0
        self.gpu_seconds = 0.0
        self.last_run: float | None = None
        self.last_queued: float | None = None
        self.view = _waiting_view(index, job, tenant)

    @property
    def devices(self) -> int:
        """Devices held."""
        return self.alloc.devices if self.alloc else 0

    def end(self, now: float) -> float:
        """When it is complete if nothing changes."""
        return now + self.countdown + self.left / self.devices

    def run(self, now: float, to: float) -> None:
        """Run until ``to``."""
        seconds = to - now
        waited = min(self.countdown, seconds)
        self.countdown -= waited
        self.left -= (seconds - waited) * self.devices
        self.executed += seconds
        self.gpu_seconds += seconds * self.devices
        self.last_run = to
        if self.countdown <= _DONE and self.left <= _DONE * self.devices:
            self.left, self.finished = 0.0, to

    def place(self, alloc: Alloc | None, now: float, restart: float) -> None:
        """Hold ``alloc`` from now on."""
        before = self.alloc
        if _size(before) == _size(alloc):
            self.alloc = alloc
            return
        self.alloc = alloc
        if alloc is None:
            self.last_queued = now
            return
        self.countdown = restart if self.starts else 0.0
        self.starts += 1
        if self.started is None:
            self.started = now

    def seen(self, size_aware: bool, since: float) -> PolicyJob:
        """What the policy sees of it."""
        if not self.starts and not size_aware:
            return self.view
        facts = Facts(
            executed=self.executed,
            gpu_seconds=self.gpu_seconds,
            last_run=self.last_run,
            last_queued=self.last_queued,
            restarts=max(0, self.starts - 1),
            recovering=self.countdown > _DONE,
            steps_done=(self.job.duration or 0.0) * self.job.devices - self.left,
            steps_left=self.left if size_aware else None,
        )
        phase = JobPhase.RUNNING if self.alloc else JobPhase.QUEUED
        return replace(self.view, phase=phase, alloc=self.alloc, facts=facts, since=since)


class EventWorld:
    """Jobs of known duration on counted devices."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._now = 0.0
        tenants = {name: number for number, name in enumerate(_tenants(setup), start=1)}
        self._jobs = [
            _Run(index, job, tenants[job.tenant]) for index, job in enumerate(setup.trace.jobs)
        ]
        self._waiting = sorted(self._jobs, key=lambda run: (-run.job.submitted, -run.index))
        self._active: dict[int, _Run] = {}
        self._running: dict[int, _Run] = {}
        self._since: dict[int, float] = {}
        self._rounds = 0
        self._completed = self._changed = False
        self._pool = Pool(capacity=setup.cluster.capacity, types=setup.cluster.infos)
        self._model = LinearModel(setup.cluster.infos)
        self._snapshot: Snapshot | None = None

    @property
    def now(self) -> float:
        """Seconds from the trace's start."""
        return self._now

    @property
    def cluster(self) -> SimCluster:
        """What the jobs run on."""
        return self._setup.cluster

    @property
    def finished(self) -> bool:
        """Whether all jobs are complete or refused."""
        return not self._waiting and not self._active

    @property
    def active(self) -> int:
        """Jobs that have been submitted and are not complete."""
        return len(self._active)

    @property
    def busy(self) -> int:
        """Devices that are held now."""
        return sum(run.devices for run in self._running.values())

    @property
    def changed(self) -> bool:
        """Whether a job came or went before the last snapshot."""
        return self._changed

    def next_time(self, wake: float | None) -> float | None:
        """The next arrival, completion or wish of the policy; with an interval also a tick."""
        times = [run.end(self._now) for run in self._running.values()]
        if self._waiting:
            times.append(max(self._now, self._waiting[-1].job.submitted))
        if wake is not None and wake > self._now and self._active:
            times.append(wake)
        if self._setup.interval is not None and self._active:
            times.append(self._now + self._setup.interval)
        return min(times, default=None)

    def advance(self, to: float) -> None:
        """Let all jobs run until ``to``."""
        for run in list(self._running.values()):
            run.run(self._now, to)
            if run.finished is not None:
                run.alloc = None
                del self._active[run.index], self._running[run.index]
                self._completed = True
        self._now = to

    def snapshot(self) -> Snapshot | None:
        """The jobs that are there now."""
        arrived = False
        while self._waiting and self._waiting[-1].job.submitted <= self._now:
            run = self._waiting.pop()
            self._active[run.index] = run
            self._since[run.index] = run.job.submitted
            arrived = True
        self._changed = arrived or self._completed
        event = Event.COMPLETION if self._completed else Event.TICK
        self._completed = False
        if not self._active:
            return None
        self._rounds += 1
        aware = self._setup.knowledge.size_aware or self._setup.knowledge.oracle
        self._snapshot = Snapshot(
            now=self._now,
            round_seconds=self._setup.interval or 60.0,
            round_number=self._rounds,
            seed=self._setup.seed,
            pool=self._pool,
            jobs=tuple(
                self._active[index].seen(aware, self._since[index])
                for index in sorted(self._active)
            ),
            event=Event.ARRIVAL if arrived else event,
            model=self._model,
        )
        return self._snapshot

    def apply(self, plan: Plan) -> None:
        """Give devices as planned; refused jobs leave."""
        assert self._snapshot is not None  # noqa: S101  a plan follows a snapshot
        allocs = settle(self._snapshot, plan)
        for index in sorted({*allocs, *self._running}):
            run, alloc = self._active[index], allocs.get(index)
            if _size(alloc) != _size(run.alloc):
                self._since[index] = self._now
            run.place(alloc, self._now, self._model.restart_seconds(run.view))
        for index in plan.reject:
            del self._active[index]
        self._running = {index: run for index, run in self._active.items() if index in allocs}

    def records(self) -> tuple[JobRecord, ...]:
        """All jobs, in the order of the trace."""
        return tuple(
            JobRecord(
                name=run.job.name,
                submitted=run.job.submitted,
                started=run.started,
                finished=run.finished,
                restarts=max(0, run.starts - 1),
                gpu_seconds=run.gpu_seconds,
            )
            for run in self._jobs
        )

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Its work over so many devices, as far as it can use them."""
        job = self._jobs[index].job
        most = job.devices if job.kind is Kind.RIGID else devices
        return (job.duration or 0.0) * job.devices / min(devices, most)

    def restart_seconds(self, index: int) -> float:
        """Nothing: the first start is free."""
        return 0.0

    def timeline(self) -> Mapping[str, Any]:
        """Who holds what."""
        held = {
            run.job.name: {part.type: part.n for part in run.alloc.parts}
            for _index, run in sorted(self._running.items())
            if run.alloc
        }
        return {"time_s": self._now, "active": self.active, "gpus_busy": self.busy, "jobs": held}


def _size(alloc: Alloc | None) -> list[tuple[int, str | None]]:
    return [(part.n, part.type) for part in alloc.parts] if alloc else []


def _tenants(setup: Setup) -> list[str]:
    return sorted({job.tenant for job in setup.trace.jobs})


def _waiting_view(index: int, job: TraceJob, tenant: int) -> PolicyJob:
    member = MemberDemand(
        role="worker", count=job.devices, devices=1, device_types=job.types, within=Within.RACK
    )
    elastic = job.kind is not Kind.RIGID
    return PolicyJob(
        id=index,
        owner=0,
        priority=0,
        job_class=JobClass.GUARANTEED,
        submitted=job.submitted,
        demand=Demand(members=(member,)),
        phase=JobPhase.QUEUED,
        since=job.submitted,
        terms=Terms(
            tenant=tenant,
            kind=job.kind,
            scale=Scale(minimum=1, maximum=max(64, job.devices)) if elastic else None,
            deadline=job.deadline,
            estimate=job.estimate,
            application=job.application or None,
            batch=job.batch,
        ),
    )
