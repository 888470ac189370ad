"""Policy rules that limit jobs: no changes that cost more than they gain, and caps on devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import floor
from typing import Any, ClassVar

from scheduling.core.messages import message, sentence
from scheduling.core.performance.executors import sharing_gain
from scheduling.core.policies.base import Combinator, without
from scheduling.core.policies.engines.filling import account_of
from scheduling.core.policies.engines.room import FreeDevices, present, shape_of
from scheduling.core.policies.parameters import NO_PARAMETER, parameter
from scheduling.core.policy_interface import Alloc, JobPhase, Plan, PolicyJob, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis(Combinator):
    """Changes a running job only if the gain exceeds the cost of the restart.

    Attributes:
        min_run: minimum seconds without a change before the next one.
        min_gain: minimum gain of work over the horizon, as a fraction.
        horizon: seconds over which a change must pay.
    """

    min_run: float = parameter(300.0, sentence("param-settle"), low=0.0, high=86_400.0)
    min_gain: float = parameter(0.0, sentence("param-least-gain"), low=0.0, high=10.0)
    horizon: float = parameter(3600.0, sentence("param-payback"), low=60.0, high=604_800.0)

    name: ClassVar[str] = "hysteresis"
    summary: ClassVar[str] = sentence("summary-steady")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Revert changes without enough gain, if the job's previous devices are still free."""
        plan, after = self.inner.plan(snapshot, state)
        if plan.offer:
            return plan, after
        allocs = dict(plan.allocs)
        room = FreeDevices(snapshot)
        jobs = {job.id: job for job in present(snapshot)}
        for job_id, alloc in sorted(allocs.items()):
            room.take(jobs[job_id], alloc)
        for job_id, alloc in sorted(plan.allocs.items()):
            job = jobs[job_id]
            held = job.alloc
            if job.phase is not JobPhase.RUNNING or held is None or _same(job, held, alloc):
                continue
            if self._pays(snapshot, job, held, alloc):
                continue
            room.give_back(job, alloc)
            kept = held if room.fitting(job, held) is not None else alloc
            room.take(job, kept)
            allocs[job_id] = kept
        return replace(plan, allocs=allocs), after

    def _pays(self, snapshot: Snapshot, job: PolicyJob, held: Alloc, alloc: Alloc) -> bool:
        if snapshot.now - job.since < self.min_run:
            return False
        lost = snapshot.model.restart_seconds(job, alloc.parts[0].type)
        now = _rate(snapshot, job, held, job.facts.executors) * self.horizon
        then = _rate(snapshot, job, alloc) * max(0.0, self.horizon - lost)
        return then > now * (1 + self.min_gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCeiling(Combinator):
    """Limits the devices of each account, regardless of the inner policy.

    Attributes:
        most: maximum devices of an account (a tenant, otherwise an owner) without its own limit.
        ceilings: devices by account (a tenant, or below -1 an owner); tenants' own limits apply
            too. Set by code; not a parameter.
    """

    most: int = parameter(100_000, sentence("param-most-held"), low=1, high=100_000)
    ceilings: Mapping[int, int] = field(default_factory=dict, metadata=NO_PARAMETER)

    name: ClassVar[str] = "quota"
    summary: ClassVar[str] = sentence("summary-ceilings")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Hide jobs that cannot start, and drop the excess; running jobs are never taken."""
        books = self._books(snapshot)
        hidden = {
            job.id
            for job in snapshot.jobs
            if job.phase is JobPhase.QUEUED and books.left(job) < job.least
        }
        view = snapshot
        if hidden:
            jobs = tuple(job for job in snapshot.jobs if job.id not in hidden)
            view = replace(snapshot, jobs=jobs)
        plan, after = self.inner.plan(view, state)
        plan, beyond = self._beyond(view, plan, books)
        dropped = hidden | beyond
        kept = without(plan, dropped, sentence(message("account-is-full")))
        return _held_down(view, kept, books), after

    def _books(self, snapshot: Snapshot) -> "_Books":
        """Return the current devices and the limit of each account."""
        most: dict[int, float] = {
            tenant.id: tenant.ceiling for tenant in snapshot.tenants if tenant.ceiling is not None
        }
        most.update(self.ceilings)
        books = _Books({tenant.id for tenant in snapshot.tenants}, most, self.most)
        for job in snapshot.jobs:
            if job.phase is not JobPhase.QUEUED:
                books.add(job, job.alloc.devices if job.alloc is not None else job.gang)
        return books

    def _beyond(self, view: Snapshot, plan: Plan, books: "_Books") -> tuple[Plan, set[int]]:
        """Limit the plan's starts to allowed sizes; return it and the jobs without such a size.

        The first jobs of the inner plan come first.
        """
        jobs = {job.id: job for job in view.jobs}
        rank = {job_id: place for place, job_id in enumerate(plan.order)}
        dropped: set[int] = set()
        allocs = dict(plan.allocs)
        for job_id in sorted(plan.allocs, key=lambda i: (rank.get(i, len(rank)), i)):
            job, alloc = jobs[job_id], plan.allocs[job_id]
            if job.phase is not JobPhase.QUEUED:
                continue
            left = books.left(job)
            fitted = alloc if plan.offer else job.cut(alloc, left)
            if fitted is not None and fitted.devices <= left:
                books.add(job, fitted.devices)
                allocs[job_id] = fitted
            else:
                dropped.add(job_id)
        return replace(plan, allocs=allocs), dropped


class _Books:
    """Devices by account."""

    def __init__(self, tenants: set[int], most: Mapping[int, float], others: int) -> None:
        self._tenants, self._most, self._others = tenants, most, others
        self._held: dict[int, int] = {}

    def add(self, job: PolicyJob, devices: int) -> None:
        """Add ``devices``, which may be negative."""
        account = account_of(job, self._tenants)
        self._held[account] = self._held.get(account, 0) + devices

    def left(self, job: PolicyJob) -> int:
        """Return the devices that a job's account may still get; negative above its limit."""
        account = account_of(job, self._tenants)
        return floor(self._most.get(account, self._others)) - self._held.get(account, 0)


def _held_down(snapshot: Snapshot, plan: Plan, books: _Books) -> Plan:
    """Remove growth beyond a limit from ``plan``, if the job's previous devices are still free.

    Borrowed devices count like any others.
    """
    jobs = {job.id: job for job in snapshot.jobs}
    grown = [
        job_id
        for job_id, alloc in sorted(plan.allocs.items())
        if (held := jobs[job_id].alloc) is not None and alloc.devices > held.devices
    ]
    if plan.offer or not grown:
        return plan
    room, allocs = FreeDevices(snapshot), dict(plan.allocs)
    for job_id, alloc in sorted(allocs.items()):
        room.take(jobs[job_id], alloc)
    for job_id in grown:
        job, alloc = jobs[job_id], allocs[job_id]
        held = job.alloc
        if held is None:
            continue
        room.give_back(job, alloc)
        cut = job.cut(alloc, held.devices + books.left(job))
        if cut is not None and cut.devices > held.devices:
            allocs[job_id] = cut
        elif room.fitting(job, held) is not None:
            allocs[job_id] = held
        room.take(job, allocs[job_id])
        books.add(job, allocs[job_id].devices - held.devices)
    return replace(plan, allocs=allocs)


def _same(job: PolicyJob, held: Alloc, alloc: Alloc) -> bool:
    """Return whether ``alloc`` leaves sizes, types and processes per device unchanged."""
    if held.sizes != alloc.sizes:
        return False
    # Uneven numbers of processes cannot be changed.
    return job.facts.executors < 1 or all(
        part.executors in (None, job.facts.executors) for part in alloc.parts
    )


def _rate(snapshot: Snapshot, job: PolicyJob, alloc: Alloc, executors: int | None = None) -> float:
    """Sum steps/s over the parts of a mix, each with the given processes per device."""
    return sum(
        snapshot.model.rate(job, shape_of(snapshot, kind, part.n))
        * sharing_gain(job, kind, alloc.devices, executors or part.executors)
        for part in alloc.parts
        for kind in [part.type or ""]
    )
