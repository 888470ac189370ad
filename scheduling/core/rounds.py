"""One round as a pure function: snapshot in, starts, preemptions and reasons out.

The policy of each virtual cluster says who should run and in which order; the cell engine says
where. Guaranteed jobs come first, since opportunistic ones may only have what they leave; the
opportunistic ones take turns by tenant, weighted max-min fair. Both drivers, the
production rounds and the simulator, call ``decide``.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from scheduling.core.caps import DeviceUse
from scheduling.core.cells import (
    Bind,
    Phase,
    Placed,
    Preempt,
    Remedies,
    RequestError,
    Wait,
)
from scheduling.core.engines import engine_for, guaranteed_devices, rebindings
from scheduling.core.fairness import in_turn, tenant_weights
from scheduling.core.gates import closed_gate
from scheduling.core.jobspec import JobClass
from scheduling.core.planning import JobPhase, Plan, PolicyJob, Pool, Snapshot
from scheduling.core.policies import UnknownPolicyError, make_policy
from scheduling.core.policies.fifo import Fifo
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.core.requests import (
    Restriction,
    job_of_group,
    parts_of,
    requests_of,
    restriction_of,
)
from scheduling.core.values import (
    ClusterSnapshot,
    HeldLeaf,
    PlacedMember,
    Preemption,
    QueuedJob,
    RoundResult,
    Start,
    VcFacts,
)

INTER_VC_RULE: Final = "A guaranteed job takes back its virtual cluster's cells"
INTRA_VC_RULE: Final = "A job of higher priority in the same virtual cluster"
TRIALS: Final = 16  # refusals of a round for which the smallest change is sought


def decide(snapshot: ClusterSnapshot) -> RoundResult:
    """Decide one round.

    Args:
        snapshot: everything that the round may know.

    Returns:
        The desired changes; deterministic, and independent of the order of the snapshot's jobs.
    """
    deciding = _Deciding(snapshot)
    deciding.close_gates()
    guaranteed, opportunistic = deciding.orders()
    for job, strict in guaranteed:
        deciding.try_to_place(job, strict=strict)
    deciding.take_turns(opportunistic)
    return deciding.result()


class _Deciding:
    """The working state of one round; ``decide`` is its only user."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.engine = engine_for(snapshot)
        self.vcs = {vc.id: vc for vc in snapshot.vcs}
        self.leaving = {job.id for job in snapshot.holding if job.leaving}
        self.holding_vc = {job.id: job.vc for job in snapshot.holding}
        self.restrictions = _Restrictions(snapshot)
        self.use = DeviceUse()
        for job in snapshot.holding:
            self.use.add(
                vc=job.vc,
                tenant=job.tenant,
                owner=job.owner,
                devices=job.devices,
                opportunistic=job.job_class is JobClass.OPPORTUNISTIC,
            )
        self.waiting = {job.id: job for job in snapshot.queued}
        self.starts: list[Start] = []
        self.preemptions: dict[int, Preemption] = {}
        self.reasons: dict[int, Reason] = {}
        self.policy_states: dict[int, Mapping[str, Any]] = {}
        self.fallbacks: list[str] = []
        self.refusals: dict[Hashable, tuple[int, Reason]] = {}
        self.heads: dict[tuple[int, JobClass], int] = {}
        self.trials = TRIALS

    def close_gates(self) -> None:
        """Take out the jobs that may not start now whatever is free."""
        for job in self.snapshot.queued:
            reason = closed_gate(job, self.snapshot.now)
            if reason is not None:
                self.reasons[job.id] = reason
                del self.waiting[job.id]

    def orders(
        self,
    ) -> tuple[list[tuple[QueuedJob, bool]], list[tuple[QueuedJob, bool]]]:
        """What the policies want tried, in order: guaranteed jobs, then opportunistic ones.

        Guarantees of virtual clusters never meet, so their orders simply follow one another.
        """
        guaranteed: list[tuple[QueuedJob, bool]] = []
        opportunistic: list[tuple[QueuedJob, bool]] = []
        by_vc: dict[int, list[QueuedJob]] = defaultdict(list)
        for waiting in self.waiting.values():
            by_vc[waiting.vc].append(waiting)
        for vc in sorted(self.snapshot.vcs, key=lambda vc: vc.id):
            jobs = by_vc[vc.id]
            if not jobs:
                continue
            plan = self._plan(vc, jobs)
            for job_id in plan.order:
                job = self.waiting.get(job_id)
                if job is None or job_id not in plan.allocs:
                    continue
                is_borrowing = job.job_class is JobClass.OPPORTUNISTIC
                (opportunistic if is_borrowing else guaranteed).append((job, plan.strict))
            self._explain_unplanned(plan, jobs)
        return guaranteed, opportunistic

    def take_turns(self, jobs: Sequence[tuple[QueuedJob, bool]]) -> None:
        """Offer what is left to the tenants in turn: weighted max-min on the devices borrowed."""
        lines: dict[int, list[tuple[QueuedJob, bool]]] = defaultdict(list)
        for job, strict in jobs:
            lines[job.tenant].append((job, strict))
        held = self.use.borrowed_by_tenant

        def offer(entry: tuple[QueuedJob, bool]) -> int:
            job, strict = entry
            before = held[job.tenant]
            self.try_to_place(job, strict=strict)
            return held[job.tenant] - before

        in_turn(lines, held, tenant_weights(self.engine, self.snapshot.vcs), offer)

    def try_to_place(self, job: QueuedJob, *, strict: bool) -> None:
        """Start ``job``, order victims to leave for it, or write down why it waits."""
        reason = (
            self._held_back(job, strict=strict)
            or self.use.capped(job, self.vcs[job.vc])
            or self._refused_before(job)
            or self._place(job)
        )
        if reason is not None:
            self.reasons[job.id] = reason
            self.heads.setdefault((job.vc, job.job_class), job.id)

    def result(self) -> RoundResult:
        """All that was decided."""
        return RoundResult(
            starts=tuple(self.starts),
            preemptions=tuple(self.preemptions[job_id] for job_id in sorted(self.preemptions)),
            reasons=self.reasons,
            policy_states=self.policy_states,
            fallbacks=tuple(self.fallbacks),
            rebindings=tuple(
                rebinding
                for rebinding in rebindings(self.engine, self.snapshot.holding)
                if rebinding.job_id not in self.preemptions
            ),
        )

    def _plan(self, vc: VcFacts, jobs: Iterable[QueuedJob]) -> Plan:
        view = self._view(vc, jobs)
        try:
            policy = make_policy(vc.policy, vc.policy_args)
            plan, state = policy.plan(view, vc.policy_state)
        except UnknownPolicyError as error:
            self.fallbacks.append(f"{vc.name}: {error}; first in, first out instead")
            return Fifo().plan(view, {})[0]
        except Exception as error:  # one policy's bug must not stop everybody's round
            self.fallbacks.append(
                f"{vc.name}: policy {vc.policy} failed with {type(error).__name__}; "
                "first in, first out instead"
            )
            return Fifo().plan(view, {})[0]
        self.policy_states[vc.id] = state
        return plan

    def _view(self, vc: VcFacts, jobs: Iterable[QueuedJob]) -> Snapshot:
        queued = [
            PolicyJob(
                id=job.id,
                owner=job.owner,
                priority=job.priority,
                job_class=job.job_class,
                submitted=job.submitted,
                demand=job.demand,
                phase=JobPhase.QUEUED,
                since=job.submitted,
            )
            for job in jobs
        ]
        running = [
            PolicyJob(
                id=job.id,
                owner=job.owner,
                priority=job.priority,
                job_class=job.job_class,
                submitted=job.submitted,
                demand=job.demand,
                phase=JobPhase.LEAVING if job.leaving else JobPhase.RUNNING,
                since=job.since,
            )
            for job in self.snapshot.holding
            if job.vc == vc.id
        ]
        return Snapshot(
            now=self.snapshot.now,
            round_seconds=self.snapshot.round_seconds,
            round_number=self.snapshot.round_number,
            seed=self.snapshot.seed,
            pool=Pool(capacity=guaranteed_devices(self.engine, vc.name)),
            jobs=tuple(sorted([*queued, *running], key=lambda job: job.id)),
        )

    def _explain_unplanned(self, plan: Plan, jobs: Iterable[QueuedJob]) -> None:
        planned = set(plan.order)
        for job in jobs:
            if job.id not in planned or job.id not in plan.allocs:
                self.reasons[job.id] = Reason(
                    code=ReasonCode.HELD_BY_POLICY,
                    text=plan.why.get(job.id, "The policy gives it nothing in this round."),
                )

    def _held_back(self, job: QueuedJob, *, strict: bool) -> Reason | None:
        head = self.heads.get((job.vc, job.job_class))
        if not strict or head is None:
            return None
        return Reason(
            code=ReasonCode.BEHIND_HIGHER_PRIORITY,
            text=f"Job {head} stands before it in {self.vcs[job.vc].name} and does not fit yet.",
            blocked_by=(head,),
            unblock=("Raise its priority, or allow backfill in the virtual cluster's policy.",),
        )

    def _refused_before(self, job: QueuedJob) -> Reason | None:
        """The reason of a job that asked the same in vain, if nothing has changed since."""
        version, reason = self.refusals.get(_question(job), (-1, None))
        return reason if version == self.engine.version else None

    def _place(self, job: QueuedJob) -> Reason | None:
        restriction = self.restrictions.of(job)
        if restriction.reason is not None:
            return restriction.reason
        groups: list[str] = []
        for request in requests_of(job, self.vcs[job.vc].name):
            try:
                decision = self.engine.schedule(
                    request, phase=Phase.PREEMPTING, suggested=restriction.nodes
                )
            except RequestError as error:
                for group in groups:
                    self.engine.release(group)
                return _refused(error)
            if isinstance(decision, Bind):
                self.engine.commit(decision)
                groups.append(request.group)
                continue
            if isinstance(decision, Preempt):
                return self._preempt(job, decision)
            for group in groups:
                self.engine.release(group)
            reason = _wait_reason(decision, self._remedies(decision, restriction.nodes))
            self.refusals[_question(job)] = (self.engine.version, reason)
            return reason
        self._start(job, groups)
        return None

    def _remedies(self, wait: Wait, nodes: frozenset[str] | None) -> Remedies:
        """What would let it start, tried out for the first refusals of a round."""
        if self.trials == 0:
            return Remedies(unblock=wait.unblock)
        self.trials -= 1
        return self.engine.remedies(wait, suggested=nodes)

    def _start(self, job: QueuedJob, groups: Sequence[str]) -> None:
        opportunistic = job.job_class is JobClass.OPPORTUNISTIC
        views = [self.engine.group(group) for group in groups]
        placements = [view.placements for view in views if view is not None]
        self.starts.append(
            Start(job_id=job.id, opportunistic=opportunistic, members=_members(job, placements))
        )
        self.use.add(
            vc=job.vc,
            tenant=job.tenant,
            owner=job.owner,
            devices=job.demand.devices,
            opportunistic=opportunistic,
        )

    def _preempt(self, job: QueuedJob, decision: Preempt) -> Reason:
        victims = sorted({job_of_group(group) for group in decision.victims})
        if not self.holding_vc.keys() >= set(victims):
            # A policy put a weaker job first, and it has just been placed: let it be.
            self.engine.release(decision.request.group)
            return Reason(
                code=ReasonCode.BEHIND_HIGHER_PRIORITY,
                text="The policy has given its cells to other jobs in this round.",
                blocked_by=tuple(victims),
            )
        for victim in victims:
            if victim in self.leaving or victim in self.preemptions:
                continue
            same_vc = self.holding_vc[victim] == job.vc
            self.preemptions[victim] = Preemption(
                job_id=victim, for_job=job.id, rule=INTRA_VC_RULE if same_vc else INTER_VC_RULE
            )
        who = (
            "the job on its cells has saved its work and left"
            if len(victims) == 1
            else f"the {len(victims)} jobs on its cells have saved their work and left"
        )
        return Reason(
            code=ReasonCode.WAITING_VICTIM_CHECKPOINT,
            text=f"It starts when {who}.",
            blocked_by=tuple(victims),
        )


