"""Jobs without devices in a round: placement in the CPU pools of nodes, and who leaves for whom.

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
    gibibytes,
    in_use,
    sizes_of,
    total_of,
)
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import PreemptionRule
from scheduling.core.messages import message, sentence
from scheduling.core.reasons import Reason
from scheduling.core.round.claims import order_out, waits_for
from scheduling.core.round.fairness import in_turn, tenant_weights
from scheduling.core.round.gang_requests import by_demand, number_of
from scheduling.core.round.gates import closed_gate
from scheduling.core.round.state import RoundState
from scheduling.core.values import (
    HeldCpuJob,
    PlacedMember,
    Preemption,
    QueuedJob,
    RoundResult,
    Start,
)
from tessera.reasons import ReasonCode

MOST_STARTS: Final = 256
"""Most jobs without devices that one round starts; the next round continues."""
MOST_VICTIMS: Final = 64
"""Most running jobs whose preemption is tried for one job."""
MOST_SEARCHES: Final = 32
"""Most jobs of a round for which preemptions are sought."""
AGED_SECONDS: Final = 1800.0
"""Age from which the oldest job of a class is tried first, and its class waits for it."""
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
    """Return what the instances of a starting job lease."""
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
        self._users: dict[str, set[int]] = defaultdict(set)
        self._held: dict[int, Amount] = defaultdict(lambda: NOTHING)
        for held in snapshot.cpu_holding:
            for node, amount in in_use(held.leases).items():
                self._users[node].add(held.job.tenant)
                self._held[held.job.tenant] = self._held[held.job.tenant].plus(amount)
        self.starts: list[Start] = []
        self.preemptions: dict[int, Preemption] = {}
        self.reasons: dict[int, Reason] = {}
        self._failed: dict[Hashable, Reason] = {}
        self._searches = MOST_SEARCHES
        self._head: QueuedJob | None = None
        self._free: dict[str, Amount] = {}
        self._later: dict[str, Amount] = {}

    def run(self) -> None:
        """Preempt what exceeds the pools, and place the waiting jobs."""
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
        oldest = self._oldest(jobs)
        if oldest is not None and self._head is None:
            self._offer(oldest)
            reason = self.reasons.get(oldest.id)
            if reason is not None and reason.code in (_LEAVE, ReasonCode.WAITING_FOR_CPUS):
                self._head = oldest
            jobs = [job for job in jobs if job.id != oldest.id]
        lines: dict[int, list[QueuedJob]] = defaultdict(list)
        for job in jobs:
            lines[job.tenant].append(job)
        held = {tenant: self._share(tenant) for tenant in lines}
        in_turn(lines, held, weights, self._offer)

    def _oldest(self, jobs: Iterable[QueuedJob]) -> QueuedJob | None:
        """Return the oldest job that has waited for long, and that fits in empty pools."""
        aged = [job for job in jobs if self._deciding.snapshot.now - job.submitted >= AGED_SECONDS]
        for job in sorted(aged, key=lambda job: (job.submitted, job.id)):
            nodes = self._nodes(job)
            if not isinstance(nodes, Reason) and self._fits(job, self._sizes, nodes):
                return job
        return None

    def _share(self, tenant: int) -> int:
        """Return the dominant share of a tenant, as an integer."""
        return round(self._held[tenant].part_of(self._whole) * _PARTS)

    def _offer(self, job: QueuedJob) -> int:
        """Start a job if it fits; return the growth of its tenant's dominant share."""
        key = job.vc, job.job_class, number_of(job.demand), job.excluded_nodes
        reason = self._deciding.ports.refusal(job.demand) or self._failed.get(key)
        if reason is None:
            reason = self._blocked() or self._try(job)
            if reason is not None and reason.code is not _LEAVE:
                self._failed[key] = reason
        if reason is not None:
            self.reasons[job.id] = reason
            return 0
        before = self._share(job.tenant)
        self._held[job.tenant] = self._held[job.tenant].plus(total_of(amounts_of(job.demand)))
        return self._share(job.tenant) - before

    def _blocked(self) -> Reason | None:
        """Return the reason of a job behind the oldest one, or after the most starts."""
        if self._head is not None:
            return Reason(
                code=ReasonCode.BEHIND_HIGHER_PRIORITY,
                message=message("behind-oldest-cpu-job", minutes=round(AGED_SECONDS / 60)),
                blocked_by=(self._head.id,),
            )
        if len(self.starts) >= MOST_STARTS:
            return Reason(
                code=ReasonCode.BEHIND_HIGHER_PRIORITY,
                message=message("after-many-cpu-starts", n=MOST_STARTS),
            )
        return None

    def _try(self, job: QueuedJob) -> Reason | None:
        """Start a job, preempt others for it, or return the reason why it waits."""
        nodes = self._nodes(job)
        if isinstance(nodes, Reason):
            return nodes
        now = {name: free.least(self._later[name]) for name, free in self._free.items()}
        placed = fitted(amounts_of(job.demand), now, self._sizes, nodes)
        if placed is not None:
            self._start(job, placed)
            return None
        ever = self._names(job) | {name for name in self._sizes if not self._is_open(name)}
        if not self._fits(job, self._sizes, ever):
            return self._never(job, ever)
        if job.job_class is not _OPPORTUNISTIC:
            victims = self._victims(job, nodes)
            if victims is not None:
                return self._preempt(job, victims, nodes)
        return self._waits(job, now, nodes)

    def _fits(self, job: QueuedJob, free: Mapping[str, Amount], nodes: Collection[str]) -> bool:
        return fitted(amounts_of(job.demand), free, self._sizes, nodes) is not None

    def _names(self, job: QueuedJob) -> frozenset[str]:
        """Return the nodes with a pool that the rules for nodes allow to a job."""
        allowed = self._deciding.restrictions.of(job).nodes
        return frozenset(self._sizes) if allowed is None else allowed & self._sizes.keys()

    def _nodes(self, job: QueuedJob) -> frozenset[str] | Reason:
        """Return the nodes that a job may use now, or the reason why it may use none."""
        deciding = self._deciding
        restriction = deciding.restrictions.of(job)
        if restriction.reason is not None:
            return restriction.reason
        barred = deciding.tenancies.barred.get(deciding.vcs[job.vc].name, frozenset())
        usable = self._names(job) - barred
        found = frozenset(name for name in usable if self._admits(name, job))
        if usable and not found:
            open_ones = [name for name in usable if self._is_open(name)]
            if open_ones:
                return deciding.tenancies.not_isolated(job)
        return found

    def _is_open(self, name: str) -> bool:
        node = self._deciding.tenancies.nodes.get(name)
        return node is not None and node.placeable and node.healthy

    def _admits(self, name: str, job: QueuedJob) -> bool:
        """Return whether a node accepts a job now.

        A node without isolation belongs to one tenant. A job without devices takes such a node
        only if no job with devices could need it: it has none, or there is no other tenant.
        """
        tenancies = self._deciding.tenancies
        if not self._is_open(name) or tenancies.clearing.get(name, job.tenant) != job.tenant:
            return False
        if name not in tenancies.owners:
            return True
        owner = tenancies.owners[name]
        if owner is not None:
            return owner == job.tenant
        has_devices = bool(self._deciding.engine.topology.nodes.get(name))
        is_only_tenant = {vc.tenant for vc in self._deciding.snapshot.vcs} == {job.tenant}
        return (is_only_tenant or not has_devices) and self._users[name] <= {job.tenant}

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
            self._users[node].add(job.tenant)
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
        """Return what some jobs leave of each pool."""
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
        """Return what is free once these jobs have left, too."""
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
        largest = max(amounts_of(job.demand))
        if not nodes:
            return Reason(
                code=ReasonCode.CELLS_UNHEALTHY,
                message=message("no-usable-cpu-pool"),
                unblock=(message("ask-to-return-nodes"),),
            )
        most = max((free[name] for name in nodes), default=NOTHING)
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
        return Reason(
            code=ReasonCode.WAITING_FOR_CPUS,
            message=message(
                "waiting-for-cpus",
                n=len(amounts_of(job.demand)),
                cpus=largest.cpus,
                memory=gibibytes(largest.memory),
                free=max(most.cpus, 0.0),
                left=gibibytes(max(most.memory, 0)),
            ),
            blocked_by=tuple(sorted(users)[:MOST_VICTIMS]),
            unblock=(message("request-fewer-cpus"), message("ask-for-cpus")),
        )

    def _never(self, job: QueuedJob, nodes: Collection[str]) -> Reason:
        """Return the reason of a job that does not fit in empty pools."""
        largest = max(amounts_of(job.demand))
        most = max((self._sizes[name] for name in nodes), default=NOTHING)
        numbers = {
            "n": len(amounts_of(job.demand)),
            "cpus": largest.cpus,
            "memory": gibibytes(largest.memory),
            "most": most.cpus,
            "there": gibibytes(most.memory),
        }
        return Reason(
            code=ReasonCode.NO_NODE_WITH_CPUS,
            message=message("no-node-with-cpus", **numbers)
            if most != NOTHING
            else message("no-cpu-pool"),
            unblock=(message("request-fewer-cpus"), message("ask-for-cpus")),
        )


def _first_to_leave(held: HeldCpuJob) -> tuple[bool, int, float, int]:
    job = held.job
    return (job.job_class is not _OPPORTUNISTIC, job.priority, -job.since, -job.id)
