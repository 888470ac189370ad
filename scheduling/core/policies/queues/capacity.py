"""Queues with guarantees and ceilings: the capacity scheduler of Hadoop YARN.

Vavilapalli et al., SoCC '13 (YARN); the substrate of Philly (Jeon et al., ATC '19, section 2.3).
Tenants are queues in a tree. The child that uses the smallest part of its guarantee is offered
devices first; the unused part of a queue is lent to the others, up to their limits. With
preemption, queues above their ideal share return whole gangs, the youngest first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.filling import account_of, fill, tree
from scheduling.core.policies.engines.room import borrows, is_pinned, present
from scheduling.core.policies.engines.sorting import meant
from scheduling.core.policies.parameters import parameter
from scheduling.core.policies.queues.shares import in_turn
from scheduling.core.policies.queues.users import ALL, UserLimits
from scheduling.core.policy_interface import JobPhase, Plan, PolicyJob, Snapshot, Tenant

_WAITS: Final = sentence(message("other-queues-first"))
_USER: Final = sentence(message("user-limit-of-queue"))
_GIVES_BACK: Final = sentence(message("queue-gives-back"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The queue with the smallest part of its guarantee in use is served next.

    Attributes:
        strict: a queue's head that does not fit blocks its own queue.
        preempt: queues above their ideal share return devices that others wait for.
        dead_zone: tolerance above the ideal share, as a part of it.
        most_preempted: maximum part of all devices that is taken back in one round.
        minimum_user_limit_percent: users share their queue equally, but no limit is below this
            part of it. YARN's default, 100, lets one user have all of it.
        user_limit_factor: maximum of one user, in its queue's guarantees; 0: no bound (YARN's
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
    summary: ClassVar[str] = "queues with guarantees and ceilings; idle guarantees are lent"
    needs: ClassVar[frozenset[Need]] = frozenset()
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Take back, then serve."""
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
        """Running gangs of queues above their ideal share, as far as others wait for devices."""
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

    Water filling over the leaves: no queue gets more than it asks for, and the unused rest goes to
    the others in proportion.
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
    """The view without the gangs that return devices; these count as free."""
    if not back:
        return snapshot
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.id not in back))
