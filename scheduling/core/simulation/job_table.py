"""Live jobs of a simulation: queue, devices, progress and record."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from scheduling.core.cells import CellEngine
from scheduling.core.jobspec import Demand
from scheduling.core.round.claims import groups_of
from scheduling.core.round.cpu_jobs import leases_of
from scheduling.core.round.decision_cache import DecisionCache
from scheduling.core.round.engine_setup import engine_for
from scheduling.core.round.gang_requests import group_name, parts_of
from scheduling.core.round.gates import next_opening
from scheduling.core.round_result import GuestStart, Rebinding, RoundResult, Start
from scheduling.core.simulation.events import EventClock, EventKind
from scheduling.core.simulation.facts import NOTHING_KNOWN, after_restart, after_run
from scheduling.core.simulation.held_devices import rebound, release, shape_of
from scheduling.core.simulation.job_values import holding_job, queued_job
from scheduling.core.simulation.jobs import Overhead
from scheduling.core.simulation.progress_table import ProgressTable, Remaining
from scheduling.core.simulation.results import SimulationRecord
from scheduling.core.simulation.speedup import HeldShape, Speedup, proportional
from scheduling.core.values import (
    ClusterSnapshot,
    HeldCpuJob,
    HeldGuest,
    HoldingJob,
    JobFacts,
    QueuedJob,
    Timed,
)
from tessera.reasons import ReasonCode

_NO_DEVICES: Final = HeldShape(types=(), nodes=0, devices=0)


def _no_delay(addresses: set[str]) -> float:
    return 0.0


RETRY_SECONDS: Final = 1.0
"""Time before a job is tried again after a node failure."""


class JobTable:
    """The live jobs, and the cell engine that contains their devices.

    Args:
        snapshot: the initial state.
        clock: gets the events of the jobs.
        remaining: remaining work of a job.
        grace: seconds that a preempted job takes to leave.
        speedup: speed of a job at other sizes than requested.
        overhead: costs of a job's starts and failures, by job ID.
        steps: steps in a second of a job's work at the requested size; None: jobs report none.

    Attributes:
        waiting, holding: the live jobs by ID.
        guests: the running guests by job ID; they hold no devices.
        leaves_at: time at which a guest with notice leaves.
        known: facts of jobs.
        grace: seconds that a preempted job takes to leave.
        observes: whether facts are updated, since a policy reads them.
        devices: number of held devices.
        cache: facts of earlier decisions.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        clock: EventClock,
        remaining: Remaining,
        *,
        grace: float,
        speedup: Speedup,
        overhead: Callable[[int], Overhead],
        steps: Callable[[int], float] | None = None,
    ) -> None:
        self.waiting: dict[int, QueuedJob] = {}
        self.holding = {job.id: job for job in snapshot.holding}
        self.guests: dict[int, HeldGuest] = {}
        self.cpu_waiting: dict[int, QueuedJob] = {}
        self.cpu_jobs = {held.job.id: held for held in snapshot.cpu_holding}
        self.leaves_at: dict[int, float] = {}
        self.known: dict[int, JobFacts] = dict(snapshot.known)
        self.record = SimulationRecord()
        self.observes = False
        self.devices = sum(job.devices for job in snapshot.holding)
        self.engine: CellEngine = engine_for(snapshot)
        self._numbered: int | None = None
        self.cache = DecisionCache()
        self._clock, self.grace, self._speedup = clock, grace, speedup
        self._began = snapshot.now
        self._progress = ProgressTable(clock, remaining, overhead, steps)
        self._shapes: dict[int, HeldShape] = {}
        self._starting: dict[int, float] = {}
        self._asked: dict[int, Demand] = {}
        for held in snapshot.holding:
            self._take_over(held)
        for cpu_job in snapshot.cpu_holding:
            self._take_over(cpu_job.job)
        for queued in (*snapshot.queued, *snapshot.cpu_queued):
            self.enqueue(queued)

    def enqueue(self, job: QueuedJob, known: JobFacts | None = None) -> None:
        """Add a submitted job to the queue."""
        self.line_of(job)[job.id] = job
        self._asked[job.id] = job.demand
        if known is not None:
            self.known[job.id] = known
        self._await_gate(job)

    def learn_profile(self, job_id: int, points: tuple[Timed, ...]) -> None:
        """Add profiled steps to the facts of a live job."""
        if job_id in self.waiting or job_id in self.holding:
            known = self.known.get(job_id, NOTHING_KNOWN)
            self.known[job_id] = replace(known, profile=(*known.profile, *points))

    def line_of(self, job: QueuedJob) -> dict[int, QueuedJob]:
        """Return the queue of a job: jobs without devices have their own."""
        return self.waiting if job.demand.has_devices else self.cpu_waiting

    def progress(self, job_id: int) -> float:
        """Return the seconds that a job has run here, as if at the requested size."""
        return self._progress.done(job_id)

    def has_started(self, job_id: int) -> bool:
        """Return whether a live job holds devices or has held some."""
        return job_id in self._progress

    def is_current(self, job_id: int, version: int) -> bool:
        """Return whether a job still holds the devices for which an event was made."""
        return self._progress.is_version(job_id, version) and self._runs(job_id)

    def began(self, job_id: int) -> float:
        """Return the start of the progress of a running job."""
        return self._progress.began(job_id)

    def set_pace(self, job_id: int, pace: float) -> None:
        """Let a running job make progress at a part of its full speed, unless it is leaving."""
        if self._runs(job_id):
            self._progress.set_pace(job_id, pace)

    def take_over_guest(self, guest: HeldGuest, grace: float) -> None:
        """Add a guest that runs at the start."""
        self.guests[guest.job.id] = guest
        self._take_over(guest.job, grace)

    def start_guest(self, start: GuestStart, device_type: str) -> int:
        """Start a waiting job as a guest at its full speed; return its ID."""
        job = self.waiting.pop(start.job_id)
        (leaf,) = start.member.leaves
        (index,) = start.member.device_indices
        self.guests[job.id] = HeldGuest(
            job=holding_job(job, (start.member.leaves,), self._clock.now),
            address=leaf.address,
            node=start.member.node,
            index=index,
            slot=start.slot,
            holder=start.holder,
        )
        shape = HeldShape(types=(device_type,), nodes=1, devices=1)
        self._begin(job, self._speedup(job, self._asked[job.id], shape))
        return job.id

    def notify_guest(self, job_id: int, grace: float) -> None:
        """Notify a guest to leave."""
        guest = self.guests.get(job_id)
        if guest is not None and not guest.job.leaving:
            self.record.preemptions[job_id] += 1
            self.guests[job_id] = replace(guest, job=replace(guest.job, leaving=True))
            self._stop(job_id, grace)

    def promote(self, job_id: int) -> None:
        """Let a guest hold its device; the engine has to be restored afterwards."""
        guest = self.guests.pop(job_id)
        now = self._clock.now
        self._count_guest(guest)
        self.holding[job_id] = guest.job  # as a live job, it runs since its start
        used = (now - max(guest.job.since, self._began)) * guest.job.devices
        self.record.device_seconds[job_id] -= used
        self.devices += guest.job.devices
        self.set_pace(job_id, 1.0)

    def prepare_engine(self) -> bool:
        """Set the engine to the state that a live round would restore.

        Returns:
            False if this state requires a restore.
        """
        if self._numbered != self.engine.version:
            if not self.engine.renumber(self._groups()):
                return False
            self._numbered = self.engine.version
        self.engine.set_now(self._clock.now)
        if self.engine.return_to_guaranteed():
            self._numbered = None
        return True

    def restore_engine(self, snapshot: ClusterSnapshot) -> None:
        """Restore the engine as a live round does."""
        self.engine = engine_for(snapshot)
        self.engine.set_now(self._clock.now)
        self._numbered = None

    def observe(self) -> None:
        """Update the facts of running jobs if a policy reads them."""
        now = self._clock.now
        for job_id in [one for one, at in self._starting.items() if at < now]:
            at, held = self._starting.pop(job_id), self.holding.get(job_id)
            if held is not None and not held.leaving:
                self.holding[job_id] = replace(held, since=at)  # as a live job that has started
        if self.observes:
            for job_id in (*self.holding, *self.guests):
                self._observe(job_id)

    def apply(self, result: RoundResult, delay: Callable[[set[str]], float] = _no_delay) -> None:
        """Apply the decision of a round, apart from guests.

        Args:
            result: the decision.
            delay: seconds until the guests of some devices, by address, have left.
        """
        for start in result.starts:
            self._start(start, delay)
        for start in result.cpu_starts:
            self._start_cpu_job(start)
        for rejection in result.rejections:
            self.waiting.pop(rejection.job_id, None)
            self.record.rejections[rejection.job_id] = rejection.reason
        for preemption in (*result.preemptions, *result.cpu_preemptions):
            self._notify(preemption.job_id)
        for rebinding in result.rebindings:
            self._rebind(rebinding)
        self._store_claims(result)

    def end(self, job_id: int) -> None:
        """Complete a running job."""
        self._release(job_id)
        self.record.ends[job_id] = self._clock.now
        self._progress.end(job_id)
        for line in (self.waiting, self.cpu_waiting):
            for other in [job for job in line.values() if job_id in job.after]:
                after = tuple(one for one in other.after if one != job_id)
                line[other.id] = replace(other, after=after)

    def leave(self, job_id: int) -> None:
        """Release the devices of a job, and requeue it."""
        now = self._clock.now
        if self.observes:
            self._observe(job_id)
            self.known[job_id] = after_run(self.known[job_id], now=now)
        self._release(job_id)
        self._progress.leave(job_id)
        job = self._progress.job(job_id)
        self.line_of(job)[job_id] = replace(job, claims=None, waiting_for=())

    def interrupt(self, job_id: int, failed: str, usable: frozenset[str]) -> None:
        """Remove the devices of a job without notice, and retry it soon on other nodes.

        Args:
            job_id: the job.
            failed: the failed node.
            usable: nodes that accept work in the chains of the failed node.
        """
        self.record.failures[job_id] += 1
        job = self._progress.job(job_id)
        nodes = self._shape(job_id).nodes if job_id in self.holding else 1
        self.record.lost[job_id] += self._progress.fail(job_id)
        for avoided in ({*job.excluded_nodes, failed}, {failed}, set[str]()):
            if not avoided or len(usable - avoided) >= nodes:
                break
        self._progress.requeue(
            replace(
                job,
                excluded_nodes=tuple(sorted(avoided)),
                backoff_until=self._clock.now + RETRY_SECONDS,
            )
        )
        self.leave(job_id)
        self._await_gate(self.line_of(job)[job_id])

    def order_out(self, job_id: int, lost: float) -> None:
        """Notify a job to leave, and discard work that it does not save.

        Args:
            job_id: a job with devices.
            lost: seconds of work at the requested size that its next start repeats.
        """
        self._notify(job_id)
        self._progress.repeat(job_id, lost)
        self.record.lost[job_id] += lost

    def amend(self, job_id: int, job: QueuedJob | None) -> None:
        """Replace a job that waits for its first start, or withdraw it (None)."""
        before = self.waiting.get(job_id) or self.cpu_waiting.get(job_id)
        if before is None or self.has_started(job_id):
            return
        for group in groups_of(before) if before.claims else ():
            self.engine.release(group)
        del self.line_of(before)[job_id]
        if job is not None:
            after = tuple(one for one in job.after if one not in self.record.ends)
            self.enqueue(replace(job, after=after, claims=None, waiting_for=()))

    def _groups(self) -> Iterator[str]:
        """Yield the gangs of the engine in the order in which a live round restores them."""
        for job_id in sorted(self.holding):
            for part in range(len(parts_of(self.holding[job_id].demand))):
                yield group_name(job_id, part)
        claiming = [job for job in self.waiting.values() if job.claims]
        for job in sorted(claiming, key=lambda job: (-job.priority, job.id)):
            yield from groups_of(job)

    def _runs(self, job_id: int) -> bool:
        return job_id in self.holding or job_id in self.guests or job_id in self.cpu_jobs

    def _take_over(self, held: HoldingJob, grace: float | None = None) -> None:
        known = self.known.get(held.id)
        asked = (known.asked if known is not None else None) or held.demand
        self._asked[held.id] = asked
        job = queued_job(held, asked)
        self._progress.take_over(job, self._rate(job))
        if held.leaving:
            self._stop(held.id, self.grace if grace is None else grace)
        else:
            self._progress.await_end(held.id)

    def _start(self, start: Start, delay: Callable[[set[str]], float]) -> None:
        job = self.waiting.pop(start.job_id)
        held = holding_job(job, tuple(member.leaves for member in start.members), self._clock.now)
        if start.demand is not None:
            held = replace(held, demand=start.demand)
        self.holding[job.id] = held
        self.devices += held.devices
        wait = 0.0
        if self.guests:
            wait = delay({leaf.address for leaves in held.members for leaf in leaves})
            if wait:
                self._starting[job.id] = self._clock.now + wait
        self._begin(job, self._rate(job), wait)

    def _start_cpu_job(self, start: Start) -> None:
        job = self.cpu_waiting.pop(start.job_id)
        held = holding_job(job, ((),) * len(start.members), self._clock.now)
        self.cpu_jobs[job.id] = HeldCpuJob(job=held, leases=leases_of(start, job.demand))
        self._begin(job, 1.0)

    def _begin(self, job: QueuedJob, rate: float, wait: float = 0.0) -> None:
        """Start the progress of a job after ``wait`` and its own delays."""
        if self._progress.begin(job, rate, wait):
            self.record.restarts[job.id] += 1
            if self.observes:
                self.known[job.id] = after_restart(self.known.get(job.id))
        self.record.starts.setdefault(job.id, self._clock.now)

    def _rate(self, job: QueuedJob) -> float:
        """Return the speed of a job on its new devices."""
        self._shapes.pop(job.id, None)
        if job.id in self.cpu_jobs:
            return 1.0
        if job.id in self.guests:
            shape = shape_of(self.engine, self.guests[job.id].job.members)
        elif self._speedup is proportional:  # no types and nodes, which take time to find
            shape = HeldShape(types=(), nodes=0, devices=self.holding[job.id].devices)
        else:
            shape = self._shape(job.id)
        return self._speedup(job, self._asked[job.id], shape)

    def _shape(self, job_id: int) -> HeldShape:
        shape = self._shapes.get(job_id)
        if shape is None:
            held = self.holding[job_id]
            shape = self._shapes[job_id] = shape_of(self.engine, held.members)
        return shape

    def _notify(self, job_id: int) -> None:
        """Notify a job to leave."""
        if job_id in self.guests:
            self.notify_guest(job_id, self.grace)
            return
        cpu_job = self.cpu_jobs.get(job_id)
        if cpu_job is not None and not cpu_job.job.leaving:
            self.record.preemptions[job_id] += 1
            self.cpu_jobs[job_id] = replace(cpu_job, job=replace(cpu_job.job, leaving=True))
            self._stop(job_id, self.grace)
        held = self.holding.get(job_id)
        if held is None or held.leaving:
            return
        self.record.preemptions[job_id] += 1
        self.holding[job_id] = replace(held, leaving=True)
        self._stop(job_id, self.grace)

    def _await_gate(self, job: QueuedJob) -> None:
        opening = next_opening(job, self._clock.now)
        if opening is not None:
            self._clock.add(opening, EventKind.GATE, job.id)

    def _stop(self, job_id: int, grace: float) -> None:
        """End the progress of a job, which leaves after ``grace`` seconds."""
        if job_id in self.guests:
            self.leaves_at[job_id] = self._clock.now + grace
        self._progress.stop(job_id, grace)

    def _count_guest(self, guest: HeldGuest) -> None:
        """Count the seconds of a guest, which no longer is one."""
        seconds = self._clock.now - max(guest.job.since, self._began)
        self.record.guest_seconds[guest.job.id] += seconds
        self.leaves_at.pop(guest.job.id, None)

    def _release(self, job_id: int) -> None:
        if job_id in self.guests:
            self._count_guest(self.guests.pop(job_id))
            return
        if self.cpu_jobs.pop(job_id, None) is not None:
            return
        held = self.holding.pop(job_id)
        self.devices -= held.devices
        seconds = max(0.0, self._clock.now - max(held.since, self._began))
        self.record.device_seconds[job_id] += seconds * held.devices
        release(self.engine, held)

    def _rebind(self, rebinding: Rebinding) -> None:
        held = self.holding.get(rebinding.job_id)
        if held is not None:
            self.holding[held.id] = rebound(self.engine, held, rebinding)

    def _store_claims(self, result: RoundResult) -> None:
        """Store each job's claims until it starts or drops them."""
        for job_id, job in self.waiting.items():
            reason = result.reasons.get(job_id)
            waits = reason is not None and reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT
            claims = reason.claims if reason is not None and waits else None
            if claims is not None or job.claims is not None:
                self.waiting[job_id] = replace(job, claims=claims)

    def _observe(self, job_id: int) -> None:
        """Update the facts of a running job; a guest uses no devices, its speed is not a fact."""
        shape = self._shape(job_id) if job_id in self.holding else _NO_DEVICES
        self.known[job_id] = self._progress.facts(
            job_id, self.known.get(job_id), shape, self._asked[job_id]
        )
