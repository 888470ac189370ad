"""Weeks of a shared cluster with 32 devices, run by the simulation engine, and their exports."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scheduling.core.cells import ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.policy_interface import Kind, Terms
from scheduling.core.promises.export import (
    AuditedJob,
    Eviction,
    JobRun,
    OtherUse,
    PromiseExport,
    merged_spec,
)
from scheduling.core.round.gang_sizes import scale_of
from scheduling.core.simulation import (
    ClusterChange,
    HealthChange,
    SimulatedCluster,
    SimulationSettings,
)
from scheduling.core.values import ClusterSnapshot, JobFacts, NodeFacts, QueuedJob, VcFacts
from tests.factories.rounds import NOW, TYPES, queued_job

NODES: Final = tuple(f"node-{number}" for number in range(1, 5))
DAY: Final = 86400.0


def quota(level: str, count: int) -> VcSpec:
    return VcSpec(quotas=(Quota(chain="a-node", level=level, count=count),))


SHARES: Final = {
    "large": quota("a-node", 2),
    "middle": quota("a-node", 1),
    "small": quota("a-socket", 1),
}
"""Guarantees of 16, 8 and 4 of 32 devices."""
LEVELS: Final = {"large": (1, 2, 4, 8, 16), "middle": (1, 2, 4, 8), "small": (1, 2, 4)}
VCS: Final = tuple(
    VcFacts(id=number, name=name, tenant=number, policy="fifo")
    for number, name in enumerate(SHARES, start=1)
)
SPEC: Final = ClusterSpec(
    cell_types=TYPES,
    physical=tuple(PhysicalCell(type="a-node", address=name) for name in NODES),
    virtual_clusters=SHARES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekOptions:
    """Conditions of a simulated span.

    Attributes:
        load: guaranteed work per guaranteed device-second.
        elastic: share of elastic jobs, under policies that use their sizes.
    """

    seconds: float = 7 * DAY
    load: float = 0.9
    policies: Sequence[str] = ("fifo", "fifo", "fifo")
    round_seconds: float = 10.0
    grace: float = 30.0
    failures: int = 0
    cordons: int = 0
    resizes: int = 0
    user_cap: int | None = None
    elastic: float = 0.0
    mean_work: float = 4000.0


@dataclass(slots=True, kw_only=True)
class History:
    """The jobs of a simulated span, as they happened."""

    options: WeekOptions
    snapshot: ClusterSnapshot
    jobs: dict[int, QueuedJob]
    known: dict[int, JobFacts]
    works: dict[int, float]
    ended: set[int]
    changes: tuple[ClusterChange, ...]
    runs: dict[int, list[JobRun]] = field(default_factory=lambda: defaultdict(list))
    evictions: list[tuple[int, Eviction]] = field(default_factory=list)

    def export(self, vc: VcFacts) -> PromiseExport:
        """The export of one virtual cluster."""
        own = [job for job in self.jobs.values() if job.vc == vc.id and job.priority >= 0]
        of_vc = next(one for one in self.snapshot.vcs if one.id == vc.id)
        return PromiseExport(
            vc=vc.id,
            since=NOW,
            until=NOW + self.options.seconds,
            grace=self.options.grace,
            snapshot=replace(
                self.snapshot,
                vcs=(of_vc,),
                spec=merged_spec(self.snapshot.spec, vc.name),
                queued=tuple(job for job in own if job.submitted <= NOW),
                known={job.id: self.known[job.id] for job in own},
            ),
            jobs=tuple(self._audited(job) for job in own),
            changes=tuple(
                replace(change, vcs=(of_vc,), spec=merged_spec(change.spec, vc.name))
                for change in self.changes
            ),
            other_use=tuple(
                OtherUse(
                    owner=job.owner,
                    in_vc=job.vc == vc.id,
                    devices=(run.demand or job.demand).devices,
                    start=run.start,
                    end=run.end,
                )
                for job in self.jobs.values()
                if job.tenant == vc.tenant and job not in own
                for run in self.runs[job.id]
            ),
            evictions=tuple(eviction for of, eviction in self.evictions if of == vc.id),
        )

    def _audited(self, job: QueuedJob) -> AuditedJob:
        return AuditedJob(
            job=job,
            eligible=max(job.submitted, NOW),
            runs=tuple(self.runs[job.id]),
            work=self.works[job.id] if job.id in self.ended else None,
            known=self.known[job.id],
        )


def simulated_week(seed: int, options: WeekOptions) -> History:
    """Run the shared cluster over the span, with rounds at fixed times."""
    chance = random.Random(seed)
    jobs = {job.id: job for job in _jobs(chance, options)}
    works = {job_id: chance.expovariate(1 / options.mean_work) + 20.0 for job_id in jobs}
    known = {job.id: _facts(chance, job, options, works[job.id]) for job in jobs.values()}
    vcs = tuple(
        replace(vc, policy=policy, max_devices_per_user=options.user_cap)
        for vc, policy in zip(VCS, options.policies, strict=True)
    )
    snapshot = ClusterSnapshot(
        now=NOW,
        round_number=1,
        round_seconds=options.round_seconds,
        seed=1,
        topology_version=1,
        spec=SPEC,
        vcs=vcs,
        nodes=tuple(_node(name) for name in NODES),
        queued=tuple(job for job in jobs.values() if job.submitted <= NOW),
        holding=(),
        known={job.id: known[job.id] for job in jobs.values() if job.submitted <= NOW},
    )
    events, changes = _events(chance, snapshot, options)
    world = SimulatedCluster(
        snapshot,
        works.__getitem__,
        settings=SimulationSettings(grace=options.grace, horizon=options.seconds, tick=60.0),
        arrivals=[(job, known[job.id]) for job in jobs.values() if job.submitted > NOW],
        events=events,
    )
    history = History(
        options=options,
        snapshot=snapshot,
        jobs=jobs,
        known=known,
        works=works,
        ended=set(),
        changes=tuple(changes),
    )
    _run(world, history)
    history.ended = set(world.record.ends)
    return history


def _run(world: SimulatedCluster, history: History) -> None:
    """Decide at multiples of the round interval, and note when jobs hold devices."""
    options = history.options
    grid: float | None = NOW
    while True:
        if grid is not None and world.now >= grid:
            _decide(world, history)
            grid = None
        at = min((at for at in (world.next_time(), grid) if at is not None), default=math.inf)
        if at > NOW + options.seconds:
            return
        before = set(world.holding)
        world.advance(at)
        for job_id in before - set(world.holding):
            history.runs[job_id][-1] = replace(history.runs[job_id][-1], end=world.now)
        if grid is None:
            rounds = math.ceil((world.now - NOW) / options.round_seconds)
            grid = NOW + rounds * options.round_seconds


def _decide(world: SimulatedCluster, history: History) -> None:
    guaranteed = {
        job.id
        for job in world.holding.values()
        if job.priority >= 0 and all(leaf.virtual for one in job.members for leaf in one)
    }
    result = world.decide()
    for start in result.starts:
        history.runs[start.job_id].append(
            JobRun(
                start=world.now,
                end=None,
                members=tuple(member.leaves for member in start.members),
                demand=start.demand,
            )
        )
    for preemption in result.preemptions:
        victim, other = history.jobs[preemption.job_id], preemption.for_job
        if other and victim.id in guaranteed and history.jobs[other].vc != victim.vc:
            history.evictions.append((victim.vc, Eviction(job=victim.id, at=world.now)))


def _jobs(chance: random.Random, options: WeekOptions) -> Iterator[QueuedJob]:
    number = 0
    for vc in VCS:
        sizes = LEVELS[vc.name]
        mean = sum(sizes) / len(sizes) * options.mean_work
        rate = options.load * sizes[-1] / mean
        for borrow, share in ((False, 1.0), (True, 0.7)):
            at = NOW
            while (at := at + chance.expovariate(rate * share)) < NOW + options.seconds:
                number += 1
                devices = chance.choice(sizes)
                count = 2 if devices == 16 else 1
                job = queued_job(
                    number,
                    devices // count,
                    count,
                    vc=vc,
                    priority=chance.choice([10, 10, 10, 100]),
                    borrow=borrow,
                )
                yield replace(job, submitted=at, owner=chance.randint(1, 3))


def _facts(chance: random.Random, job: QueuedJob, options: WeekOptions, work: float) -> JobFacts:
    terms = Terms(tenant=job.tenant, estimate=work * chance.uniform(0.5, 2.0))
    devices = job.demand.devices
    if chance.random() < options.elastic and devices <= 8:
        scale = scale_of(job.demand, max(1, devices // 2), devices)
        terms = replace(terms, kind=Kind.ELASTIC, scale=scale)
    return JobFacts(terms=terms, asked=job.demand)


def _node(name: str) -> NodeFacts:
    return NodeFacts(
        name=name,
        placeable=True,
        healthy=True,
        has_docker=True,
        cpus_per_device=4.0,
        memory_per_device=8 << 30,
    )


def _events(
    chance: random.Random, snapshot: ClusterSnapshot, options: WeekOptions
) -> tuple[list[Any], list[ClusterChange]]:
    """Failures interrupt jobs, cordons keep new ones off, resizes take cells from ``large``.

    All are also changes of the cluster.
    """
    times: list[tuple[float, str, str, bool]] = []
    counts = {
        "failure": options.failures,
        "cordon": options.cordons,
        "resize": options.resizes,
    }
    for kind, count in counts.items():
        for _ in range(count):
            node = chance.choice(NODES)
            begin = NOW + chance.uniform(0.0, 0.9) * options.seconds
            times.append((begin, kind, node, False))
            times.append((begin + chance.uniform(600.0, 40000.0), kind, node, True))
    state, spec = {node.name: node for node in snapshot.nodes}, snapshot.spec
    events: list[Any] = []
    changes = []
    for at, kind, node, good in sorted(times):
        if kind == "resize":
            large = quota("a-node", 2 if good else 1)
            spec = replace(SPEC, virtual_clusters={**SHARES, "large": large})
        else:
            changed = {"healthy" if kind == "failure" else "placeable": good}
            state[node] = replace(state[node], **changed)  # type: ignore[arg-type]
        change = ClusterChange(
            at=at,
            spec=spec,
            topology_version=1,
            vcs=snapshot.vcs,
            nodes=tuple(state.values()),
            bad_devices=frozenset(),
            device_memory={},
        )
        changes.append(change)
        is_failure = kind == "failure"
        events.append(HealthChange(at=at, node=node, healthy=good) if is_failure else change)
    return events, changes
