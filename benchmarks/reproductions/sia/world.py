"""The rules of Sia's artefact (SOSP '23): fixed rounds, profiles as truth, placement by shape.

Every round all jobs advance by the interval, then the policy sees the submitted, incomplete jobs.
A start costs the application's checkpoint time.
"""

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from benchmarks.reproductions.driver import WorldRules
from benchmarks.reproductions.fitting import Observation
from benchmarks.reproductions.learned import LearnedModel, Learner
from benchmarks.reproductions.placement import keep, pack, shape_of, spread_evenly
from benchmarks.reproductions.profiles import AppProfile, read_type
from benchmarks.reproductions.rounds import RoundWorld
from benchmarks.reproductions.sia.jobs import (
    APPLICATIONS,
    SimJob,
    alone_seconds,
    batch_limits,
    split_batch,
)
from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.performance.goodput import BatchLimits, Noise
from scheduling.core.policy_interface import (
    Facts,
    JobPhase,
    Kind,
    Plan,
    PolicyJob,
    Pool,
    Scale,
    Terms,
    TypeInfo,
)
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import SimCluster
from scheduling.core.workloads.traces import SimulationError

_ANYWHERE: Final = (None, Within.RACK.value)
_MOST_DEVICES: Final = 64
#: Nodes of each type over which profiles were measured.
_MEASURED_NODES: Final = MappingProxyType(
    {"azure": 5, "aws": 16, "dgx": 2, "dgx-ext": 2, "quad": 1, "rtx": 3}
)


