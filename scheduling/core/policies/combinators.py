"""Policies made of policies: each keeps the inner one's decisions but for one rule of its own.

The state of a combinator is the inner policy's, so that a virtual cluster may put one around its
policy, or take it away, without losing what the policy remembers.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

from scheduling.core.planning import (
    Alloc,
    JobPhase,
    Plan,
    PolicyJob,
    Pool,
    Reservation,
    Snapshot,
)
from scheduling.core.policies.base import Need, Policy, rigid_alloc
from scheduling.core.policies.engines.filling import account_of
from scheduling.core.policies.engines.room import Room, borrows, one_type, present, shape_of
from scheduling.core.policies.engines.sorting import serve_rest
from scheduling.core.policies.guarding import TimeLimit, guarded_plan
from scheduling.core.policies.queues.backfilling import Backfill
from scheduling.core.policies.queues.least import remaining_seconds

_NO_NEEDS: Final[frozenset[Need]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Combinator:
    """A policy around another one."""

    inner: Policy

    aliases: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = _NO_NEEDS
    stateless: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis(_Combinator):
    """Running jobs change size or type only where that pays for the restart.

    Attributes:
        min_run: seconds that a job runs as it is before it is changed.
        min_gain: a change must bring so much more work over the horizon, as a part.
        horizon: seconds over which a change must pay.
    """

    min_run: float = 300.0
    min_gain: float = 0.0
    horizon: float = 3600.0

    name: ClassVar[str] = "hysteresis"
    summary: ClassVar[str] = "changes only what pays for its restart"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Take changes back that do not pay, where what the job had is still free."""
        plan, after = self.inner.plan(snapshot, state)
        if plan.offer:
            return plan, after
        allocs = dict(plan.allocs)
        room = Room(snapshot)
        jobs = {job.id: job for job in present(snapshot)}
        for job_id, alloc in sorted(allocs.items()):
            room.take(jobs[job_id], alloc)
        for job_id, alloc in sorted(plan.allocs.items()):
            job = jobs[job_id]
            held = job.alloc
            if job.phase is not JobPhase.RUNNING or held is None or _same(held, alloc):
                continue
            if borrows(job):
                continue
            if self._pays(snapshot, job, held, alloc):
                continue
            room.give_back(alloc)
            kept = held if room.fitting(job, held) is not None else alloc
            room.take(job, kept)
            allocs[job_id] = kept
        return replace(plan, allocs=allocs), after

    def _pays(self, snapshot: Snapshot, job: PolicyJob, held: Alloc, alloc: Alloc) -> bool:
        if snapshot.now - job.since < self.min_run:
            return False
        lost = snapshot.model.restart_seconds(job, alloc.parts[0].type)
        now = _rate(snapshot, job, held) * self.horizon
        then = _rate(snapshot, job, alloc) * max(0.0, self.horizon - lost)
        return then > now * (1 + self.min_gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(_Combinator):
    """No account holds more devices than its ceiling, whatever the inner policy gives it.

    Attributes:
        ceilings: devices by account (a tenant, or below -1 an owner); tenants' own ones count too.
    """

    ceilings: Mapping[int, int] = field(default_factory=dict)

    name: ClassVar[str] = "quota"
    summary: ClassVar[str] = "ceilings on what an account holds"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Drop starts beyond a ceiling; what runs already is never taken for it."""
        plan, after = self.inner.plan(snapshot, state)
        tenants = {tenant.id for tenant in snapshot.tenants}
        most: dict[int, float] = {
            tenant.id: tenant.ceiling for tenant in snapshot.tenants if tenant.ceiling is not None
        }
        most.update(self.ceilings)
        jobs = {job.id: job for job in snapshot.jobs}
        held: dict[int, int] = {}
        dropped: set[int] = set()
        rank = {job_id: place for place, job_id in enumerate(plan.order)}
        for job_id in sorted(
            plan.allocs,
            key=lambda i: (jobs[i].phase is not JobPhase.RUNNING, rank.get(i, len(rank)), i),
        ):
            job, devices = jobs[job_id], plan.allocs[job_id].devices
            account = account_of(job, tenants)
            above = held.get(account, 0) + devices > most.get(account, float("inf"))
            if above and job.phase is not JobPhase.RUNNING:
                dropped.add(job_id)
            else:
                held[account] = held.get(account, 0) + devices
        return _without(plan, dropped, "Its account holds as much as it may."), after


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled(_Combinator):
    """The inner policy's order, with reservations that nobody may put off.

    Attributes:
        rules: EASY or conservative.
    """

    rules: Backfill = field(default_factory=Backfill)

    name: ClassVar[str] = "backfilled"
    summary: ClassVar[str] = "an order of another policy, with reservations"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Walk the waiting jobs in the inner plan's order; those it leaves out come last."""
        plan, after = self.inner.plan(snapshot, state)
        rank = {job_id: place for place, job_id in enumerate(plan.order)}
        waiting = sorted(
            (job for job in snapshot.jobs if job.phase is JobPhase.QUEUED),
            key=lambda job: (borrows(job), rank.get(job.id, len(rank)), job.submitted, job.id),
        )
        waiting = [job for job in waiting if job.id not in plan.reject]
        return replace(self.rules.plan_in_order(snapshot, waiting), reject=plan.reject), after


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunistic(_Combinator):
    """The inner policy decides for guaranteed jobs; the others get what is left or lent."""

    name: ClassVar[str] = "opportunistic"
    summary: ClassVar[str] = "what is left and lent goes to jobs that can be preempted"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Fill up behind the inner plan."""
        jobs = {job.id: job for job in present(snapshot)}
        borrowers = [job for job in jobs.values() if borrows(job)]
        room = Room(snapshot)
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
        waits = {job.id: "Nothing is left or lent." for job in borrowers if job.id not in borrowed}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveHead(_Combinator):
    """Who has waited too long gets the next devices: nobody starts before him on his types.

    Attributes:
        patience: seconds that a job waits before places are kept for it.
    """

    patience: float = 3600.0

    name: ClassVar[str] = "reserve-head"
    summary: ClassVar[str] = "keeps places for whoever has waited too long"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Hold back starts on the types of the job that has waited longest."""
        plan, after = self.inner.plan(snapshot, state)
        head = self._head(snapshot, plan)
        if head is None:
            return plan, after
        kinds = set(one_type(head, sorted(snapshot.capacity)))
        jobs = {job.id: job for job in snapshot.jobs}
        room = Room(snapshot)
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
        held = _without(plan, stopped, f"Places are kept for job {head.id}, which waits longest.")
        fitted = room.fit(head)
        if fitted is not None:
            allocs = {**held.allocs, head.id: fitted}
            order = (head.id, *(job_id for job_id in held.order if job_id != head.id))
            return replace(held, allocs=allocs, order=order), after
        kept = Reservation(time=snapshot.now, n=head.gang, type=min(kinds))
        return replace(held, hold={**held.hold, head.id: kept}), after

    def _head(self, snapshot: Snapshot, plan: Plan) -> PolicyJob | None:
        """The job that has lost its patience, of the highest priority and the earliest."""
        largest = max(snapshot.capacity.values(), default=0)
        waiting = (
            job
            for job in snapshot.jobs
            if job.phase is JobPhase.QUEUED
            and not borrows(job)
            and snapshot.now - (job.facts.last_queued or job.since) >= self.patience
            and (plan.offer or job.id not in plan.allocs)
            and job.id not in plan.reject
            and job.gang <= largest
            and one_type(job, sorted(snapshot.capacity))
        )
        return min(waiting, key=lambda job: (-job.priority, job.submitted, job.id), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineGuard(_Combinator):
    """Jobs whose deadline is in danger come before the inner policy's choice.

    Attributes:
        slack: what is known of the time to go counts so many times.
    """

    slack: float = 1.1

    name: ClassVar[str] = "deadline-guard"
    summary: ClassVar[str] = "deadlines in danger come first"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Serve those in danger, the earliest deadline first, and leave the rest to the inner."""
        urgent = sorted(
            (job for job in present(snapshot) if self._in_danger(job, snapshot)),
            key=lambda job: (job.terms.deadline, job.id),
        )
        room = Room(snapshot)
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
            pool=_smaller(pool, taken),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded(_Combinator):
    """The inner policy, or ``fallback`` where it fails, is late or breaks a rule.

    Attributes:
        limit: bounds the time of a call; the driver, which has the clock, makes it.
    """

    fallback: Policy
    limit: TimeLimit = nullcontext

    name: ClassVar[str] = "guarded"
    summary: ClassVar[str] = "falls back to another policy, and says so"

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """The inner plan if it may be carried out; what went wrong is in the plan's notes."""
        plan, after, fault = guarded_plan(self.inner, snapshot, state, limit=self.limit)
        if fault is None:
            return plan, after
        instead, _, worse = guarded_plan(self.fallback, snapshot, {}, limit=self.limit)
        faults = [fault] if worse is None else [fault, worse]
        return replace(instead, notes={**instead.notes, "faults": faults}), state


def _same(held: Alloc, alloc: Alloc) -> bool:
    return [(part.n, part.type) for part in held.parts] == [
        (part.n, part.type) for part in alloc.parts
    ]


def _rate(snapshot: Snapshot, job: PolicyJob, alloc: Alloc) -> float:
    """Steps/s, the parts of a mix added up."""
    return sum(
        snapshot.model.rate(job, shape_of(snapshot, part.type or "", part.n))
        for part in alloc.parts
    )


def _without(plan: Plan, dropped: set[int], why: str) -> Plan:
    if not dropped:
        return plan
    return replace(
        plan,
        allocs={job_id: alloc for job_id, alloc in plan.allocs.items() if job_id not in dropped},
        order=tuple(job_id for job_id in plan.order if job_id not in dropped),
        why={**plan.why, **dict.fromkeys(sorted(dropped), why)},
    )


def _smaller(pool: Pool, taken: Mapping[str, int]) -> Pool:
    return replace(
        pool, capacity={kind: n - taken.get(kind, 0) for kind, n in pool.capacity.items()}
    )
