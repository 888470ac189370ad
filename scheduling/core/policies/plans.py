"""Checks of plans without the policy: legality, fit, changes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from scheduling.core.jobspec import Demand
from scheduling.core.policy_interface import Alloc, JobPhase, Part, Plan, PolicyJob, Pool, Snapshot


class IllegalPlanError(ValueError):
    """A plan breaks a rule for all plans."""


class AllocationChange(StrEnum):
    """Effect of a plan on one job."""

    START = "start"
    KEEP = "keep"
    RESIZE = "resize"
    MIGRATE = "migrate"
    SHARE = "share"
    SUSPEND = "suspend"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """One job's change from its current to its planned size."""

    job_id: int
    change: AllocationChange
    alloc: Alloc | None


def keep_running(snapshot: Snapshot) -> Plan:
    """Build the fallback plan: running jobs continue; the rest is tried in order of arrival."""
    allocs = {
        job.id: job.alloc if job.alloc is not None else rigid_alloc(job)
        for job in snapshot.jobs
        if job.phase is not JobPhase.LEAVING
    }
    waiting = sorted(
        (job for job in snapshot.jobs if job.phase is JobPhase.QUEUED),
        key=lambda job: (-job.priority, job.submitted, job.id),
    )
    return Plan(allocs=allocs, order=tuple(job.id for job in waiting), offer=True)


def rigid_alloc(job: PolicyJob) -> Alloc:
    """Return the requested allocation of a rigid job."""
    if job.asked is not None:
        return job.asked
    return Alloc(
        parts=tuple(
            Part(
                n=member.count * member.devices,
                type=member.device_types[0] if member.device_types else None,
                level=member.within.value,
            )
            for member in job.demand.members
        ),
        batch=job.terms.batch,
    )


def check_plan(snapshot: Snapshot, plan: Plan) -> None:
    """Raise if a driver must not apply the plan.

    Raises:
        IllegalPlanError: the plan exceeds the capacity, splits a gang, uses a size, a type or a
            share that the job does not allow, or takes devices from a job that must retain them.
    """
    jobs = {job.id: job for job in snapshot.jobs}
    for job_id, alloc in plan.allocs.items():
        job = jobs.get(job_id)
        if job is None:
            raise IllegalPlanError(f"job {job_id} is unknown")
        _check_alloc(snapshot.pool, job, alloc)
    _check_rest(snapshot, plan, jobs)


class PlanChecker:
    """Caching variant of ``check_plan`` for a driver whose jobs' demands and terms are constant.

    A valid allocation of a job is not checked again while the pool is unchanged.
    """

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._right: dict[int, Alloc] = {}

    def __call__(self, snapshot: Snapshot, plan: Plan) -> None:
        """Refuse a plan that drivers must not execute.

        Raises:
            IllegalPlanError: see ``check_plan``.
        """
        if snapshot.pool is not self._pool:
            self._pool, self._right = snapshot.pool, {}
        right = self._right.get
        changed = [item for item in plan.allocs.items() if right(item[0]) is not item[1]]
        jobs = {job.id: job for job in snapshot.jobs}
        if not jobs.keys() >= plan.allocs.keys():
            missing = min(plan.allocs.keys() - jobs.keys())
            raise IllegalPlanError(f"job {missing} is unknown")
        _check_rest(snapshot, plan, jobs)
        for job_id, alloc in changed:
            _check_alloc(snapshot.pool, jobs[job_id], alloc)
        self._right.update(changed)


def settle(snapshot: Snapshot, plan: Plan) -> dict[int, Alloc]:
    """Return the allocation of each job for a plan and counts of free devices.

    Allocations without a type get the type with most free devices. Of an offer, running jobs
    retain theirs and the waiting ones are tried in order.
    """
    free = {
        name: snapshot.pool.room(name)
        for name in sorted({*snapshot.pool.capacity, *snapshot.pool.borrow})
    }
    jobs = {job.id: job for job in snapshot.jobs}
    settled: dict[int, Alloc] = {}
    tried = set(plan.order) if plan.offer else set()
    for job_id, strict in _in_order(snapshot, plan):
        wanted = plan.allocs[job_id]
        is_hopeless = job_id in tried and wanted.share is None and not any(free.values())
        alloc = None if is_hopeless else _fitted(wanted, jobs[job_id], free)
        if alloc is not None:
            settled[job_id] = alloc
            for part in alloc.parts:
                if part.type is not None and alloc.share is None:
                    free[part.type] -= part.n
        elif strict:
            break
    return settled


