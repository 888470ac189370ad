"""The policy of a round: place, search for room, take back, upgrade (algorithm 1 of Crius).

The artefact acts on completions and arrivals, on named nodes. Here each plan places the waiting
jobs in the order of arrival and then upgrades; the cell engine chooses the nodes. Values are
relative and net of a restart unless the parameters say otherwise: ADR 79 lists the differences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from scheduling.core.jobspec import Within
from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.crius.moves import Assignment
from scheduling.core.policies.crius.options import JobOptions, Slot, Valuation, held_slot
from scheduling.core.policies.crius.search import RoomSearch
from scheduling.core.policies.engines.greedy import meant, serve_rest
from scheduling.core.policies.engines.room import FreeDevices, borrows, is_pinned, on_type, present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Alloc, JobPhase, Part, Plan, PolicyJob, Snapshot
from scheduling.core.reasons import Reason
from tessera.reasons import ReasonCode

_BUSY: Final = 150
_SEARCHES: Final = 100
"""Maximum searches of one plan."""
_GAIN: Final = 1e-9
_RESTARTS_TO_PAY: Final = 10.0
"""Minimum run time before a change, in restarts; live rounds ignore earlier changes."""
_WAITS: Final = sentence(message("no-room-by-changes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crius:
    """Chooses type and size of each job for a large sum of throughputs.

    Attributes:
        depth: maximum number of changes of other jobs that make room for a waiting job.
        upgrades: maximum number of changes of running jobs to larger sizes or faster types.
        scaling: whether jobs may be halved and doubled.
        exchange: whether jobs may move to another type.
        opportunistic: whether jobs may start past a waiting job, which takes their devices back
            when it fits.
        relative: whether throughput counts relative to a job's own at its requested size.
        restart: whether the gain of a change must exceed the cost of the restart.
        horizon: seconds within which the gain counts.
        settle: minimum seconds between changes of a job.
        deadline: whether sizes at which a job would miss its deadline are excluded, and late jobs
            are refused.
    """

    depth: int = parameter(3, sentence("param-depth"), low=0, high=6)
    upgrades: int = parameter(10, sentence("param-upgrades"), low=0, high=1000)
    scaling: bool = parameter(True, sentence("param-halve"))
    exchange: bool = parameter(True, sentence("param-exchange"))
    opportunistic: bool = parameter(True, sentence("param-overtake"))
    relative: bool = parameter(True, sentence("param-relative"))
    restart: bool = parameter(True, sentence("param-pay-restart"))
    horizon: float = parameter(3600.0, sentence("param-restart-payback"), low=60.0, high=1e6)
    settle: float = parameter(300.0, sentence("param-settle"), low=0.0, high=86_400.0)
    deadline: bool = parameter(False, sentence("param-deadline"))

    name: ClassVar[str] = "crius"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = sentence("summary-crius")
    needs: ClassVar[frozenset[Need]] = frozenset({Need.THROUGHPUT})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Place the waiting jobs, then upgrade; the state holds the targets of leaving jobs."""
        jobs = present(snapshot)
        room = FreeDevices(snapshot)
        allocs = self._fixed(snapshot, jobs)
        for job in jobs:
            if job.id in allocs:
                room.take(job, allocs[job.id])
        late = [job for job in jobs if self._is_late(snapshot, job)]
        free = {kind: room.free(kind) for kind in room.kinds}
        round_ = _Round(self, snapshot, free, _targets(state))
        round_.run(
            [job for job in jobs if job.id not in allocs and not borrows(job) and job not in late]
        )
        for job_id, slot in round_.books.slots.items():
            job = round_.books.options[job_id].job
            allocs[job_id] = _alloc(job, slot)
            room.take(job, allocs[job_id])
        serve_rest((job for job in jobs if borrows(job)), room, allocs)
        order = sorted(jobs, key=lambda job: (borrows(job), -job.priority, job.submitted, job.id))
        plan = meant(
            allocs,
            [job for job in order if job not in late],
            why={job.id: _WAITS for job in order if not borrows(job)},
        )
        reject = {job.id: _missed() for job in late}
        return replace(plan, reject=reject), {"targets": round_.targets()}

    def valuation(self) -> Valuation:
        """Return how rates become values."""
        return Valuation(
            relative=self.relative,
            horizon=self.horizon if self.restart else None,
            margin=self.settle if self.deadline else None,
        )

    def search(self, running: int) -> RoomSearch:
        """Return the search for room among a number of jobs with devices."""
        depth = self.depth if running <= _BUSY else min(self.depth, 2)
        return RoomSearch(depth=depth, scaling=self.scaling, exchange=self.exchange)

    def _fixed(self, snapshot: Snapshot, jobs: Sequence[PolicyJob]) -> dict[int, Alloc]:
        """Return the allocations of running jobs that this plan does not change."""
        return {
            job.id: job.alloc
            for job in jobs
            if job.alloc is not None
            and (
                is_pinned(job)
                or borrows(job)
                or snapshot.now - job.since < self._patience(snapshot, job)
                or held_slot(job.alloc) is None
            )
        }

    def _patience(self, snapshot: Snapshot, job: PolicyJob) -> float:
        """Return the minimum seconds between changes of a job; the driver applies them, too."""
        return max(self.settle, _RESTARTS_TO_PAY * snapshot.model.restart_seconds(job))

    def _is_late(self, snapshot: Snapshot, job: PolicyJob) -> bool:
        """Return whether a waiting job has passed its deadline."""
        due = job.terms.deadline
        waits = job.phase is JobPhase.QUEUED and not borrows(job)
        return self.deadline and waits and due is not None and due <= snapshot.now