class SiaWorld(RoundWorld[SimJob]):
    """Jobs of a workload on a cluster, round by round."""

    _model: LearnedModel

    def __init__(self, setup: Setup) -> None:
        self._apps: dict[str, AppProfile] = {}
        jobs = [self._sim_job(setup, index) for index in range(len(setup.trace.jobs))]
        pool = Pool(capacity=setup.cluster.capacity, types=_infos(setup.cluster))
        super().__init__(setup, jobs, LearnedModel(), pool)
        self._held: dict[int, tuple[int, ...]] = {}
        self._gpu_seconds: dict[int, float] = defaultdict(float)
        self._terms: dict[int, Terms] = {}
        self._demands: dict[int, Demand] = {}
        self._alone: dict[tuple[str, str, int], float | None] = {}

    def next_time(self, wake: float | None) -> float | None:
        """Return the time of the next round; rounds without any job are skipped."""
        time = self._now + self._interval
        if not self._active and self._waiting:
            idle = self._waiting[-1].job.submitted - time
            time += max(0.0, -(-idle // self._interval)) * self._interval
        return time

    def apply(self, plan: Plan) -> None:
        """Apply the planned allocations, and count them for the coming round."""
        allocs = self._settled(plan)
        placed = self._place(plan)
        for index, job in self._active.items():
            alloc = allocs.get(index)
            if alloc is None:
                if job.device_type is not None:
                    job.suspend(self._now)
                continue
            batch = alloc.batch
            if batch is None and job.job.kind is not Kind.ADAPTIVE:
                batch = job.job.batch
            job.place(alloc.single.type or "", placed[index], batch, self._now, self._model)
            self._gpu_seconds[index] += alloc.devices * self._interval

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Return the run time of a job alone on n devices at its best batch, or None."""
        job = self._jobs[index]
        key = job.app.name, device_type, devices
        if key not in self._alone:
            shape = self._shape(device_type, self.cluster.packed(device_type, devices))
            self._alone[key] = alone_seconds(job.app, job.rules, device_type, shape)
        return self._alone[key]

    def restart_seconds(self, index: int) -> float:
        """Return the cost of each start of a job."""
        return self._jobs[index].rules.restart_seconds

    def timeline(self) -> Mapping[str, Any]:
        """Return the devices over time."""
        return {
            "time_s": self._now,
            "active": self.active,
            "gpus_busy": self.busy,
            "jobs": {
                job.job.name: {
                    "type": job.device_type,
                    "placement": list(job.placement),
                    "batch": job.devices * job.local_batch * (job.accumulation + 1),
                    "epoch": job.epoch,
                    "restarts": job.restarts,
                }
                for _index, job in sorted(self._active.items())
            },
        }

    def _sim_job(self, setup: Setup, index: int) -> SimJob:
        job = setup.trace.jobs[index]
        rules = APPLICATIONS.get(job.application)
        if rules is None:
            raise SimulationError(
                f"{job.name}: unknown application {job.application!r} for the sia rules; known: "
                f"{', '.join(sorted(APPLICATIONS))}"
            )
        app = self._apps.get(job.application)
        if app is None:
            files = setup.files
            found = {
                name: profile
                for name in setup.cluster.types
                if (profile := read_type(job.application, name, files)) is not None
            }
            if not found:
                raise SimulationError(
                    f"{job.application}: no profile for any of {', '.join(setup.cluster.types)}"
                )
            app = AppProfile(
                job.application,
                found,
                files,
                epochs=rules.epochs,
                initial_batch=rules.initial_batch,
            )
            self._apps[job.application] = app
        if job.batch is not None and not app.initial_batch <= job.batch <= app.largest_batch:
            raise SimulationError(
                f"{job.name}: batch_size is {job.batch}; {app.name} takes {app.initial_batch} "
                f"to {app.largest_batch}"
            )
        return SimJob(index, job, app, rules)

    def _train(self, job: SimJob, seconds: float) -> None:
        job.run(self._now, seconds, self._model)

    def _forget(self, job: SimJob) -> None:
        self._held.pop(job.index, None)
        self._model.forget(job.index)

    def _prepare(self) -> None:
        self._model.refit()

    def _attained(self, job: SimJob) -> float:
        return self._gpu_seconds[job.index]

    def _introduce(self, job: SimJob) -> None:
        """Add the initial facts of a job at its arrival."""
        trace, app = job.job, job.app
        knowledge = self._setup.knowledge
        shared = knowledge.oracle or knowledge.shared_history
        history = app.name if shared else f"job {job.index}"
        limits = {name: batch_limits(app, name) for name in app.types}
        if trace.kind is not Kind.ADAPTIVE and trace.batch is not None:
            limits = {name: _fixed(item, trace.batch) for name, item in limits.items()}
        if knowledge.oracle:
            for name, profile in app.types.items():
                self._model.seed(
                    history, name, [Observation(*row) for row in profile.observations()]
                )
        self._model.add(
            job.index,
            Learner(
                history=history,
                limits=limits,
                requested=trace.batch or app.initial_batch,
                speeds={name: profile.speed() for name, profile in app.types.items()},
                restart_seconds=job.rules.restart_seconds,
                most_devices=_MOST_DEVICES,
                rates=self._requested_rates(job),
            ),
        )
        if knowledge.oracle:
            self._model.seed_noise(history, Noise(*app.noise(app.initial_batch, 0)))
        scale = None
        if trace.kind is not Kind.RIGID:
            largest = _MOST_DEVICES if trace.kind is Kind.ADAPTIVE else trace.devices
            scale = Scale(minimum=1, maximum=largest)
        self._terms[job.index] = Terms(
            kind=trace.kind,
            scale=scale,
            application=app.name,
            batch=trace.batch,
            max_batch=app.largest_batch,
        )
        member = MemberDemand(role="worker", count=trace.devices, devices=1, within=Within.RACK)
        self._demands[job.index] = Demand(members=(member,))

    def _requested_rates(self, job: SimJob) -> dict[str, float]:
        """Return true steps per second at the requested size and batch."""
        rates: dict[str, float] = {}
        for name, profile in job.app.types.items():
            if job.job.devices > self.cluster.groups[name].total or job.job.batch is None:
                continue
            placement = self.cluster.packed(name, job.job.devices)
            local, passes = split_batch(
                job.app, profile, placement, job.job.batch, noisy_alone=True
            )
            local = min(local, job.app.largest_batch // (job.job.devices * (passes + 1)))
            step, sync = profile.step_time(placement, local)
            if step > 0.0:
                rates[name] = 1.0 / (step + passes * (step - sync)) / job.rules.slowdown
        return rates

    def _view(self, job: SimJob) -> PolicyJob:
        size_aware = self._setup.knowledge.size_aware
        facts = Facts(
            executed=job.executed,
            gpu_seconds=job.attained,
            by_type=dict(job.by_type),
            last_run=job.last_run,
            restarts=job.restarts,
            recovering=job.countdown > 0.0,
            steps_done=job.progress,
            steps_left=job.steps_left if size_aware else None,
        )
        return PolicyJob(
            id=job.index,
            owner=0,
            priority=0,
            job_class=JobClass.GUARANTEED,
            submitted=job.job.submitted,
            demand=self._demands[job.index],
            phase=JobPhase.QUEUED if job.device_type is None else JobPhase.RUNNING,
            since=job.since,
            alloc=self._allocs.get(job.index),
            terms=self._terms[job.index],
            facts=facts,
        )

    def _place(self, plan: Plan) -> dict[int, tuple[int, ...]]:
        """Place each job's devices per node; parts with a level are packed again, others stay."""
        by_type: dict[str, list[tuple[int, int]]] = defaultdict(list)
        anew: set[str] = set()
        rank = {job_id: place for place, job_id in enumerate(plan.order)}
        for index in sorted(self._allocs, key=lambda i: (rank.get(i, len(rank)), i)):
            part = self._allocs[index].single
            name = part.type or ""
            by_type[name].append((index, part.n))
            if part.level not in _ANYWHERE:
                anew.add(name)
        shapes: dict[int, tuple[int, ...]] = {}
        held: dict[int, tuple[int, ...]] = {}
        for name, sizes in by_type.items():
            group = self.cluster.groups[name]
            if name in anew:
                nodes = pack(group, sizes)
            else:
                mine = {i: d for i, d in self._held.items() if self._jobs[i].device_type == name}
                devices = keep(group, sizes, mine)
                held.update(devices)
                nodes = {i: tuple(d // group.devices for d in ds) for i, ds in devices.items()}
            shapes.update({i: self._shape(name, shape_of(where)) for i, where in nodes.items()})
        self._held = held
        return shapes

    def _shape(self, device_type: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        most = _MEASURED_NODES.get(device_type)
        if most is not None and len(shape) > most:
            return spread_evenly(sum(shape), most)
        return shape


def _infos(cluster: SimCluster) -> Mapping[str, TypeInfo]:
    return MappingProxyType(
        {
            name: TypeInfo(
                nodes=group.nodes,
                node_devices=group.devices,
                most_nodes=_MEASURED_NODES.get(name),
            )
            for name, group in cluster.groups.items()
        }
    )


def _fixed(limits: BatchLimits, batch: int) -> BatchLimits:
    return BatchLimits(
        initial=limits.initial,
        largest=batch,
        local_min=limits.local_min,
        local_max=limits.local_max,
        fixed=True,
    )


RULES: Final = WorldRules(SiaWorld)
"""The rule set ``sia``."""
