"""Simulated cluster: an event clock around ``core.round.decide``.

Start estimates, what-ifs and replays use it. Each decision equals that of a live round on the same
snapshot. The cell engine is not rebuilt between decisions; only another specification rebuilds it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from scheduling.core.cells import CellEngine
from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.round.decide import decide
from scheduling.core.round.policy_answers import MakePolicy, is_plain
from scheduling.core.round_result import RoundResult, Start
from scheduling.core.simulation.events import (
    ClockEvent,
    ClusterChange,
    Event,
    EventClock,
    EventKind,
    HealthChange,
    changed_vcs,
    with_owners,
)
from scheduling.core.simulation.guests import GuestRules, SimulatedGuests
from scheduling.core.simulation.held_devices import (
    jobs_off,
    jobs_on,
    nodes_like,
    set_health,
    types_of,
)
from scheduling.core.simulation.job_table import JobTable
from scheduling.core.simulation.job_values import first_in_line
from scheduling.core.simulation.jobs import NO_OVERHEAD, Overhead
from scheduling.core.simulation.progress_table import Remaining
from scheduling.core.simulation.results import SimulationRecord
from scheduling.core.simulation.speedup import Speedup, proportional
from scheduling.core.values import (
    ClusterSnapshot,
    HeldGuest,
    HoldingJob,
    JobFacts,
    QueuedJob,
    Timed,
)
from tessera.isolation import NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """Settings of a simulation.

    Attributes:
        horizon: seconds after which nothing is simulated.
        coarse: minimum step, as a fraction of the elapsed time.
        grace: seconds that a preempted job takes to leave.
        tick: seconds between two rounds for policies that depend on more than arrivals, while
            jobs wait.
        ticks_always: whether rounds also run while no job waits, since policies may resize running
            jobs.
        most_waiting: maximum jobs of one virtual cluster and class, first come first.
    """

    horizon: float = math.inf
    coarse: float = 0.0
    grace: float = 30.0
    tick: float = 300.0
    ticks_always: bool = False
    most_waiting: int = 1_000_000


def no_overhead(job_id: int) -> Overhead:
    """Return no overhead: a job starts at once and loses nothing."""
    return NO_OVERHEAD


class SimulatedCluster:
    """A cluster from one decision to the next.

    Args:
        snapshot: the initial state.
        remaining: remaining seconds of a job at its requested size; called once for each job, when
            it first holds devices.
        settings: settings of the simulation.
        arrivals: jobs that are submitted later, with their facts.
        events: changes from outside, in any order.
        speedup: speed of a job at other sizes than requested.
        overhead: costs of a job's starts and failures, by job ID.
        steps: steps that a job reports in a second of its work at the requested size; None: jobs
            report no speeds.
        limit: limits the time of each policy.
        make: builds a policy from its name and parameters.
        guests: guests and the devices that admit them; None: no job is a guest.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        remaining: Remaining,
        *,
        settings: SimulationSettings | None = None,
        arrivals: Iterable[tuple[QueuedJob, JobFacts]] = (),
        events: Sequence[Event] = (),
        speedup: Speedup = proportional,
        overhead: Callable[[int], Overhead] = no_overhead,
        steps: Callable[[int], float] | None = None,
        limit: TimeLimit = nullcontext,
        make: MakePolicy = make_policy,
        guests: GuestRules | None = None,
    ) -> None:
        # Ports are not counted: jobs return them at their end, and they rarely run out.
        self._base = replace(
            snapshot, ports_left=None, hosts=(), guests=(), guest_needs={}, peers=(),
            peer_needs={}, pair_paces={},
        )  # fmt: skip
        self._settings = settings or SimulationSettings()
        self._limit, self._make = limit, make
        self._began = snapshot.now
        self._round = snapshot.round_number
        self._vcs = {vc.id: vc for vc in snapshot.vcs}
        self._clock = EventClock(snapshot.now)
        self._external: list[Event] = []
        for event in events:
            self.schedule(event)
        self._arrivals = sorted(arrivals, key=lambda one: (-one[0].submitted, -one[0].id))
        self._jobs = JobTable(
            snapshot,
            self._clock,
            remaining,
            grace=self._settings.grace,
            speedup=speedup,
            overhead=overhead,
            steps=steps,
        )
        self._guests: SimulatedGuests | None = None
        if guests is not None:
            self._guests = SimulatedGuests(self._jobs, self._clock, guests)
            self._guests.refresh()
        self._watch_policies()

    @property
    def now(self) -> float:
        """The present, in seconds since the epoch."""
        return self._clock.now

    @property
    def waiting(self) -> dict[int, QueuedJob]:
        """The waiting jobs by ID."""
        return self._jobs.waiting

    @property
    def guests(self) -> dict[int, HeldGuest]:
        """The running guests by job ID."""
        return self._jobs.guests

    @property
    def holding(self) -> dict[int, HoldingJob]:
        """The jobs with devices by ID."""
        return self._jobs.holding

    @property
    def devices(self) -> int:
        """The number of held devices."""
        return self._jobs.devices

    @property
    def is_settled(self) -> bool:
        """Whether a decision would change nothing.

        No job waits or is a guest, and no policy resizes jobs.
        """
        jobs = self._jobs
        if jobs.guests or jobs.cpu_waiting:
            return False
        return not self.waiting and not (self._ticks and self.holding)

    @property
    def engine(self) -> CellEngine:
        """The cell engine with all devices of the jobs."""
        return self._jobs.engine

    @property
    def record(self) -> SimulationRecord:
        """The results so far."""
        return self._jobs.record

    def schedule(self, event: Event) -> None:
        """Add a change from outside at a time that has not passed."""
        self._clock.add(event.at, EventKind.EXTERNAL, len(self._external))
        self._external.append(event)

    def held_types(self, job_id: int) -> dict[str, int]:
        """Return the devices of a running job by type."""
        return types_of(self._jobs.engine, self.holding[job_id].members)

    def snapshot(self) -> ClusterSnapshot:
        """Return the snapshot for a round now."""
        jobs = self._jobs
        jobs.observe()
        snapshot = replace(
            self._base,
            now=self.now,
            round_number=self._round,
            seed=self._round,
            vcs=tuple(self._vcs.values()),
            queued=first_in_line(jobs.waiting, self._settings.most_waiting),
            holding=tuple(jobs.holding.values()),
            cpu_queued=first_in_line(jobs.cpu_waiting, self._settings.most_waiting),
            cpu_holding=tuple(jobs.cpu_jobs.values()),
            known=jobs.known if self._ticks else {},
        )
        return snapshot if self._guests is None else self._guests.snapshot(snapshot)

    def decide(self) -> RoundResult:
        """Decide one round, and apply it at once."""
        snapshot = self.snapshot()
        if not self._jobs.prepare_engine():
            self._jobs.restore_engine(snapshot)
        result = decide(
            snapshot,
            limit=self._limit,
            make=self._make,
            engine=self._jobs.engine,
            cache=self._jobs.cache,
            trials=0,
            explain=(),
        )
        self._round += 1
        self.record.rounds += 1
        self.record.faults += result.fallbacks
        for start in (*result.starts, *result.cpu_starts):
            self._own_nodes(start)
        self._apply(result)
        for vc_id, state in result.policy_states.items():
            if state is self._vcs[vc_id].policy_state:
                continue
            self._vcs[vc_id] = replace(self._vcs[vc_id], policy_state=state)
        if result.wake is not None:
            self._clock.add(result.wake, EventKind.WAKE)
        return result

    def learn_profile(self, job_id: int, points: tuple[Timed, ...]) -> None:
        """Add steps that a profile job measured to the facts of a job, unless it has ended."""
        self._jobs.learn_profile(job_id, points)

    def order_out(self, job_id: int, *, lost: float = 0.0) -> None:
        """Preempt a job with devices now; it leaves after the grace period and is queued again.

        Args:
            job_id: the job.
            lost: seconds of work at the requested size that it repeats.
        """
        self._jobs.order_out(job_id, lost)

    def _apply(self, result: RoundResult) -> None:
        if self._guests is None:
            self._jobs.apply(result)
            return
        self._jobs.apply(result, self._guests.delay)
        self._guests.apply(result)
        if result.promotions:  # the engine gets the devices of the former guests
            self._jobs.restore_engine(self.snapshot())

    def next_time(self) -> float | None:
        """Return the time of the next decision, or None after the last event or the horizon."""
        clock, settings = self._clock, self._settings
        while (event := clock.first()) is not None and self._is_stale(event):
            clock.pop()
        times = [event.at] if event is not None else []
        if self._arrivals:
            times.append(self._arrivals[-1][0].submitted)
        if not times:
            return None
        if self._ticks and (self.waiting or (settings.ticks_always and self.holding)):
            times.append(self.now + settings.tick)
        passed = self.now - self._began
        due = max(min(times), self.now + settings.coarse * passed)
        return due if due <= self._began + settings.horizon else None

    def advance(self, to: float) -> None:
        """Process all events until ``to``."""
        clock, jobs = self._clock, self._jobs
        while (event := clock.first()) is not None and event.at <= to:
            clock.pop()
            if self._is_stale(event):
                continue
            clock.now = max(clock.now, event.at)
            if event.kind is EventKind.END:
                jobs.end(event.number)
            elif event.kind is EventKind.LEAVE:
                jobs.leave(event.number)
            elif event.kind is EventKind.EXTERNAL:
                self._change(self._external[event.number])
            if self._guests is not None:
                self._guests.refresh()
        clock.now = max(clock.now, to)
        while self._arrivals and self._arrivals[-1][0].submitted <= clock.now:
            jobs.enqueue(*self._arrivals.pop())

    def ran(self, job_id: int) -> float:
        """Return the seconds that a live job has run here so far, as if at the requested size."""
        return self._jobs.progress(job_id)

    def _is_stale(self, event: ClockEvent) -> bool:
        if event.kind not in (EventKind.END, EventKind.LEAVE):
            return False
        return not self._jobs.is_current(event.number, event.version)

    def _watch_policies(self) -> None:
        """Determine whether a policy depends on more than arrivals."""
        self._ticks = any(not is_plain(vc) for vc in self._vcs.values())
        self._jobs.observes = self._ticks

    def _own_nodes(self, start: Start) -> None:
        """Assign nodes without isolation to the tenant of the first job, without resets."""
        taken = {member.node for member in start.members if member.isolation == NONE}
        if taken:
            lines = self._jobs.waiting, self._jobs.cpu_waiting
            tenant = next(line[start.job_id].tenant for line in lines if start.job_id in line)
            nodes = (
                replace(node, owner=tenant) if node.name in taken else node
                for node in self._base.nodes
            )
            self._base = replace(self._base, nodes=tuple(nodes))

    def _change(self, event: Event) -> None:
        if isinstance(event, HealthChange):
            self._change_health(event)
        elif isinstance(event, ClusterChange):
            self._change_cluster(event)
        else:
            self._jobs.amend(event.job_id, event.job)

    def _change_health(self, event: HealthChange) -> None:
        engine, nodes, bad = self._jobs.engine, self._base.nodes, self._base.bad_devices
        if event.device is None:
            nodes = tuple(
                replace(node, healthy=event.healthy) if node.name == event.node else node
                for node in nodes
            )
            engine.set_node_health(event.node, healthy=event.healthy)
        else:
            place = (event.node, event.device)
            bad = bad - {place} if event.healthy else bad | {place}
            engine.set_device_health(*place, healthy=event.healthy)
        self._base = replace(self._base, nodes=nodes, bad_devices=bad)
        if not event.healthy:
            usable = nodes_like(engine, event.node, nodes)
            for job_id in jobs_on(engine, self.holding.values(), event.node, event.device):
                self._jobs.interrupt(job_id, event.node, usable)
            for guest in list(self._jobs.guests.values()):
                if guest.node == event.node and event.device in (None, guest.index):
                    self._jobs.interrupt(guest.job.id, event.node, usable)
            if event.device is None:
                self._interrupt_cpu_jobs(event.node)

    def _interrupt_cpu_jobs(self, node: str) -> None:
        """Interrupt the jobs without devices on a failed node."""
        usable = frozenset(one.name for one in self._base.nodes if one.placeable)
        for held in list(self._jobs.cpu_jobs.values()):
            if any(lease.node == node for lease in held.leases):
                self._jobs.interrupt(held.job.id, node, usable)

    def _change_cluster(self, event: ClusterChange) -> None:
        before = self._base
        self._vcs = changed_vcs(self._vcs, event.vcs)
        self._watch_policies()
        self._base = replace(
            before,
            spec=event.spec,
            topology_version=event.topology_version,
            nodes=with_owners(event.nodes, before.nodes),
            bad_devices=event.bad_devices,
            device_memory=event.device_memory,
            storages=event.storages,
            cpu_pools=before.cpu_pools if event.cpu_pools is None else event.cpu_pools,
        )
        if event.spec == before.spec:
            set_health(self._jobs.engine, before, self._base)
            return
        for job_id in jobs_off(event.spec, self.holding.values()):
            self._jobs.interrupt(job_id, "", frozenset())
        self._jobs.restore_engine(self.snapshot())