@dataclass(slots=True)
class _Round:
    """Computation of one plan.

    Attributes:
        free: devices without the fixed jobs.
        wanted: targets of jobs that are leaving or wait to restart.
    """

    policy: Crius
    snapshot: Snapshot
    free: dict[str, int]
    wanted: dict[int, Slot]
    books: Assignment = field(init=False)
    searches: int = 0
    failed: set[tuple[object, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for job in self.snapshot.jobs:
            target = self.wanted.get(job.id)
            if job.phase is JobPhase.LEAVING and target is not None and target.type in self.free:
                self.free[target.type] -= target.devices
        self.books = Assignment({kind: max(0, n) for kind, n in self.free.items()})

    def run(self, jobs: Sequence[PolicyJob]) -> None:
        """Place all jobs, and upgrade."""
        policy = self.policy
        valuation, kinds = policy.valuation(), sorted(self.free)
        options = [valuation.options(self.snapshot, job, kinds) for job in jobs]
        waiting = []
        for one in options:
            if one.held is not None and one.held.type in self.free:
                self.books.place(one, one.held)
            else:
                waiting.append(one)
        waiting.sort(key=lambda one: _arrival(one.job))
        waiting = [one for one in waiting if not self._back(one)]
        blocked: set[str] = set()
        for one in waiting:
            if not one.asked or one.asked[0].type in blocked:
                continue
            if not self._start(one) and not policy.opportunistic:
                blocked.add(one.asked[0].type)
        for _step in range(policy.upgrades):
            if not self._upgrade():
                break

    def targets(self) -> dict[str, list[Any]]:
        """Return the targets of leaving jobs and of those that a plan restarts."""
        found = {
            job.id: self.wanted[job.id]
            for job in self.snapshot.jobs
            if job.phase is JobPhase.LEAVING and job.id in self.wanted
        }
        found |= {
            job_id: slot
            for job_id, slot in self.books.slots.items()
            if (held := self.books.options[job_id].held) != slot
            and (held is not None or job_id in self.wanted)
        }
        return {str(job_id): [slot.type, slot.devices] for job_id, slot in sorted(found.items())}

    def _back(self, one: JobOptions) -> bool:
        """Start a job at the size for which it left, if there is still room."""
        slot = self.wanted.get(one.job.id)
        if slot is None or slot not in one.values or not self._fits(slot):
            return False
        self.books.place(one, slot)
        return True

    def _start(self, one: JobOptions) -> bool:
        """Place a waiting job as requested, else by changes of others, else by taking back."""
        direct = one.asked if not one.job.types else one.asked[:1]
        for slot in direct:
            if self._fits(slot):
                self.books.place(one, slot)
                return True
        return self._make_room(one) or (self.policy.opportunistic and self._take_back(one))

    def _make_room(self, one: JobOptions) -> bool:
        """Place a job on another type, or halve or move other jobs so that it fits."""
        key = (one.asked, tuple(sorted(one.values)))
        if key in self.failed or self.searches >= _SEARCHES:
            return False
        self.searches += 1
        found = self.policy.search(len(self.books.slots)).outcome(self.books, one)
        if found is None:
            self.failed.add(key)
            return False
        self.failed.clear()
        for job_id, slot in found.changes.items():
            self.books.place(self.books.options[job_id], slot)
        self.books.place(one, found.slot)
        return True

    def _take_back(self, one: JobOptions) -> bool:
        """Suspend running jobs that arrived later, the newest first, until a job fits."""
        slot, first = one.asked[0], _arrival(one.job)
        later = sorted(
            (
                other
                for job_id, other in self.books.options.items()
                if self.books.slots[job_id].type == slot.type
                and other.held is not None
                and _arrival(other.job) > first
            ),
            key=lambda other: _arrival(other.job),
            reverse=True,
        )
        room, victims = self.books.free[slot.type], []
        for other in later:
            if room >= slot.devices:
                break
            victims.append(other)
            room += self.books.slots[other.job.id].devices
        if room < slot.devices:
            return False
        for other in victims:
            self.books.remove(other.job.id)
        self.books.place(one, slot)
        return True

    def _upgrade(self) -> bool:
        """Make the single upgrade with the greatest gain; return whether there was one."""
        best: tuple[float, int, Slot] | None = None
        for gain, job_id, target in self.books.upgrades():
            doubles = target.type == self.books.slots[job_id].type
            if gain <= _GAIN or not (self.policy.scaling if doubles else self.policy.exchange):
                continue
            if best is None or (-gain, job_id, target) < best:
                best = -gain, job_id, target
        if best is None:
            return False
        self.books.place(self.books.options[best[1]], best[2])
        return True

    def _fits(self, slot: Slot) -> bool:
        return self.books.free.get(slot.type, 0) >= slot.devices


def _arrival(job: PolicyJob) -> tuple[int, float, int]:
    return -job.priority, job.submitted, job.id


def _targets(state: Mapping[str, Any]) -> dict[int, Slot]:
    return {int(key): Slot(kind, n) for key, (kind, n) in state.get("targets", {}).items()}


def _alloc(job: PolicyJob, slot: Slot) -> Alloc:
    """Return the present allocation if it is equal."""
    if job.alloc is not None and held_slot(job.alloc) == slot:
        return job.alloc
    if slot.devices == job.gang:
        return on_type(job, slot.type)
    return Alloc(parts=(Part(n=slot.devices, type=slot.type, level=Within.NODE.value),))


def _missed() -> Reason:
    return Reason(
        code=ReasonCode.DEADLINE_INFEASIBLE,
        message=message("deadline-infeasible"),
        unblock=(message("ask-later-deadline"),),
    )
