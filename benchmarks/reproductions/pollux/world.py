"""The rules of Pollux's artefact (OSDI '21): fixed rounds on nodes of one type.

Every round all jobs advance by the interval, then the policy sees the submitted, incomplete jobs.
A job whose count is unchanged retains its nodes; the others take from the node with most free
devices, unless the plan names the nodes itself.
"""

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.reproductions.driver import WorldRules
from benchmarks.reproductions.pollux.jobs import (
    PROGRAMS,
    RESTART_SECONDS,
    Application,
    PolluxJob,
    PolluxModel,
)
from benchmarks.reproductions.profiles import AppProfile, TypeProfile
from benchmarks.reproductions.rounds import RoundWorld
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.policy_interface import (
    Facts,
    JobPhase,
    Kind,
    Plan,
    PolicyJob,
    Pool,
    Scale,
    Terms,
)
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.tables import read_rows
from scheduling.core.workloads.traces import FileReader, SimulationError, TraceJob

_TIMES: Final = ("local_bsz", "step_time", "sync_time")


class PolluxWorld(RoundWorld[PolluxJob]):
    """Jobs of a workload on nodes of one type, round by round."""

    _model: PolluxModel

    def __init__(self, setup: Setup) -> None:
        if len(setup.cluster.types) != 1:
            raise SimulationError("the pollux rules support only one device type, as in t4:16x4")
        (self._type,) = setup.cluster.types
        self._group = setup.cluster.groups[self._type]
        applications = _applications(setup, self._type)
        jobs = [
            PolluxJob(index, job, _checked(job, applications))
            for index, job in enumerate(setup.trace.jobs)
        ]
        pool = Pool(capacity=setup.cluster.capacity, types=setup.cluster.infos)
        super().__init__(setup, jobs, PolluxModel(setup.cluster, setup.knowledge), pool)
        self._fixed = {job.index: self._declared(job) for job in self._jobs}
        self._alone: dict[tuple[str, int], float | None] = {}

    def apply(self, plan: Plan) -> None:
        """Apply the planned allocations."""
        allocs = self._settled(plan)
        nodes = self._place(plan)
        for index, job in self._active.items():
            alloc = allocs.get(index)
            batch = job.batch if alloc is None else alloc.batch
            job.place(nodes.get(index, ()), batch, self._now, self._model)

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Return the run time of a job alone on n devices at its best batch, or None."""
        app = self._jobs[index].app
        devices = min(devices, app.most_devices)
        key = app.name, devices
        if key not in self._alone:
            self._alone[key] = app.alone_seconds(self.cluster.packed(device_type, devices))
        return self._alone[key]

    def restart_seconds(self, index: int) -> float:
        """Return the cost of each start of a job."""
        return RESTART_SECONDS

    def timeline(self) -> Mapping[str, Any]:
        """Return the devices over time."""
        return {
            "time_s": self._now,
            "active": self.active,
            "gpus_busy": self.busy,
            "jobs": {
                job.job.name: {
                    "type": self._type if job.nodes else None,
                    "placement": list(job.placement),
                    "batch": job.total_batch,
                    "epoch": job.epoch,
                    "restarts": job.restarts,
                }
                for _index, job in sorted(self._active.items())
            },
        }

    def _introduce(self, job: PolluxJob) -> None:
        self._model.introduce(job)

    def _train(self, job: PolluxJob, seconds: float) -> None:
        job.run(self._now, seconds, self._model)

    def _forget(self, job: PolluxJob) -> None:
        self._model.forget(job.index)

    def _attained(self, job: PolluxJob) -> float:
        return job.attained

    def _declared(self, job: PolluxJob) -> tuple[Demand, Terms]:
        """Return the constant facts of a job's view."""
        most = self._group.total if job.app.program.adapts else 1
        terms = Terms(
            kind=Kind.ADAPTIVE,
            scale=Scale(minimum=1, maximum=max(most, job.job.devices)),
            application=job.app.name,
            batch=job.job.batch,
            max_batch=job.app.limits.largest,
        )
        member = MemberDemand(role="worker", count=job.job.devices, devices=1)
        return Demand(members=(member,)), terms

    def _view(self, job: PolluxJob) -> PolicyJob:
        size_aware = self._setup.knowledge.size_aware
        demand, terms = self._fixed[job.index]
        return PolicyJob(
            id=job.index,
            owner=0,
            priority=0,
            job_class=JobClass.GUARANTEED,
            submitted=job.job.submitted,
            demand=demand,
            phase=JobPhase.RUNNING if job.nodes else JobPhase.QUEUED,
            since=job.since,
            alloc=self._allocs.get(job.index),
            terms=terms,
            facts=Facts(
                executed=job.executed,
                gpu_seconds=job.attained,
                by_type={self._type: job.attained},
                last_run=job.last_run,
                restarts=job.restarts,
                recovering=job.countdown > 0.0,
                steps_done=job.progress,
                steps_left=job.app.work - job.progress if size_aware else None,
            ),
        )

    def _place(self, plan: Plan) -> dict[int, tuple[int, ...]]:
        """Return the node of each device, by job."""
        free = [self._group.devices] * self._group.nodes
        nodes: dict[int, tuple[int, ...]] = {}
        rank = {job_id: place for place, job_id in enumerate(plan.order)}
        moving: list[int] = []
        for index in sorted(self._allocs, key=lambda i: (rank.get(i, len(rank)), i)):
            found = self._wanted(index)
            if found is not None and _take(free, found):
                nodes[index] = found
            else:
                moving.append(index)
        for index in moving:
            nodes[index] = _from_emptiest(free, self._allocs[index].devices)
        return nodes

    def _wanted(self, index: int) -> tuple[int, ...] | None:
        """Return the nodes from the plan, or the present ones if the job's size is unchanged."""
        alloc, held = self._allocs[index], self._active[index].nodes
        layout = alloc.layout or ()
        if len(layout) == self._group.nodes and sum(layout) == alloc.devices:
            return tuple(node for node, count in enumerate(layout) for _ in range(count))
        return held if len(held) == alloc.devices else None


