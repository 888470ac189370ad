"""Jobs of a trace as input of rounds: gangs, terms, job facts, and refusals at submission."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Final, TypeVar

import numpy as np

from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.policy_interface import (
    BestGrid,
    Facts,
    GridTable,
    Kind,
    Scale,
    Step,
    Terms,
    grid_types,
)
from scheduling.core.simulation.facts import with_speed
from scheduling.core.simulation.setups import Setup
from scheduling.core.simulation.shares import assigned, guarantee
from scheduling.core.simulation.speedup import HeldShape
from scheduling.core.values import JobFacts, QueuedJob
from scheduling.core.workloads.run_times import Seconds, rates_by_size, seconds_by_type
from scheduling.core.workloads.traces import TraceJob

WHOLE: Final = "all"
"""The virtual cluster that is guaranteed the whole cluster, if no guarantees are given."""

_MOST_DEVICES: Final = 64
_NOISE_STREAM: Final = 1_000_003
_Key = TypeVar("_Key", str, tuple[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadJob:
    """One job of a trace.

    Attributes:
        seconds: run time at its requested size, by device type.
        queued: the job as it is submitted; its ID is its index in the trace plus 1.
        known: its terms and first facts.
        grids: the rate of each type and size, of a hybrid job.
        refused: reason why it never fits its guarantee, as text; None if it can fit.
    """

    job: TraceJob
    seconds: Seconds
    queued: QueuedJob
    known: JobFacts
    refused: str | None
    grids: GridTable = ()

    @property
    def steps_per_second(self) -> float:
        """Return the steps per second that the job reports at its requested size."""
        if self.grids and self.job.steps and self.shortest:
            return self.job.steps / self.shortest
        return float(self.job.devices)

    @property
    def shortest(self) -> float:
        """Seconds of the job at its requested size on its fastest type."""
        return min(self.seconds.values(), default=0.0)

    def speed(self, types: Sequence[str]) -> float:
        """Return the speed on the slowest of some types relative to the fastest type."""
        slowest = max(self.seconds[kind] for kind in types)
        return self.shortest / slowest if slowest else 1.0


def workload_jobs(setup: Setup) -> list[WorkloadJob]:
    """Return the jobs of a trace in its order.

    Raises:
        SimulationError: a job has no run time, or its tenant has no virtual cluster.
    """
    tables: list[GridTable] = [()] * len(setup.trace.jobs)
    if setup.hybrid:
        tables = _grid_tables(setup)
        jobs = tuple(map(_hybrid, setup.trace.jobs, tables))
        setup = replace(setup, trace=replace(setup.trace, jobs=jobs))
    seconds = seconds_by_type(setup.trace, setup.cluster, setup.files)
    vcs = [WHOLE] * len(setup.trace.jobs)
    if setup.shares:
        vcs = assigned(setup.trace, setup.shares, setup.cluster, setup.seed)
    return _Submission(setup, vcs).jobs(seconds, tables)


def _grid_tables(setup: Setup) -> list[GridTable]:
    """Return the measured rates of each job on the types that it may use; powers of two only."""
    cluster = setup.cluster
    return [
        tuple(
            BestGrid(
                type=kind,
                devices=devices,
                nodes=len(cluster.packed(kind, devices)),
                rate=rate,
                source="given",
            )
            for kind in cluster.types
            if not job.types or kind in job.types
            for devices, rate in sorted(rates.get(kind, {}).items())
            if devices & (devices - 1) == 0 and devices <= cluster.capacity[kind]
        )
        for job, rates in zip(
            setup.trace.jobs, rates_by_size(setup.trace, setup.files), strict=True
        )
    ]


def _hybrid(job: TraceJob, table: GridTable) -> TraceJob:
    most = max((row.devices for row in table), default=job.devices)
    scale = Scale(minimum=1, maximum=max(most, job.devices), step=Step.POWER_OF_TWO)
    return replace(job, kind=Kind.ELASTIC, scale=scale) if table else job


class _Submission:
    """Numbers of virtual clusters, tenants and people, and shared demands."""

    def __init__(self, setup: Setup, vcs: list[str]) -> None:
        self._setup = setup
        self._vcs = vcs
        self._vc_numbers = _numbered(setup.shares or {WHOLE: {}})
        self._tenants = _numbered(
            vcs if setup.shares else [job.tenant for job in setup.trace.jobs]
        )
        self._people = _numbered([(job.tenant, job.user) for job in setup.trace.jobs])
        self._demands: dict[tuple[int, tuple[str, ...]], Demand] = {}

    def jobs(self, seconds: Sequence[Seconds], tables: Sequence[GridTable]) -> list[WorkloadJob]:
        noise = self._setup.conditions.estimate_noise
        stream = np.random.default_rng([self._setup.seed, _NOISE_STREAM])
        found = []
        for index, job in enumerate(self._setup.trace.jobs):
            wrong = exp(noise * float(stream.standard_normal())) if noise else 1.0
            found.append(self._job(index, job, seconds[index], tables[index], wrong))
        return found

    def _job(
        self, index: int, job: TraceJob, seconds: Seconds, grids: GridTable, wrong: float
    ) -> WorkloadJob:
        vc = self._vcs[index]
        tenant = self._tenants[vc if self._setup.shares else job.tenant]
        demand = self._demand(job, grid_types(grids) or seconds)
        queued = QueuedJob(
            id=index + 1,
            vc=self._vc_numbers[vc],
            tenant=tenant,
            owner=self._people[job.tenant, job.user],
            owner_name=job.user,
            priority=job.priority,
            job_class=JobClass.GUARANTEED,
            demand=demand,
            submitted=job.submitted,
        )
        return WorkloadJob(
            job=job,
            seconds=seconds,
            queued=queued,
            known=self._known(job, seconds, tenant, demand, wrong),
            refused=_why_never(job, seconds, self._reachable(vc)),
            grids=grids,
        )

    def _demand(self, job: TraceJob, able: Collection[str]) -> Demand:
        """Return a gang of single devices; it names types if it prefers or cannot use some."""
        types = tuple(kind for kind in job.types or self._setup.cluster.types if kind in able)
        if job.wish in types:
            types = (job.wish, *(kind for kind in types if kind != job.wish))
        elif types == self._setup.cluster.types:
            types = ()
        key = job.devices, types
        if key not in self._demands:
            member = MemberDemand(role="worker", count=job.devices, devices=1, device_types=types)
            self._demands[key] = Demand(members=(member,))
        return self._demands[key]

    def _known(
        self, job: TraceJob, seconds: Seconds, tenant: int, demand: Demand, wrong: float
    ) -> JobFacts:
        knowledge, shortest = self._setup.knowledge, min(seconds.values(), default=0.0)
        estimate = job.estimate
        if knowledge.size_aware and estimate is None and seconds:
            estimate = max(1.0, shortest * wrong)
        terms = Terms(
            tenant=tenant,
            kind=job.kind,
            scale=_scale(job),
            deadline=job.deadline,
            estimate=estimate,
            application=(job.application or None) if knowledge.shared_history else None,
            batch=job.batch,
        )
        is_sized = knowledge.size_aware or knowledge.oracle
        is_hybrid = self._setup.hybrid and job.steps is not None
        steps = job.steps if is_hybrid and job.steps else shortest * job.devices
        known = JobFacts(
            terms=terms,
            facts=Facts(steps_left=steps * wrong if is_sized else None),
            asked=demand,
            start_seconds=self._setup.conditions.restart_seconds,
        )
        for kind in seconds if knowledge.oracle and shortest and not is_hybrid else ():
            nodes = len(self._setup.cluster.packed(kind, job.devices))
            shape = HeldShape(types=(kind,), nodes=nodes, devices=job.devices)
            known = with_speed(known, shape, job.devices * shortest / seconds[kind])
        return known

    def _reachable(self, vc: str) -> Mapping[str, int]:
        """Return the devices by type that a job of a virtual cluster could have alone."""
        if not self._setup.shares:
            return self._setup.cluster.capacity
        return guarantee(self._setup.shares[vc], self._setup.cluster)


def _scale(job: TraceJob) -> Scale | None:
    if job.kind is Kind.RIGID:
        return None
    return job.scale or Scale(minimum=1, maximum=max(_MOST_DEVICES, job.devices))


def _why_never(job: TraceJob, seconds: Seconds, capacity: Mapping[str, int]) -> str | None:
    """Describe the reason why a job can never run even alone; return None if it can."""
    if not seconds:
        return "no measurements on these device types"
    usable = [kind for kind in job.types or capacity if kind in capacity]
    if not usable:
        return f"the cluster has no {' or '.join(job.types)[:60]}"
    kinds = [kind for kind in usable if kind in seconds]
    if not kinds:
        return "no measurements on these device types"
    scale = _scale(job)
    least = job.devices if scale is None else scale.minimum
    most = max(capacity[kind] for kind in kinds)
    if least > most:
        return f"asks for {job.devices} devices, of which there are {most} of one type"
    return None


def _numbered(names: Iterable[_Key]) -> dict[_Key, int]:
    return {name: number for number, name in enumerate(sorted(set(names)), start=1)}
