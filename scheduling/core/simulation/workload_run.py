"""The rule set ``events``: a trace on the simulation engine, with decisions of live rounds.

A job runs for its recorded time at its requested size; on more or fewer devices it runs
proportionally faster or slower. A preempted job leaves at once, and its next start takes the
conditions' restart time; the first start is free. Nodes may fail. With ``profile_seconds``,
elastic jobs are profiled by jobs on one device of each type, as live jobs are.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np

from scheduling.core.jobspec import Demand
from scheduling.core.policies.base import Policy, label_of
from scheduling.core.policies.queues.ordered import Fifo
from scheduling.core.policy_interface import Kind, grid_at
from scheduling.core.round_result import RoundResult
from scheduling.core.simulation.cluster import SimulatedCluster, SimulationSettings
from scheduling.core.simulation.events import HealthChange
from scheduling.core.simulation.jobs import Overhead
from scheduling.core.simulation.profile_jobs import ProfileJobs
from scheduling.core.simulation.results import JobRecord, Result, finish_time_fairness
from scheduling.core.simulation.setups import Conditions, Setup
from scheduling.core.simulation.shares import cluster_spec, node_name
from scheduling.core.simulation.speedup import HeldShape, proportional
from scheduling.core.simulation.workload_jobs import WHOLE, WorkloadJob, workload_jobs
from scheduling.core.values import ClusterSnapshot, NodeFacts, QueuedJob, VcFacts
from scheduling.core.workloads.clusters import SimCluster


def node_faults(
    cluster: SimCluster, conditions: Conditions, *, seed: int, start: float
) -> Iterator[HealthChange]:
    """Yield failures and repairs of all nodes by time, endlessly; none without an MTBF.

    Each node has a separate random stream, so that equal nodes fail at equal times under every
    policy.
    """
    if conditions.node_mtbf is None:
        return
    means = {False: conditions.node_mtbf, True: conditions.node_repair}
    nodes: list[tuple[str, np.random.Generator]] = []
    changes: list[tuple[float, int, bool]] = []
    for place, (kind, group) in enumerate(sorted(cluster.groups.items())):
        for node in range(group.nodes):
            stream = np.random.default_rng([seed, place, node])
            at = start + _seconds(stream, conditions.node_mtbf)
            changes.append((at, len(nodes), False))
            nodes.append((node_name(kind, node), stream))
    heapq.heapify(changes)
    while True:
        at, index, is_up = changes[0]
        name, stream = nodes[index]
        after = at + _seconds(stream, means[not is_up])
        heapq.heapreplace(changes, (after, index, not is_up))
        yield HealthChange(at=at, node=name, healthy=is_up)


def _seconds(stream: np.random.Generator, mean: float) -> float:
    return max(1.0, float(stream.exponential(mean)))


_IDLE_DECISIONS: Final = 2_000
_TICK_SECONDS: Final = 300.0
_ROUND_SECONDS: Final = 60.0
#: Rounds between the first rounds of two seeds; a round's number is the seed of its policies.
_SEED_ROUNDS: Final = 1_000_000


def run_workload(
    setup: Setup,
    policy: Policy,
    *,
    rules: str,
    workload: str,
    timer: Callable[[], float],
    on_round: Callable[[Mapping[str, Any]], None] | None = None,
    on_progress: Callable[[int, float], None] | None = None,
) -> Result:
    """Run a trace until all jobs are complete (``RuleSet``).

    The run also ends, with incomplete jobs, after 2,000 decisions in a row without a running job.
    """
    began = timer()
    run = WorkloadRun(setup, policy, timer)
    while run.step():
        if on_round is not None:
            on_round(run.timeline())
        if on_progress is not None:
            on_progress(run.done, run.now)
    wall_seconds = timer() - began
    records = run.records()
    return Result(
        policy=label_of(policy),
        rules=rules,
        workload=workload,
        jobs=records,
        rounds=run.world.record.rounds,
        decision_ms=tuple(run.decision_ms),
        busy=run.busy,
        ftf=finish_time_fairness(run, records),
        wall_seconds=wall_seconds,
        ended=run.now,
        fallbacks=tuple(run.fallbacks),
    )


class WorkloadRun:
    """The jobs of a trace on a simulated cluster, from decision to decision.

    Attributes:
        jobs: the jobs in the order of the trace; the ID of a job is its index plus 1.
        world: the simulated cluster.
        decision_ms: milliseconds in policies, of decisions before which a job arrived or left.
        fallbacks: faults of the policy, as text.
    """

    def __init__(self, setup: Setup, policy: Policy, timer: Callable[[], float]) -> None:
        self._setup = setup
        self.jobs = workload_jobs(setup)
        self._profiles = ProfileJobs(self.jobs, setup.profile_seconds)
        admitted = [job for job in self.jobs if job.refused is None]
        start = min((job.queued.submitted for job in admitted), default=0.0)
        self._faults = node_faults(setup.cluster, setup.conditions, seed=setup.seed, start=start)
        self._timer, self._policy_seconds = timer, 0.0
        conditions = setup.conditions
        overhead = Overhead(
            restart=conditions.restart_seconds, checkpoint=conditions.checkpoint_seconds or None
        )
        self.world = SimulatedCluster(
            replace(
                _empty_cluster(setup, policy, start),
                grids={job.queued.id: job.grids for job in self.jobs if job.grids},
            ),
            lambda job_id: (
                self._profiles.seconds
                if self._measures(job_id)
                else self.jobs[job_id - 1].shortest
            ),
            settings=SimulationSettings(
                grace=0.0,
                tick=setup.interval or _TICK_SECONDS,
                ticks_always=any(job.job.kind is not Kind.RIGID for job in self.jobs),
            ),
            arrivals=[
                *((job.queued, job.known) for job in admitted),
                *self._profiles.arrivals(),
            ],
            speedup=self._speedup if setup.hybrid or _types_differ(self.jobs) else proportional,
            overhead=lambda _job_id: overhead,
            steps=lambda job_id: (
                1.0 if self._measures(job_id) else self.jobs[job_id - 1].steps_per_second
            ),
            limit=self._measured,
            make=lambda _name, _args: policy,
        )
        self.decision_ms: list[float] = []
        self.fallbacks: list[str] = []
        self._admitted = len(admitted)
        self._seen = (0, 0, 0)
        self._idle = 0
        self._device_seconds = self._active_seconds = 0.0
        self._schedule_fault()

    @property
    def now(self) -> float:
        """Seconds from the trace's start."""
        return self.world.now

    @property
    def cluster(self) -> SimCluster:
        """The nodes by type."""
        return self._setup.cluster

    @property
    def done(self) -> int:
        """Jobs that are complete, refused or rejected."""
        return len(self.jobs) - self._admitted + self._left

    @property
    def busy(self) -> float:
        """Mean number of held devices while any job was active."""
        return self._device_seconds / self._active_seconds if self._active_seconds else 0.0

    def step(self) -> bool:
        """Advance to the next event and decide; return False at the end."""
        world = self.world
        if self._left == self._admitted or self._idle >= _IDLE_DECISIONS:
            return False
        due = world.next_time()
        if due is None:
            return False
        seconds = due - world.now
        self._device_seconds += world.devices * seconds
        self._active_seconds += seconds if world.waiting or world.holding else 0.0
        world.advance(due)
        for job_id, points in self._profiles.ended(world.record.ends):
            world.learn_profile(job_id, points)
        if self._fault_at is not None and self._fault_at <= due:
            self._schedule_fault()
        if not world.is_settled:
            self.decide()
        return True

    def decide(self) -> RoundResult:
        """Decide one round at the present, and apply it."""
        world, record = self.world, self.world.record
        left = self._left
        seen = (left + len(world.waiting) + len(world.holding), left, record.failures.total())
        self._policy_seconds = 0.0
        result = world.decide()
        if seen != self._seen:
            self.decision_ms.append(self._policy_seconds * 1000.0)
            self._seen = seen
        self.fallbacks += [f"at {self.now:g} s: {fault}" for fault in result.fallbacks]
        self._idle = 0 if world.holding else self._idle + 1
        return result

    def records(self) -> tuple[JobRecord, ...]:
        """Return the records of all jobs, in the order of the trace."""
        return tuple(self._record(job) for job in self.jobs)

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Return the job's work divided by the devices that it can use."""
        job = self.jobs[index]
        seconds = job.seconds.get(device_type)
        if seconds is None:
            return None
        most = job.job.devices if job.job.kind is Kind.RIGID else devices
        return seconds * job.job.devices / min(devices, most)

    def restart_seconds(self, index: int) -> float:
        """Return 0: the first start is free."""
        return 0.0

    def timeline(self) -> Mapping[str, Any]:
        """Return the devices of each job."""
        world = self.world
        return {
            "time_s": self.now,
            "active": len(world.waiting) + len(world.holding),
            "gpus_busy": world.devices,
            "jobs": {
                self.jobs[job_id - 1].job.name: world.held_types(job_id)
                for job_id in sorted(world.holding)
                if not self._measures(job_id)
            },
        }

    @property
    def _left(self) -> int:
        record = self.world.record
        return sum(not self._measures(one) for one in (*record.ends, *record.rejections))

    def _measures(self, job_id: int) -> bool:
        """Return whether a job is a profile job."""
        return job_id >= self._profiles.first

    @contextmanager
    def _measured(self) -> Iterator[None]:
        began = self._timer()
        try:
            yield
        finally:
            self._policy_seconds += self._timer() - began

    def _schedule_fault(self) -> None:
        change = next(self._faults, None)
        self._fault_at = None if change is None else change.at
        if change is not None:
            self.world.schedule(change)

    def _speedup(self, job: QueuedJob, asked: Demand, held: HeldShape) -> float:
        if self._measures(job.id):
            return 1.0
        known = self.jobs[job.id - 1]
        if known.grids:
            (kind,) = held.types
            row = grid_at(known.grids, kind, held.nodes, held.devices)
            return row.rate / known.steps_per_second if row is not None else 0.0
        speed = known.speed(held.types)
        return speed * held.devices / max(asked.devices, 1)

    def _record(self, job: WorkloadJob) -> JobRecord:
        record, job_id = self.world.record, job.queued.id
        seconds = record.device_seconds.get(job_id, 0.0)
        held = self.world.holding.get(job_id)
        if held is not None:
            seconds += (self.now - held.since) * held.devices
        rejection = record.rejections.get(job_id)
        return JobRecord(
            name=job.job.name,
            submitted=job.job.submitted,
            started=record.starts.get(job_id),
            finished=record.ends.get(job_id),
            restarts=record.restarts[job_id],
            gpu_seconds=seconds,
            failures=record.failures[job_id],
            lost=record.lost.get(job_id, 0.0) * job.job.devices,
            refused=job.refused if rejection is None else rejection.text,
        )


