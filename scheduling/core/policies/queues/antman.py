"""AntMan: guaranteed jobs within quotas, then opportunistic jobs on the rest (OSDI '20).

Each tenant has a queue. Guaranteed jobs start in the order of their queue, while their quota has
devices. Opportunistic jobs never count against a quota. They take idle devices, and as guests the
measured headroom of devices in use; rounds choose the device (``core.round.guests``).
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need, rigid_alloc
from scheduling.core.policies.engines.filling import FairAccount, account_of, fill, tree
from scheduling.core.policies.engines.room import borrows, present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import JobPhase, Plan, PolicyJob, Snapshot, Tenant

_WAITS: Final = sentence(message("share-is-used"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AntMan:
    """Starts guaranteed jobs within their quota, then opportunistic jobs on the remaining devices.

    Attributes:
        strict: whether a guaranteed job that does not fit blocks later jobs of its queue.
    """

    strict: bool = parameter(False, sentence("param-strict-order"))

    name: ClassVar[str] = "antman"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "guaranteed jobs within quotas; opportunistic jobs use what is left"
    needs: ClassVar[frozenset[Need]] = frozenset()
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Retain running jobs, and offer devices to the others, the smallest share first.

        The plan also offers devices to opportunistic jobs that do not fit, so that a round tries
        them as guests in this order.
        """
        jobs = present(snapshot)
        guaranteed = replace(snapshot, jobs=tuple(job for job in jobs if not borrows(job)))
        root, accounts = tree(guaranteed, weigh=_quota)
        given = fill(
            guaranteed,
            root=root,
            accounts=accounts,
            share=_share,
            order=_place,
            keep=True,
            strict=self.strict,
        )
        waiting = {job.id: job for job in jobs if job.phase is JobPhase.QUEUED}
        starts = [job_id for job_id in given if job_id in waiting]
        offers = _fair_order(snapshot, (job for job in jobs if borrows(job)))
        running = {job.id: job.alloc or rigid_alloc(job) for job in jobs if job.id not in waiting}
        allocs = {
            **running,
            **{job_id: given[job_id] for job_id in starts},
            **{job.id: job.asked or rigid_alloc(job) for job in offers},
        }
        plan = Plan(
            allocs=allocs,
            order=(*starts, *(job.id for job in offers)),
            offer=True,
            why=dict.fromkeys(sorted(waiting.keys() - allocs.keys()), _WAITS),
        )
        return plan, state


def _place(job: PolicyJob) -> tuple[Any, ...]:
    return (-job.priority, job.submitted)


def _quota(tenant: Tenant) -> float:
    return tenant.weight if tenant.guarantee is None else tenant.guarantee


def _share(account: FairAccount) -> float:
    return account.devices / account.weight


def _fair_order(snapshot: Snapshot, jobs: Iterable[PolicyJob]) -> list[PolicyJob]:
    """Order waiting opportunistic jobs by turns of their queues, the smallest share first.

    The share of a queue is the number of devices of its opportunistic jobs over its quota.
    """
    tenants = {tenant.id for tenant in snapshot.tenants}
    _, accounts = tree(snapshot, weigh=_quota)
    for job in sorted(jobs, key=lambda job: (*_place(job), job.id)):
        account = accounts[account_of(job, tenants)]
        if job.phase is JobPhase.QUEUED:
            account.waiting.append(job)
        else:
            account.held[""] = account.held.get("", 0) + (job.alloc or rigid_alloc(job)).devices
    heap = [(_share(one), one.id, one) for one in accounts.values() if one.waiting]
    heapq.heapify(heap)
    found = []
    while heap:
        _, number, account = heap[0]
        job = account.waiting.popleft()
        found.append(job)
        account.held[""] = account.held.get("", 0) + job.gang
        if account.waiting:
            heapq.heapreplace(heap, (_share(account), number, account))
        else:
            heapq.heappop(heap)
    return found