class _Restrictions:
    """Which nodes a job may use, computed once for jobs that ask alike."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.known: dict[Any, Restriction] = {}

    def of(self, job: QueuedJob) -> Restriction:
        """The nodes that ``job`` may use."""
        key = (job.demand, job.excluded_nodes)
        if key not in self.known:
            self.known[key] = restriction_of(job, self.snapshot)
        return self.known[key]


def _question(job: QueuedJob) -> Hashable:
    """What a refusal depends on besides the engine's books."""
    return job.vc, job.demand, job.priority, job.excluded_nodes


def _members(job: QueuedJob, placements: Sequence[Sequence[Placed]]) -> tuple[PlacedMember, ...]:
    """The placements as ranks, in the order in which the demand counts them."""
    by_role: dict[int, list[Placed]] = defaultdict(list)
    for part, indices in zip(placements, parts_of(job.demand), strict=True):
        for placed in part:
            by_role[indices[placed.member]].append(placed)
    members: list[PlacedMember] = []
    for index, demand in enumerate(job.demand.members):
        for rank, placed in enumerate(by_role[index]):
            virtual = placed.virtual or ("",) * len(placed.leaves)
            members.append(
                PlacedMember(
                    role=demand.role,
                    rank=rank,
                    node_rank=len(members),
                    node=placed.node,
                    device_indices=placed.devices,
                    leaves=tuple(
                        HeldLeaf(address=address, virtual=cell)
                        for address, cell in zip(placed.leaves, virtual, strict=True)
                    ),
                )
            )
    return tuple(members)


def _refused(error: RequestError) -> Reason:
    return Reason(
        code=_CODES.get(error.field, ReasonCode.INVALID_SPEC),
        text=error.sentence,
        unblock=(error.remedy,) if error.remedy else (),
    )


_CODES: Final = {
    "leaf_types": ReasonCode.UNKNOWN_TYPE,
    "vc": ReasonCode.UNKNOWN_VC,
}


def _wait_reason(decision: Wait, found: Remedies) -> Reason:
    groups = (*found.ends, *decision.blocked_by)
    return Reason(
        code=ReasonCode(decision.code.value),
        text=decision.text,
        blocked_by=tuple(dict.fromkeys(job_of_group(group) for group in groups)),
        unblock=found.unblock,
    )