def settle_offer(
    plan: Plan, jobs: Mapping[int, PolicyJob], free: dict[str, int]
) -> dict[int, Alloc]:
    """Return the allocations of an offer's waiting jobs, and subtract them from ``free``.

    The result equals that of ``settle`` if all running jobs retain their devices. A job with the
    same demand as an earlier one that did not fit is not tried again.
    """
    settled: dict[int, Alloc] = {}
    refused: dict[int, Demand] = {}
    left = sum(free.values())
    for job_id in plan.order:
        wanted = plan.allocs.get(job_id)
        if wanted is None:
            continue
        alloc = None
        if left > 0 or wanted.share is not None:
            job = jobs[job_id]
            if refused.get(id(wanted)) is job.demand:
                continue
            alloc = _fitted(wanted, job, free)
            if alloc is None:
                refused[id(wanted)] = job.demand
        if alloc is not None:
            settled[job_id] = alloc
            left -= _taken(alloc, free)
        elif plan.strict:
            break
    return settled


def _taken(alloc: Alloc, free: dict[str, int]) -> int:
    """Subtract an allocation from the free devices; return its number of devices."""
    if alloc.share is not None:
        return 0
    for part in alloc.parts:
        free[part.type or ""] -= part.n
    return alloc.devices


def steps(snapshot: Snapshot, plan: Plan) -> tuple[SizeChange, ...]:
    """Return the changes by job that a plan requires, without jobs that continue to wait."""
    settled = settle(snapshot, plan)
    return tuple(
        step
        for job in snapshot.jobs
        if (step := _step(job, settled.get(job.id), plan)) is not None
    )


def _step(job: PolicyJob, alloc: Alloc | None, plan: Plan) -> SizeChange | None:
    if job.id in plan.reject:
        return SizeChange(job_id=job.id, change=AllocationChange.REJECT, alloc=None)
    if job.phase is JobPhase.LEAVING:
        return None
    if job.phase is JobPhase.QUEUED:
        return (
            SizeChange(job_id=job.id, change=AllocationChange.START, alloc=alloc)
            if alloc
            else None
        )
    if alloc is None:
        return SizeChange(job_id=job.id, change=AllocationChange.SUSPEND, alloc=None)
    return SizeChange(job_id=job.id, change=_change(job.alloc, alloc), alloc=alloc)


def _change(held: Alloc | None, alloc: Alloc) -> AllocationChange:
    if held is None or held == alloc:
        return AllocationChange.KEEP
    if held.devices != alloc.devices:
        return AllocationChange.RESIZE
    if [part.type for part in held.parts] != [part.type for part in alloc.parts]:
        return AllocationChange.MIGRATE
    return AllocationChange.SHARE if held.share != alloc.share else AllocationChange.KEEP


def _in_order(snapshot: Snapshot, plan: Plan) -> Iterator[tuple[int, bool]]:
    """Yield jobs in the order in which they get devices, and whether a refusal ends it."""
    waiting = set(plan.order) if plan.offer else set()
    for job in snapshot.jobs:
        if job.id in plan.allocs and job.id not in waiting:
            yield job.id, False
    for job_id in plan.order:
        if job_id in waiting and job_id in plan.allocs:
            yield job_id, plan.strict


def _fitted(alloc: Alloc, job: PolicyJob, free: Mapping[str, int]) -> Alloc | None:
    """Fill in every type of ``alloc``; return None if it does not fit."""
    left = dict(free)
    parts: list[Part] = []
    for part in alloc.parts:
        name = part.type
        if name is None:
            types = job.types_at(alloc.devices)
            allowed = [kind for kind in left if not types or kind in types]
            name = max(allowed, key=lambda kind: left[kind], default=None)
        if name is None or (left.get(name, 0) < part.n and alloc.share is None):
            return None
        left[name] = left.get(name, 0) - part.n
        parts.append(part if part.type is not None else replace(part, type=name))
    return replace(alloc, parts=tuple(parts)) if tuple(parts) != alloc.parts else alloc


