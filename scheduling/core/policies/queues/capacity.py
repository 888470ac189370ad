"""Queues with guarantees, ceilings and user limits: the capacity scheduler of Hadoop YARN.

Vavilapalli et al., SoCC '13 (YARN).
Tenants are queues in a tree. The child that uses the smallest part of its guarantee is offered
devices first; the unused part of a queue is lent to the others, up to their limits. With
preemption, queues above their ideal share return whole gangs, the youngest first.

Each active user of a queue may use an equal part of its capacity, at least
``minimum-user-limit-percent`` of it, and at most ``user-limit-factor`` times the queue's
guarantee, even if the rest is idle (Hadoop's documentation, "Capacity Scheduler", queue
properties). A queue's capacity is its guarantee, or its use if that is more.

Philly (Jeon et al., ATC '19, section 2.3) adds locality. A gang first requests the tightest domain
that can hold it. After each period of waiting it requests the next wider one. Waiting gangs hold
no devices, so smaller jobs may pass. Gangs are preempted only if the cluster is nearly full. The
periods and the threshold of use are parameters, with defaults of Tessera.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from scheduling.core.jobspec import Within
from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.filling import account_of, fill, tree
from scheduling.core.policies.engines.greedy import meant
from scheduling.core.policies.engines.room import borrows, is_pinned, present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policies.queues.shares import in_turn
from scheduling.core.policy_interface import Alloc, JobPhase, Plan, PolicyJob, Snapshot, Tenant

ALL: Final = 100
#: A person without a tenant known to the view is a user of the whole pool.
_POOL: Final = -1
_SLACK: Final = 1e-9
_TIGHTNESS: Final = {within: rank for rank, within in enumerate(Within)}

_WAITS: Final = sentence(message("other-queues-first"))
_USER: Final = sentence(message("user-limit-of-queue"))
_GIVES_BACK: Final = sentence(message("queue-gives-back"))


class UserLimits:
    """Each person's devices in each queue, and the limit.

    Borrowing is neither limited nor counted: it uses only idle devices.

    Args:
        snapshot: the private view.
        percent: lower bound of a user's limit in percent of the queue; 100 for no sharing.
        factor: maximum of one user, in queue guarantees; 0 for no bound.
    """

    def __init__(self, snapshot: Snapshot, percent: int, factor: float) -> None:
        self._percent, self._factor = percent, factor
        self._guarantees = _guarantees(snapshot)
        users: dict[int, set[int]] = defaultdict(set)
        for job in snapshot.jobs:
            if job.phase is not JobPhase.LEAVING and not borrows(job):
                users[self._queue(job)].add(job.owner)
        self._active = {queue: len(owners) for queue, owners in users.items()}
        self._used: dict[int, int] = defaultdict(int)
        self._held: dict[tuple[int, int], int] = defaultdict(int)
        self.refused: set[int] = set()

    def take(self, job: PolicyJob, devices: int) -> None:
        """Count the devices of a job."""
        if not borrows(job):
            queue = self._queue(job)
            self._used[queue] += devices
            self._held[queue, job.owner] += devices

    def allows(self, job: PolicyJob, devices: int) -> bool:
        """Return whether its owner may have n more devices; an owner without devices may start one
        gang.

        Without this exception, a gang above the limit would never start.
        """
        if borrows(job):
            return True
        queue = self._queue(job)
        held = self._held[queue, job.owner]
        if held == 0 or held + devices <= self.limit(queue, devices) + _SLACK:
            return True
        self.refused.add(job.id)
        return False

    def limit(self, queue: int, devices: int) -> float:
        """Return the maximum devices of one user in a queue that is to use ``devices`` more."""
        guarantee = self._guarantees[queue]
        capacity = max(guarantee, float(self._used[queue] + devices))
        part = max(1.0 / max(1, self._active.get(queue, 1)), self._percent / ALL)
        most = part * capacity
        return min(most, self._factor * guarantee) if self._factor > 0.0 else most

    def _queue(self, job: PolicyJob) -> int:
        return job.terms.tenant if job.terms.tenant in self._guarantees else _POOL


def _guarantees(snapshot: Snapshot) -> dict[int, float]:
    """Return the guaranteed devices by queue: as declared, otherwise by weight."""
    devices = float(snapshot.pool.devices)
    weights = sum(tenant.weight for tenant in snapshot.tenants)
    found = {_POOL: devices}
    for tenant in snapshot.tenants:
        by_weight = devices * tenant.weight / weights if weights > 0.0 else 0.0
        found[tenant.id] = by_weight if tenant.guarantee is None else tenant.guarantee
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Serves the queue that uses the smallest fraction of its guarantee first.

    Attributes:
        strict: whether a head that does not fit blocks its queue.
        preempt: whether queues above their ideal share return devices that others wait for.
        dead_zone: tolerance above the ideal share, as a fraction of it.
        most_preempted: maximum fraction of all devices that are preempted in one round.
        minimum_user_limit_percent: users share their queue equally, but no limit is below this
            part of it. YARN's default, 100, lets one user have all of it.
        user_limit_factor: maximum of one user, in its queue's guarantees; 0 for no bound (YARN's
            default is 1). If no tenants are known, all are users of the whole pool.
    """

    strict: bool = parameter(False, sentence("param-strict-queue"))
    preempt: bool = parameter(False, sentence("param-preempt-queues"))
    dead_zone: float = parameter(0.1, sentence("param-tolerance"), low=0.0, high=1.0)
    most_preempted: float = parameter(0.1, sentence("param-most-preempted"), low=0.0, high=1.0)
    minimum_user_limit_percent: int = parameter(
        100, sentence("param-user-percent"), low=1, high=100
    )
    user_limit_factor: float = parameter(0.0, sentence("param-user-part"), low=0.0, high=1000.0)

    name: ClassVar[str] = "capacity"
    aliases: ClassVar[tuple[str, ...]] = ("yarn-cs",)
    summary: ClassVar[str] = "queues with guarantees and upper limits; idle guarantees are lent"
    needs: ClassVar[frozenset[Need]] = frozenset()
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Preempt, then serve the queues."""
        back = self._given_back(snapshot) if self.preempt else frozenset()
        view = _without(snapshot, back)
        root, accounts = tree(view, weigh=_guarantee)
        limits = self._limits(view)
        allocs = fill(
            view,
            root=root,
            accounts=accounts,
            share=lambda account: account.devices / account.weight,
            order=in_turn,
            keep=True,
            strict=self.strict,
            limits=limits,
        )
        rank = {job_id: position for position, job_id in enumerate(allocs)}
        ordered = sorted(
            present(snapshot),
            key=lambda job: (rank.get(job.id, len(rank)), borrows(job), *in_turn(job), job.id),
        )
        why = {job.id: _GIVES_BACK if job.id in back else _WAITS for job in ordered}
        why.update(dict.fromkeys(limits.refused if limits else (), _USER))
        return meant(allocs, ordered, why=why), state

    def _limits(self, view: Snapshot) -> UserLimits | None:
        if self.minimum_user_limit_percent >= ALL and self.user_limit_factor <= 0.0:
            return None
        return UserLimits(view, self.minimum_user_limit_percent, self.user_limit_factor)

    def _given_back(self, snapshot: Snapshot) -> frozenset[int]:
        """Return running gangs to preempt from queues above their ideal share, if others wait."""
        jobs = [job for job in present(snapshot) if not borrows(job)]
        tenants = {tenant.id for tenant in snapshot.tenants}
        by_queue: dict[int, list[PolicyJob]] = {}
        for job in jobs:
            by_queue.setdefault(account_of(job, tenants), []).append(job)
        ideal = ideal_shares(snapshot, {q: sum(j.gang for j in js) for q, js in by_queue.items()})
        used = {
            queue: sum(j.gang for j in members if j.phase is JobPhase.RUNNING)
            for queue, members in by_queue.items()
        }
        wanted = sum(max(0.0, ideal[queue] - used[queue]) for queue in by_queue)
        free = snapshot.pool.devices - sum(used.values())
        budget = min(wanted - free, self.most_preempted * snapshot.pool.devices)
        back: set[int] = set()
        victims = sorted(
            (job for job in jobs if job.phase is JobPhase.RUNNING and not is_pinned(job)),
            key=lambda job: (job.priority, -job.since, -job.id),
        )
        for job in victims:
            queue = account_of(job, tenants)
            # A gang is taken only if its queue stays at its share without it.
            above = used[queue] > ideal[queue] * (1 + self.dead_zone)
            if above and used[queue] - job.gang >= ideal[queue] - 1e-9 and job.gang <= budget:
                back.add(job.id)
                used[queue] -= job.gang
                budget -= job.gang
        return frozenset(back)


def ideal_shares(snapshot: Snapshot, demand: Mapping[int, int]) -> dict[int, float]:
    """Return the ideal devices of each queue: its guarantee first, then the rest by guarantees.

    Water filling over the leaves: no queue gets more than its demand, and the others share the
    unused rest in proportion.
    """
    guarantees = {tenant.id: _guarantee(tenant) for tenant in snapshot.tenants}
    weights = {queue: max(1e-9, guarantees.get(queue, 1.0)) for queue in demand}
    share = dict.fromkeys(sorted(demand), 0.0)
    left = float(snapshot.pool.devices)
    hungry = {queue for queue, wants in demand.items() if wants > 0}
    while hungry and left > 1e-9:
        unit = left / sum(weights[queue] for queue in hungry)
        filled = {q for q in hungry if demand[q] - share[q] <= unit * weights[q] + 1e-9}
        for queue in filled or hungry:
            more = demand[queue] - share[queue] if filled else unit * weights[queue]
            share[queue] += more
            left -= more
        if not filled:
            break
        hungry -= filled
    return share


def _guarantee(tenant: Tenant) -> float:
    return tenant.weight if tenant.guarantee is None else tenant.guarantee


def _without(snapshot: Snapshot, back: frozenset[int]) -> Snapshot:
    """Copy the view without the gangs that return devices; these count as free."""
    if not back:
        return snapshot
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.id not in back))


@dataclass(frozen=True, slots=True, kw_only=True)
class Philly:
    """Queue quotas as in ``capacity``; a job accepts less locality the longer it waits.

    Attributes:
        relax_seconds: wait of a gang for one domain before it requests a wider one.
        full: fraction of devices in use above which queues above their share return devices.
    """

    relax_seconds: float = parameter(
        180.0, sentence("param-locality-wait"), low=0.0, high=86_400.0
    )
    full: float = parameter(0.9, sentence("param-preempt-from"), low=0.0, high=1.0)

    name: ClassVar[str] = "philly"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "queue quotas; locality is relaxed while a gang waits"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CELLS})
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Plan the queues, with the current locality request for each start."""
        running = [job for job in snapshot.jobs if job.phase is JobPhase.RUNNING]
        used = sum(job.gang for job in running)
        queues = Capacity(preempt=used >= self.full * snapshot.pool.devices)
        plan, _ = queues.plan(snapshot, {})
        jobs = {job.id: job for job in snapshot.jobs}
        allocs = {
            job_id: alloc
            if jobs[job_id].phase is JobPhase.RUNNING
            else self._localised(jobs[job_id], alloc, snapshot)
            for job_id, alloc in plan.allocs.items()
        }
        return replace(plan, allocs=allocs), state

    def _localised(self, job: PolicyJob, alloc: Alloc, snapshot: Snapshot) -> Alloc:
        parts = tuple(
            replace(part, level=self._level(job, member.within, part.type, part.n, snapshot))
            for part, member in zip(alloc.parts, job.demand.members, strict=True)
        )
        return replace(alloc, parts=parts)

    def _level(
        self, job: PolicyJob, asked: Within, kind: str | None, n: int, snapshot: Snapshot
    ) -> str:
        """Return the tightest domain with ``n`` free devices, or the widest that the wait permits.

        The job's own ``within`` is never relaxed.
        """
        info = snapshot.pool.types.get(kind or "")
        in_node = info is None or n <= info.node_devices
        ladder = [Within.NODE, Within.RACK] if in_node else [Within.RACK]
        waited = snapshot.now - (job.facts.last_queued or job.since)
        step = int(waited / self.relax_seconds) if self.relax_seconds > 0 else len(ladder)
        wanted = ladder[step] if step < len(ladder) else asked
        # "rack" concerns all instances together, so it also applies to instances within nodes.
        return min(wanted, asked, key=_TIGHTNESS.__getitem__).value
