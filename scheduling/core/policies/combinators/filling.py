"""Policy rules that fill up: in another policy's order, or with idle and lent devices."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import rigid_alloc
from scheduling.core.policies.combinators.base import Combinator
from scheduling.core.policies.engines.room import FreeDevices, borrows, present
from scheduling.core.policies.engines.sorting import serve_rest
from scheduling.core.policies.parameters import parameter
from scheduling.core.policies.queues.backfilling import Backfill
from scheduling.core.policy_interface import JobPhase, Plan, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled(Combinator):
    """The inner policy's order, with reservations that no job may delay.

    Sizes are the requested ones: of an elastic policy only its order remains.

    Attributes:
        reservations: the jobs whose start must not be delayed.
        depth: jobs that hold a reservation at most, with ``all``.
        padding: an estimate is taken to be this much too short.
    """

    reservations: str = parameter("head", sentence("param-protected"), choices=("head", "all"))
    depth: int = parameter(200, sentence("param-reservations"), low=1, high=10_000)
    padding: float = parameter(1.0, sentence("param-estimate-factor"), low=1.0, high=10.0)

    name: ClassVar[str] = "backfilled"
    summary: ClassVar[str] = sentence("summary-filling")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Walk the waiting jobs in the inner plan's order; jobs not in it come last."""
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
    """The inner policy decides for guaranteed jobs; the others get idle or lent devices."""

    name: ClassVar[str] = "opportunistic"
    summary: ClassVar[str] = sentence("summary-lending")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Fill up behind the inner plan."""
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
        order = sorted(borrowed, key=lambda job_id: (jobs[job_id].submitted, job_id))
        return (
            replace(
                plan,
                allocs={**plan.allocs, **borrowed},
                order=(*plan.order, *order),
                why={**plan.why, **waits},
            ),
            after,
        )
