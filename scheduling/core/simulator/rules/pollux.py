"""The rules of Pollux's artefact (OSDI '21): fixed rounds on nodes of one type.

Every round all jobs advance by the interval, then the policy sees the jobs that have been
submitted and are not complete. A job whose count stays keeps its nodes; the others take from the
node with most free devices, unless the plan names the nodes itself.
"""

from collections.abc import Mapping
from typing import Any, Final

from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.planning import (
    Alloc,
    Event,
    Facts,
    JobPhase,
    Kind,
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
from scheduling.core.simulator.profiles import AppProfile, TypeProfile
from scheduling.core.simulator.rules.pollux_jobs import (
    PROGRAMS,
    RESTART_SECONDS,
    Application,
    PolluxJob,
)
from scheduling.core.simulator.rules.pollux_model import PolluxModel
from scheduling.core.simulator.tables import read_rows
from scheduling.core.simulator.traces import FileReader, TraceJob
from scheduling.core.simulator.worlds import JobRecord, Setup

_INTERVAL: Final = 60.0
_TIMES: Final = ("local_bsz", "step_time", "sync_time")


class PolluxWorld:
    """Jobs of a workload on nodes of one type, round by round."""

    def __init__(self, setup: Setup) -> None:
        if len(setup.cluster.types) != 1:
            raise SimulationError("the rules pollux know one device type; use one, as in t4:16x4")
        self._setup = setup
        self._interval = setup.interval or _INTERVAL
        self._now = 0.0
        (self._type,) = setup.cluster.types
        self._group = setup.cluster.groups[self._type]
        applications = _applications(setup, self._type)
        self._jobs = [
            PolluxJob(index, job, _checked(job, applications))
            for index, job in enumerate(setup.trace.jobs)
        ]
        self._waiting = sorted(
            self._jobs, key=lambda job: (job.job.submitted, job.index), reverse=True
        )
        self._active: dict[int, PolluxJob] = {}
        self._allocs: dict[int, Alloc] = {}
        self._model = PolluxModel(setup.cluster, setup.knowledge)
        self._fixed = {job.index: self._declared(job) for job in self._jobs}
        self._pool = Pool(capacity=setup.cluster.capacity, types=setup.cluster.infos)
        self._rounds = 0
        self._event = Event.TICK
        self._changed = False
        self._snapshot: Snapshot | None = None
        self._alone: dict[tuple[str, int], float | None] = {}

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
        """Whether a job came or went, or something new was seen, before the last snapshot."""
        return self._changed

    def next_time(self, wake: float | None) -> float | None:
        """The next round."""
        return self._now + self._interval

    def advance(self, to: float) -> None:
        """Let all jobs train until ``to``."""
        for job in list(self._active.values()):
            job.run(self._now, to - self._now, self._model)
            if job.finished is not None:
                del self._active[job.index]
                self._allocs.pop(job.index, None)
                self._model.forget(job.index)
                self._event = Event.COMPLETION
        self._now = to

    def snapshot(self) -> Snapshot | None:
        """The jobs that are there now."""
        arrived = self._admit()
        learnt = [job for job in self._active.values() if job.learnt]
        for job in learnt:
            job.learnt = False
        self._changed = bool(arrived or learnt or self._event is Event.COMPLETION)
        event, self._event = Event.ARRIVAL if arrived else self._event, Event.TICK
        if not self._active:
            return None
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

    def apply(self, plan: Plan) -> None:
        """Give devices as planned."""
        assert self._snapshot is not None  # noqa: S101  a plan follows a snapshot
        self._allocs = settle(self._snapshot, plan)
        nodes = self._place(plan)
        for index, job in self._active.items():
            alloc = self._allocs.get(index)
            batch = job.batch if alloc is None else alloc.batch
            job.place(nodes.get(index, ()), batch, self._now, self._model)

    def records(self) -> tuple[JobRecord, ...]:
        """All jobs, in the order of the trace."""
        return tuple(
            JobRecord(
                name=job.job.name,
                submitted=job.job.submitted,
                started=job.started,
                finished=job.finished,
                restarts=job.restarts,
                gpu_seconds=job.attained,
            )
            for job in self._jobs
        )

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Run time of a job alone on so many devices at its best batch; None: it cannot."""
        app = self._jobs[index].app
        devices = min(devices, app.most_devices)
        key = app.name, devices
        if key not in self._alone:
            self._alone[key] = app.alone_seconds(self.cluster.packed(device_type, devices))
        return self._alone[key]

    def restart_seconds(self, index: int) -> float:
        """What each start of a job costs."""
        return RESTART_SECONDS

    def timeline(self) -> Mapping[str, Any]:
        """Who holds what."""
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

    def _admit(self) -> bool:
        """Make jobs active whose time has come."""
        arrived = False
        while self._waiting and self._waiting[-1].job.submitted <= self._now:
            job = self._waiting.pop()
            self._active[job.index] = job
            self._model.introduce(job)
            arrived = True
        return arrived

    def _declared(self, job: PolluxJob) -> tuple[Demand, Terms]:
        """What never changes of a job's view."""
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
        """The node of each device, by job."""
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
        """The nodes that the plan names, or those that the job has if its count stays."""
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
    """As many devices as possible of the node with most free ones, then of the next."""
    nodes: list[int] = []
    while len(nodes) < devices:
        node = max(range(len(free)), key=lambda number: free[number])
        taken = min(devices - len(nodes), free[node])
        nodes += [node] * taken
        free[node] -= taken
    return tuple(nodes)


def _applications(setup: Setup, device_type: str) -> dict[str, Application]:
    """The profiles of all programs of a trace."""
    found: dict[str, Application] = {}
    for name in sorted({job.application for job in setup.trace.jobs}):
        program = PROGRAMS.get(name)
        if program is None:
            raise SimulationError(
                f"there is no application {name!r} under the rules pollux; "
                f"there are {', '.join(sorted(PROGRAMS))}"
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
    """The application of a job whose request it can take."""
    app = applications[job.application]
    low, high = app.limits.initial, app.limits.largest
    if job.batch is not None and not low <= job.batch <= high:
        raise SimulationError(
            f"{job.name}: batch_size is {job.batch}; {app.name} takes {low} to {high}"
        )
    return app
