"""Policy rules for waiting jobs: backfill, lent devices, deadlines and the head of the queue."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor, log2
from types import MappingProxyType
from typing import Any, ClassVar

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Combinator, rigid_alloc, without
from scheduling.core.policies.engines.greedy import serve_rest
from scheduling.core.policies.engines.room import FreeDevices, borrows, one_type, present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policies.queues.backfilling import Backfill
from scheduling.core.policies.queues.ordered import remaining_seconds
from scheduling.core.policy_interface import JobPhase, Plan, PolicyJob, Reservation, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled(Combinator):
    """Adds backfill with reservations to the order of the inner policy.

    Sizes are the requested ones: of an elastic policy only its order remains.

    Attributes:
        reservations: the jobs whose start must not be delayed.
        depth: maximum number of jobs with a reservation, with ``all``.
        padding: factor on run time estimates.
    """

    reservations: str = parameter("head", sentence("param-protected"), choices=("head", "all"))
    depth: int = parameter(200, sentence("param-reservations"), low=1, high=10_000)
    padding: float = parameter(1.0, sentence("param-estimate-factor"), low=1.0, high=10.0)

    name: ClassVar[str] = "backfilled"
    summary: ClassVar[str] = sentence("summary-filling")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Serve the waiting jobs in the order of the inner plan; jobs not in it come last."""
        plan, after = self.inner.plan(snapshot, state)
        rank = {job_id: place for place, job_id in enumerate(plan.order)}
        waiting = sorted(
            (job for job in snapshot.jobs if job.phase is JobPhase.QUEUED),
            key=lambda job: (borrows(job), rank.get(job.id, len(rank)), job.submitted, job.id),
        )
        waiting = [job for job in waiting if job.id not in plan.reject]
        rules = Backfill(reservations=self.reservations, depth=self.depth, padding=self.padding)
        found = rules.plan_in_order(snapshot, waiting)
        return replace(found, reject=plan.reject, notes=plan.notes), after


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunistic(Combinator):
    """Gives idle and lent devices to opportunistic jobs; the inner policy decides other jobs."""

    name: ClassVar[str] = "opportunistic"
    summary: ClassVar[str] = sentence("summary-lending")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Add opportunistic jobs after the inner plan."""
        jobs = {job.id: job for job in present(snapshot)}
        borrowers = [job for job in jobs.values() if borrows(job)]
        room = FreeDevices(snapshot)
        pinned = room.take_pinned(borrowers)
        own = MappingProxyType({kind: room.free(kind) for kind in room.kinds})
        view = replace(
            snapshot,
            jobs=tuple(job for job in snapshot.jobs if not borrows(job)),
            pool=replace(snapshot.pool, capacity=own, borrow=MappingProxyType({})),
        )
        plan, after = self.inner.plan(view, state)
        if plan.offer:
            borrowed = {job.id: job.alloc or rigid_alloc(job) for job in borrowers}
        else:
            borrowed = pinned
            for job_id, alloc in sorted(plan.allocs.items()):
                room.take(jobs[job_id], alloc)
            running_first = sorted(borrowers, key=lambda j: (j.phase is JobPhase.QUEUED, j.id))
            serve_rest(
                (job for job in running_first if job.phase is JobPhase.RUNNING), room, borrowed
            )
            serve_rest(running_first, room, borrowed)
        nothing = sentence(message("nothing-left-or-lent"))
        waits = {job.id: nothing for job in borrowers if job.id not in borrowed}
        # A running job retains its devices, also if it was submitted after a waiting one.
        order = sorted(
            borrowed,
            key=lambda one: (jobs[one].phase is JobPhase.QUEUED, jobs[one].submitted, one),
        )
        return (
            replace(
                plan,
                allocs={**plan.allocs, **borrowed},
                order=(*plan.order, *order),
                why={**plan.why, **waits},
            ),
            after,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveHead(Combinator):
    """Reserves the next devices of its types for a job that has waited too long.

    A waiting job may never fit. So devices are reserved for it in turns, with pauses of 1, 3, 7
    times the length of a turn between them. A job that never fits blocks others for a decreasing
    fraction of the time.

    Attributes:
        patience: seconds that a job waits before devices are reserved for it.
        longest: maximum seconds of one reservation.
    """

    patience: float = parameter(3600.0, sentence("param-patience"), low=0.0, high=604_800.0)
    longest: float = parameter(
        86_400.0,
        sentence("param-reserved-seconds"),
        low=60.0,
        high=2_592_000.0,
    )

    name: ClassVar[str] = "reserve-head"
    summary: ClassVar[str] = sentence("summary-patient")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Defer starts on the types of the job that has waited longest."""
        plan, after = self.inner.plan(snapshot, state)
        head = self._head(snapshot, plan)
        if head is None:
            return plan, after
        kinds = set(_large_enough(head, snapshot))
        jobs = {job.id: job for job in snapshot.jobs}
        room = FreeDevices(snapshot)
        for job_id, alloc in sorted(plan.allocs.items()):
            if jobs[job_id].phase is JobPhase.RUNNING:
                room.take(jobs[job_id], alloc)
        stopped = {
            job_id
            for job_id, alloc in plan.allocs.items()
            if jobs[job_id].phase is JobPhase.QUEUED
            and job_id != head.id
            and any(part.type is None or part.type in kinds for part in alloc.parts)
        }
        held = without(plan, stopped, sentence(message("kept-for-longest", id=head.id)))
        fitted = room.fit(head)
        if fitted is not None:
            allocs = {**held.allocs, head.id: fitted}
            order = (head.id, *(job_id for job_id in held.order if job_id != head.id))
            return replace(held, allocs=allocs, order=order), after
        kept = Reservation(time=snapshot.now, n=head.gang, type=min(kinds))
        return replace(held, hold={**held.hold, head.id: kept}), after

    def _head(self, snapshot: Snapshot, plan: Plan) -> PolicyJob | None:
        """Return the job of the current turn: by priority and age first, later the next."""
        turns = {
            job.id: turn
            for job in snapshot.jobs
            if job.phase is JobPhase.QUEUED
            and not borrows(job)
            and (plan.offer or job.id not in plan.allocs)
            and job.id not in plan.reject
            and (turn := self._turn(job, snapshot.now)) is not None
            and _large_enough(job, snapshot)
        }
        heads = sorted(
            (job for job in snapshot.jobs if job.id in turns),
            key=lambda job: (-job.priority, job.submitted, job.id),
        )
        # Jobs queued at the same time have equal turns: rotate, so that none blocks the others.
        return heads[turns[heads[0].id] % len(heads)] if heads else None

    def _turn(self, job: PolicyJob, now: float) -> int | None:
        """Return the number of a job's earlier turns, or None if it has no turn now."""
        waited = now - (job.facts.last_queued or job.since) - self.patience
        return reservation_turn(waited, self.longest)