def _check_rest(snapshot: Snapshot, plan: Plan, jobs: Mapping[int, PolicyJob]) -> None:
    """Check the parts of a plan that concern more than one allocation."""
    leaving, running = JobPhase.LEAVING, JobPhase.RUNNING
    for job in snapshot.jobs:
        if job.phase is leaving and job.id in plan.allocs:
            raise IllegalPlanError(f"job {job.id} is unknown")
        if not job.terms.preemptible and job.phase is running:
            _check_kept(job, plan.allocs.get(job.id))
    for job_id in plan.reject:
        if job_id in plan.allocs:
            raise IllegalPlanError(f"job {job_id} is both rejected and allocated devices")
    order = set(plan.order)
    if len(order) != len(plan.order) or not jobs.keys() >= order:
        raise IllegalPlanError("the order contains a job twice, or an unknown job")
    if not plan.offer:
        _check_capacity(snapshot.pool, plan)
        _check_memory(snapshot.pool, plan)


def _check_alloc(pool: Pool, job: PolicyJob, alloc: Alloc) -> None:
    if not alloc.parts or any(part.n < 1 for part in alloc.parts):
        raise IllegalPlanError(f"job {job.id}: an allocated part has no devices")
    if not job.allows(alloc.devices):
        raise IllegalPlanError(f"job {job.id} cannot run on {alloc.devices} devices")
    for part in alloc.parts:
        if part.type is None:
            continue
        if part.type not in pool.capacity and part.type not in pool.borrow:
            raise IllegalPlanError(f"job {job.id}: device type {part.type} does not exist")
        allowed = [kind for member in job.demand.members for kind in member.device_types]
        if allowed and part.type not in allowed:
            raise IllegalPlanError(f"job {job.id} cannot run on {part.type}")
    share = alloc.share
    if share is None:
        return
    if not 0.0 < share.fraction <= 1.0 or not 0 <= share.perf <= 100:
        raise IllegalPlanError(f"job {job.id}: the allocated share is out of bounds")
    if not job.terms.shareable:
        raise IllegalPlanError(f"job {job.id} cannot share a device")


def _check_kept(job: PolicyJob, alloc: Alloc | None) -> None:
    kept = alloc is not None and (job.alloc is None or alloc.sizes == job.alloc.sizes)
    if not kept:
        raise IllegalPlanError(f"job {job.id} is running and cannot be preempted")


def _check_capacity(pool: Pool, plan: Plan) -> None:
    used: dict[str | None, float] = defaultdict(float)
    for alloc in plan.allocs.values():
        weight = alloc.share.fraction if alloc.share else 1.0
        for part in alloc.parts:
            used[part.type] += part.n * weight
    for name, devices in used.items():
        if name is not None and devices > pool.room(name) + 1e-6:
            raise IllegalPlanError(
                f"the plan uses {devices:g} devices of {name}; the limit is {pool.room(name)}"
            )
    room = sum(pool.capacity.values()) + sum(pool.borrow.values())
    if sum(used.values()) > room + 1e-6:
        raise IllegalPlanError(
            f"the plan uses {sum(used.values()):g} devices; the limit is {room}"
        )


def _check_memory(pool: Pool, plan: Plan) -> None:
    """Check that jobs of one group share devices and that others have exclusive devices."""
    given: dict[tuple[str, str], int] = defaultdict(int)
    for job_id, alloc in plan.allocs.items():
        share = alloc.share
        if share is not None and share.memory_cap is not None:
            for kind in sorted({part.type or "" for part in alloc.parts}):
                given[kind, share.group or f"job {job_id}"] += share.memory_cap
    for (kind, _), memory in given.items():
        there = pool.types[kind].memory if kind in pool.types else None
        if there is not None and memory > there:
            raise IllegalPlanError(
                f"a device of {kind} would provide {memory} bytes of memory; it has {there}"
            )