def _take(free: list[int], nodes: tuple[int, ...]) -> bool:
    """Take devices of these nodes out of ``free``, if they are all there."""
    counts = {node: nodes.count(node) for node in set(nodes)}
    if any(free[node] < count for node, count in counts.items()):
        return False
    for node, count in counts.items():
        free[node] -= count
    return True


def _from_emptiest(free: list[int], devices: int) -> tuple[int, ...]:
    """Take as many devices as possible of the node with most free ones, then of the next."""
    nodes: list[int] = []
    while len(nodes) < devices:
        node = max(range(len(free)), key=lambda number: free[number])
        taken = min(devices - len(nodes), free[node])
        nodes += [node] * taken
        free[node] -= taken
    return tuple(nodes)


def _applications(setup: Setup, device_type: str) -> dict[str, Application]:
    """Read the profiles of all programs of a trace."""
    found: dict[str, Application] = {}
    for name in sorted({job.application for job in setup.trace.jobs}):
        program = PROGRAMS.get(name)
        if program is None:
            raise SimulationError(
                f"unknown application {name!r} for the pollux rules; "
                f"known: {', '.join(sorted(PROGRAMS))}"
            )
        steps = _read_steps(name, setup.files)
        profile = AppProfile(
            name,
            {device_type: steps},
            setup.files,
            epochs=program.epochs,
            initial_batch=program.initial_batch,
        )
        found[name] = Application(profile, program)
    return found


def _read_steps(name: str, files: FileReader) -> TypeProfile:
    placements, scalability = f"{name}/placements.csv", f"{name}/scalability.csv"
    text, more = files(placements), files(scalability)
    if text is None or more is None:
        raise SimulationError(f"{name}: its profile needs {placements} and {scalability}")
    return TypeProfile(
        read_rows(text, placements, required=("placement", *_TIMES), optional=()),
        read_rows(more, scalability, required=("num_nodes", "num_replicas", *_TIMES), optional=()),
        placements,
    )


def _checked(job: TraceJob, applications: Mapping[str, Application]) -> Application:
    """Return the application of a job, after a check that it supports the request."""
    app = applications[job.application]
    low, high = app.limits.initial, app.limits.largest
    if job.batch is not None and not low <= job.batch <= high:
        raise SimulationError(
            f"{job.name}: batch_size is {job.batch}; {app.name} takes {low} to {high}"
        )
    return app


RULES: Final = WorldRules(PolluxWorld)
"""The rule set ``pollux``."""