def reservation_turn(waited: float, longest: float) -> int | None:
    """Return the number of earlier turns of a job that reserves, or None in a pause.

    Args:
        waited: seconds since it may reserve.
        longest: seconds of a turn; the pauses have 1, 3, 7 times its length.
    """
    if waited < 0.0:
        return None
    # Turn n begins after 2 ** (n + 1) - 2 times the length of one.
    turn = floor(log2(waited / longest + 2.0)) - 1
    begun = (2.0 ** (turn + 1) - 2.0) * longest
    return turn if waited - begun < longest else None


def _large_enough(job: PolicyJob, snapshot: Snapshot) -> list[str]:
    """Return the types with enough devices and nodes for the complete gang."""
    return [
        kind
        for kind in one_type(job, sorted(snapshot.capacity))
        if job.gang <= snapshot.capacity[kind] and _nodes_hold(job, kind, snapshot)
    ]


def _nodes_hold(job: PolicyJob, kind: str, snapshot: Snapshot) -> bool:
    info = snapshot.pool.types.get(kind)
    return info is None or all(
        member.within.is_above_node or member.devices <= info.node_devices
        for member in job.demand.members
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineGuard(Combinator):
    """Jobs that may miss their deadline come before the inner policy's choice.

    Attributes:
        slack: factor on the known remaining time.
    """

    slack: float = parameter(1.1, sentence("param-time-weight"), low=1.0, high=10.0)

    name: ClassVar[str] = "deadline-guard"
    summary: ClassVar[str] = sentence("summary-urgent")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Serve jobs at risk by earliest deadline, and leave the rest to the inner policy."""
        urgent = sorted(
            (job for job in present(snapshot) if self._in_danger(job, snapshot)),
            key=lambda job: (job.terms.deadline, job.id),
        )
        room = FreeDevices(snapshot)
        saved = room.take_pinned(present(snapshot))
        pinned = set(saved)
        for job in urgent:
            alloc = room.fit(job) if job.id not in saved else None
            if alloc is not None:
                room.take(job, alloc)
                saved[job.id] = alloc
        rescued = {job_id: alloc for job_id, alloc in saved.items() if job_id not in pinned}
        if not rescued:
            return self.inner.plan(snapshot, state)
        taken: dict[str, int] = {}
        for alloc in rescued.values():
            for part in alloc.parts:
                taken[part.type or ""] = taken.get(part.type or "", 0) + part.n
        pool = snapshot.pool
        view = replace(
            snapshot,
            jobs=tuple(job for job in snapshot.jobs if job.id not in rescued),
            pool=replace(
                pool, capacity={kind: n - taken.get(kind, 0) for kind, n in pool.capacity.items()}
            ),
        )
        plan, after = self.inner.plan(view, state)
        return (
            replace(
                plan,
                allocs={**plan.allocs, **rescued},
                order=(*rescued, *plan.order),
            ),
            after,
        )

    def _in_danger(self, job: PolicyJob, snapshot: Snapshot) -> bool:
        if job.terms.deadline is None or borrows(job):
            return False
        left = remaining_seconds(job, snapshot)
        spare = job.terms.deadline - snapshot.now - left * self.slack
        possible = snapshot.now + left <= job.terms.deadline
        return possible and spare < snapshot.round_seconds