def _types_differ(jobs: list[WorkloadJob]) -> bool:
    return any(len(set(job.seconds.values())) > 1 for job in jobs)


def _empty_cluster(setup: Setup, policy: Policy, start: float) -> ClusterSnapshot:
    """Return the cluster before the first job, with one policy for each virtual cluster."""
    cluster = setup.cluster
    whole = {WHOLE: {kind: group.nodes for kind, group in cluster.groups.items()}}
    shares = setup.shares or whole
    # Rounds call no policy for plain first in, first out; the name selects this.
    name = Fifo.name if isinstance(policy, Fifo) else label_of(policy)
    first = 1 + setup.seed * _SEED_ROUNDS
    return ClusterSnapshot(
        now=start,
        round_number=first,
        round_seconds=setup.interval or _ROUND_SECONDS,
        seed=first,
        topology_version=1,
        spec=cluster_spec(cluster, shares),
        vcs=tuple(
            VcFacts(id=number, name=vc, tenant=number, policy=name)
            for number, vc in enumerate(sorted(shares), start=1)
        ),
        nodes=tuple(
            NodeFacts(
                name=node_name(kind, node),
                placeable=True,
                healthy=True,
                has_docker=True,
                cpus_per_device=0.0,
                memory_per_device=0,
            )
            for kind, group in cluster.groups.items()
            for node in range(group.nodes)
        ),
        queued=(),
        holding=(),
    )
