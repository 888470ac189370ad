"""Jobs without devices in a round: placement in the CPU pools of nodes, and preemptions.

They are decided after all other jobs. This pass reads the cell engine and changes nothing in it,
and pools contain no CPU of a device. So every decision about jobs with devices is the same with
and without these jobs.

Tenants take turns by dominant resource fairness (Ghodsi et al., NSDI '11, section 4.1): the tenant
whose larger part of all pooled CPUs or memory is smallest, per weight, is offered the next place.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from scheduling.core.cpu_pools import (
    NOTHING,
    Amount,
    PoolLease,
    fitted,
    in_use,
    sizes_of,
    total_of,
)
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import PreemptionRule
from scheduling.core.messages import message, sentence
from scheduling.core.policies.combinators.waiting import reservation_turn
from scheduling.core.reasons import Reason
from scheduling.core.round.claims import order_out, waits_for
from scheduling.core.round.cpu_nodes import PoolNodes
from scheduling.core.round.cpu_reasons import (
    after_many,
    behind_oldest,
    never_fits,
    no_usable_pool,
    waits_for_cpus,
)
from scheduling.core.round.fairness import in_turn, tenant_weights
from scheduling.core.round.gang_requests import by_demand, number_of
from scheduling.core.round.gates import closed_gate
from scheduling.core.round.state import RoundState
from scheduling.core.round_result import PlacedMember, Preemption, RoundResult, Start
from scheduling.core.values import HeldCpuJob, QueuedJob
from tessera.reasons import ReasonCode

MOST_STARTS: Final = 256
"""Most jobs without devices that one round starts; the next round continues."""
MOST_VICTIMS: Final = 64
"""Most running jobs whose preemption is tried for one job."""
MOST_SEARCHES: Final = 32
"""Most jobs of a round for which preemptions are sought."""
MOST_TRIALS: Final = 256
"""Most waiting jobs with different requests that one round tries in vain for one tenant."""
AGED_SECONDS: Final = 1800.0
"""Age from which the oldest job of a tenant may reserve nodes."""
MOST_AGED: Final = 8
"""Most old jobs of a tenant that are checked whether they fit in empty pools."""
RESERVED_SECONDS: Final = 3600.0
"""Most seconds of one reservation; the pauses between them become longer."""
POOL_SHRANK: Final = sentence("cpu-pool-shrank")
_PARTS: Final = 1_000_000_000
_OPPORTUNISTIC: Final = JobClass.OPPORTUNISTIC
_LEAVE: Final = ReasonCode.WAITING_VICTIM_CHECKPOINT


def with_cpu_jobs(deciding: RoundState, result: RoundResult) -> RoundResult:
    """Add the decisions about jobs without devices to the result of a round.

    Args:
        deciding: the round after all other decisions.
        result: these decisions.

    Returns:
        The same object if no live job is without devices.
    """
    snapshot = deciding.snapshot
    if not snapshot.cpu_queued and not snapshot.cpu_holding:
        return result
    placing = _CpuPlacing(deciding)
    placing.run()
    return replace(
        result,
        reasons={**result.reasons, **placing.reasons},
        cpu_starts=tuple(placing.starts),
        cpu_preemptions=tuple(placing.preemptions[job] for job in sorted(placing.preemptions)),
    )


@by_demand
def amounts_of(demand: Demand) -> tuple[Amount, ...]:
    """Return the amount of each instance of a job without devices, in rank order."""
    return tuple(
        Amount.wanted(role.cpus, role.memory)
        for role in demand.companions
        for _ in range(role.count)
    )


def leases_of(start: Start, demand: Demand) -> tuple[PoolLease, ...]:
    """Return the CPUs and memory that the instances of a starting job lease."""
    roles = {role.role: role for role in demand.companions}
    return tuple(
        PoolLease(
            node=member.node,
            cpus=roles[member.role].cpus or 0.0,
            memory=roles[member.role].memory or 0,
        )
        for member in start.members
    )


class _CpuPlacing:
    """Placement of the waiting jobs without devices.

    ``_free`` is free now, and ``_later`` once all leaving jobs have left. A job that waits for
    others to leave takes its part of ``_later``, which no other job of the round may use.
    """

    def __init__(self, deciding: RoundState) -> None:
        self._deciding = deciding
        snapshot = deciding.snapshot
        self._sizes = sizes_of(snapshot.cpu_pools)
        self._whole = total_of(self._sizes.values())
        self._holding = {held.job.id: held for held in snapshot.cpu_holding}
        self._leaving = {held.job.id for held in snapshot.cpu_holding if held.job.leaving}
        self._nodes = PoolNodes(deciding, self._sizes)
        self._held: dict[int, Amount] = defaultdict(lambda: NOTHING)
        for held in snapshot.cpu_holding:
            for amount in in_use(held.leases).values():
                self._held[held.job.tenant] = self._held[held.job.tenant].plus(amount)
        self.starts: list[Start] = []
        self.preemptions: dict[int, Preemption] = {}
        self.reasons: dict[int, Reason] = {}
        self._failed: dict[Hashable, Reason] = {}
        self._searches = MOST_SEARCHES
        self._trials: dict[int, int] = defaultdict(int)
        self._head: QueuedJob | None = None
        self._reserved: frozenset[str] = frozenset()
        self._free: dict[str, Amount] = {}
        self._later: dict[str, Amount] = {}

    def run(self) -> None:
        """Preempt the jobs that exceed the pools, and place the waiting jobs."""
        self._give_back_excess()
        self._free = self._left(self._holding.values())
        self._later = self._left(
            held for job, held in self._holding.items() if job not in self._leaving
        )
        deciding = self._deciding
        waiting = []
        for job in deciding.snapshot.cpu_queued:
            reason = closed_gate(job, deciding.snapshot.now)
            if reason is None:
                waiting.append(job)
            else:
                self.reasons[job.id] = reason
        weights = tenant_weights(deciding.engine, deciding.snapshot.vcs)
        for borrows in (False, True):
            jobs = [job for job in waiting if (job.job_class is _OPPORTUNISTIC) == borrows]
            self._place(jobs, weights)

    def _place(self, jobs: Sequence[QueuedJob], weights: Mapping[int, int]) -> None:
        """Offer the pools to the jobs of one class."""
        jobs = sorted(jobs, key=lambda job: (-job.priority, job.submitted, job.id))
        oldest = self._oldest(jobs) if self._head is None else None
        if oldest is not None:
            self._offer(oldest)
            reason = self.reasons.get(oldest.id)
            if reason is not None and reason.code is ReasonCode.WAITING_FOR_CPUS:
                self._reserve(oldest)
            jobs = [job for job in jobs if job.id != oldest.id]
        lines: dict[int, list[QueuedJob]] = defaultdict(list)
        for job in jobs:
            lines[job.tenant].append(job)
        held = {tenant: self._share(tenant) for tenant in lines}
        in_turn(lines, held, weights, self._offer)

    def _oldest(self, jobs: Iterable[QueuedJob]) -> QueuedJob | None:
        """Return the oldest job that may reserve nodes, and that fits in empty pools.

        Only the oldest such job of each tenant may. Its turns last for an hour, with pauses of 1,
        3, 7 hours, since jobs that never end may be in its way.
        """
        now, passed = self._deciding.snapshot.now, set()
        tried: dict[int, int] = defaultdict(int)
        for job in sorted(jobs, key=lambda job: (job.submitted, job.id)):
            if job.tenant in passed or tried[job.tenant] >= MOST_AGED:
                continue
            if now - job.submitted < AGED_SECONDS:
                break
            tried[job.tenant] += 1
            nodes = self._nodes.usable(job)
            if isinstance(nodes, Reason) or not self._fits(job, self._sizes, nodes):
                continue
            waited = now - job.submitted - AGED_SECONDS
            if reservation_turn(waited, RESERVED_SECONDS) is not None:
                return job
            passed.add(job.tenant)
        return None

    def _reserve(self, job: QueuedJob) -> None:
        """Reserve the fewest nodes that a job needs, those of which the most is free first."""
        nodes = self._nodes.usable(job)
        if isinstance(nodes, Reason):
            return
        parts = {name: self._later[name].parts_of(self._sizes[name]) for name in nodes}
        order = sorted(nodes, key=lambda name: (-parts[name], name))
        low, high = 1, len(order)
        while low < high:
            middle = (low + high) // 2
            if self._fits(job, self._sizes, order[:middle]):
                high = middle
            else:
                low = middle + 1
        placed = fitted(amounts_of(job.demand), self._sizes, self._sizes, order[:high]) or ()
        self._head, self._reserved = job, frozenset(placed)

    def _share(self, tenant: int) -> int:
        """Return the dominant share of a tenant, as an integer."""
        return round(self._held[tenant].part_of(self._whole) * _PARTS)

    def _offer(self, job: QueuedJob) -> int:
        """Start a job if it fits; return the growth of its tenant's dominant share."""
        key = job.vc, job.job_class, number_of(job.demand), job.excluded_nodes
        reason = self._deciding.ports.refusal(job.demand) or self._failed.get(key)
        if reason is None:
            reason = self._blocked(job) or self._try(job)
            if reason is not None and reason.code is not _LEAVE:
                self._failed[key] = reason
                self._trials[job.tenant] += 1
        if reason is not None:
            self.reasons[job.id] = reason
            return 0
        before = self._share(job.tenant)
        self._held[job.tenant] = self._held[job.tenant].plus(total_of(amounts_of(job.demand)))
        return self._share(job.tenant) - before

    def _blocked(self, job: QueuedJob) -> Reason | None:
        """Return the reason of a job after the most starts or trials of a round."""
        if len(self.starts) >= MOST_STARTS:
            return after_many(message("after-many-cpu-starts", n=MOST_STARTS))
        if self._trials[job.tenant] >= MOST_TRIALS:
            return after_many(message("after-many-cpu-trials", n=MOST_TRIALS))
        return None

    def _try(self, job: QueuedJob) -> Reason | None:
        """Start a job, preempt others for it, or return the reason why it waits."""
        nodes = self._nodes.usable(job)
        if isinstance(nodes, Reason):
            return nodes
        unreserved = nodes - self._reserved
        now = {name: free.least(self._later[name]) for name, free in self._free.items()}
        placed = fitted(amounts_of(job.demand), now, self._sizes, unreserved)
        if placed is not None:
            self._start(job, placed)
            return None
        ever = self._nodes.allowed(job) | {
            name for name in self._sizes if not self._nodes.is_open(name)
        }
        if not self._fits(job, self._sizes, ever):
            return self._never(job, ever)
        if job.job_class is not _OPPORTUNISTIC:
            victims = self._victims(job, unreserved)
            if victims is not None:
                return self._preempt(job, victims, unreserved)
        if self._head is not None and self._fits(job, now, nodes):
            return behind_oldest(self._head, AGED_SECONDS)
        return self._waits(job, now, nodes)

    def _fits(self, job: QueuedJob, free: Mapping[str, Amount], nodes: Collection[str]) -> bool:
        return fitted(amounts_of(job.demand), free, self._sizes, nodes) is not None

    def _start(self, job: QueuedJob, placed: Sequence[str]) -> None:
        members, number = [], 0
        for role in job.demand.companions:
            for rank in range(role.count):
                node = placed[number]
                members.append(
                    PlacedMember(
                        role=role.role,
                        rank=rank,
                        node_rank=number,
                        node=node,
                        device_indices=(),
                        leaves=(),
                        isolation=self._deciding.tenancies.level(job, role.role, node),
                    )
                )
                number += 1
        for node, amount in zip(placed, amounts_of(job.demand), strict=True):
            self._free[node] = self._free[node].minus(amount)
            self._later[node] = self._later[node].minus(amount)
            self._nodes.users[node].add(job.tenant)
        self.starts.append(
            Start(
                job_id=job.id,
                opportunistic=job.job_class is _OPPORTUNISTIC,
                members=tuple(members),
            )
        )
        self._deciding.tenancies.started(job, members)
        self._deciding.ports.take(job.demand)

    def _left(self, holding: Iterable[HeldCpuJob]) -> dict[str, Amount]:
        """Return the rest of each pool after some jobs."""
        used = in_use(lease for held in holding for lease in held.leases)
        return {
            name: size.minus(used.get(name, NOTHING)).least(size)
            for name, size in self._sizes.items()
        }

    def _give_back_excess(self) -> None:
        """Preempt jobs until the others fit in the pools, which may have become smaller.

        Opportunistic jobs leave first, then those of low priority, then the newest.
        """
        staying = [held for held in self._holding.values() if not held.job.leaving]
        used = in_use(lease for held in staying for lease in held.leases)
        over = {name for name, n in used.items() if not n.within(self._sizes.get(name, NOTHING))}
        for held in sorted(staying, key=_first_to_leave):
            mine = in_use(held.leases)
            if not over & mine.keys():
                continue
            self._leaving.add(held.job.id)
            self.preemptions[held.job.id] = Preemption(
                job_id=held.job.id,
                for_job=0,
                rule=POOL_SHRANK,
                cause=PreemptionRule.POLICY.value,
            )
            for name, amount in mine.items():
                used[name] = used[name].minus(amount)
                if used[name].within(self._sizes.get(name, NOTHING)):
                    over.discard(name)

    def _victims(self, job: QueuedJob, nodes: Collection[str]) -> list[HeldCpuJob] | None:
        """Return opportunistic jobs whose leaving makes room; None if it does not suffice.

        The result is empty if jobs that leave already make room.
        """
        if self._fits(job, self._later, nodes):
            return []
        if self._searches == 0:
            return None
        self._searches -= 1
        candidates = [
            held
            for held in sorted(self._holding.values(), key=_first_to_leave)
            if held.job.job_class is _OPPORTUNISTIC
            and held.job.id not in self._leaving
            and any(lease.node in nodes for lease in held.leases)
        ]
        chosen: list[HeldCpuJob] = []
        for held in candidates[:MOST_VICTIMS]:
            chosen.append(held)
            if self._fits(job, self._without(chosen), nodes):
                break
        else:
            return None
        for held in chosen[:-1]:
            fewer = [one for one in chosen if one is not held]
            if self._fits(job, self._without(fewer), nodes):
                chosen = fewer
        return chosen

    def _without(self, victims: Iterable[HeldCpuJob]) -> dict[str, Amount]:
        """Return the free amounts after these jobs have left as well."""
        freed = in_use(lease for held in victims for lease in held.leases)
        return {name: free.plus(freed.get(name, NOTHING)) for name, free in self._later.items()}

    def _preempt(
        self, job: QueuedJob, victims: Sequence[HeldCpuJob], nodes: Collection[str]
    ) -> Reason:
        """Order jobs to leave for another one, and reserve its place."""
        self._later = self._without(victims)
        for held in victims:
            self._leaving.add(held.job.id)
            self.preemptions[held.job.id] = order_out(held.job, job)
        placed = fitted(amounts_of(job.demand), self._later, self._sizes, nodes) or ()
        for node, amount in zip(placed, amounts_of(job.demand), strict=True):
            self._later[node] = self._later[node].minus(amount)
        there = {
            held.job.id
            for held in self._holding.values()
            if held.job.id in self._leaving and any(one.node in placed for one in held.leases)
        }
        return waits_for(sorted(there))

    def _waits(self, job: QueuedJob, free: Mapping[str, Amount], nodes: Collection[str]) -> Reason:
        """Return the reason of a job that fits only in pools that others use."""
        if not nodes:
            return no_usable_pool()
        users = {
            held.job.id
            for held in self._holding.values()
            if any(lease.node in nodes for lease in held.leases)
        }
        users |= {
            start.job_id
            for start in self.starts
            if any(member.node in nodes for member in start.members)
        }
        best = max((free[name] for name in nodes), default=NOTHING)
        return waits_for_cpus(amounts_of(job.demand), best, sorted(users)[:MOST_VICTIMS])

    def _never(self, job: QueuedJob, nodes: Collection[str]) -> Reason:
        """Return the reason of a job that does not fit in empty pools."""
        largest = max((self._sizes[name] for name in nodes), default=NOTHING)
        return never_fits(amounts_of(job.demand), largest)


def _first_to_leave(held: HeldCpuJob) -> tuple[bool, int, float, int]:
    job = held.job
    return (job.job_class is not _OPPORTUNISTIC, job.priority, -job.since, -job.id)
