"""The working state of one round, from the first policy call to the last placement."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from scheduling.core.cells import (
    CellEngine,
    Preempt,
    Remedies,
    Wait,
)
from scheduling.core.jobspec import JobClass
from scheduling.core.messages import message
from scheduling.core.performance.reverts import with_reverts
from scheduling.core.policies.base import TimeLimit
from scheduling.core.policy_interface import grid_types
from scheduling.core.reasons import Reason
from scheduling.core.round import starting
from scheduling.core.round.caps import DeviceUse, cut_down, grown_within_caps
from scheduling.core.round.claims import (
    claimed_requests,
    claims_of,
    given_to,
    groups_of,
    order_out,
    waits_for,
)
from scheduling.core.round.decision_cache import DecisionCache
from scheduling.core.round.fairness import in_turn, tenant_weights
from scheduling.core.round.gang_requests import job_of_group, requests_of
from scheduling.core.round.gates import closed_gate
from scheduling.core.round.grid_sizes import planned
from scheduling.core.round.node_tenancy import Tenancies
from scheduling.core.round.peers import PlannedPeer, seat_refused
from scheduling.core.round.placement import (
    is_resized,
    placed_members,
    question_of,
    restated,
)
from scheduling.core.round.policy_answers import (
    MakePolicy,
    ask,
    cause_of,
    is_plain,
    orders_of,
    plain_order,
    with_stand_in,
)
from scheduling.core.round.ports import Ports
from scheduling.core.round.vc_views import VirtualClusterViews
from scheduling.core.round_result import Preemption, Rejection, RoundResult, Start
from scheduling.core.values import ClusterSnapshot, QueuedJob, VcFacts
from tessera.reasons import ReasonCode

TRIALS: Final = 16  # maximum refusals of a round for which remedies are searched

# A member of an enumeration is looked up by a call each time, and there are 10,000 jobs.
_OPPORTUNISTIC: Final = JobClass.OPPORTUNISTIC
_WAITING_FOR_VICTIMS: Final = ReasonCode.WAITING_VICTIM_CHECKPOINT
_NEVER: Final[tuple[int, Reason | None]] = (-1, None)


class RoundState:
    """Working state of one round, used by ``rounds`` and ``trials``."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        limit: TimeLimit,
        make: MakePolicy,
        engine: CellEngine,
        cache: DecisionCache | None = None,
    ) -> None:
        cache = cache or DecisionCache()
        self.snapshot = snapshot
        self.limit = limit
        self.make = make
        self.engine = engine
        self.vcs = {vc.id: vc for vc in snapshot.vcs}
        self.leaving = {job.id for job in snapshot.holding if job.leaving}
        self.held = cache.held(engine, snapshot.holding)
        self.holding = self.held.jobs
        self.views = VirtualClusterViews(snapshot, self.engine)
        self.restrictions = cache.restrictions(snapshot)
        self.tenancies = Tenancies(snapshot, engine, self.restrictions.barred)
        self.ports = Ports(snapshot.ports_left)
        self.use = self.held.use.copy()
        self.grown: DeviceUse | None = None
        self.waiting = {job.id: job for job in snapshot.queued}
        self.starts: list[Start] = []
        self.preemptions: dict[int, Preemption] = {}
        self.reasons: dict[int, Reason] = {}
        self.policy_states: dict[int, Mapping[str, Any]] = {}
        self.policy_faults: dict[int, str] = {}
        self.stand_ins: dict[int, str] = {}
        self.rejections: dict[int, Rejection] = {}
        self.wakes: list[float] = []
        self.fallbacks: list[str] = []
        self.refusals: dict[Hashable, tuple[int, Reason]] = {}
        self.counted: list[tuple[Reason, Wait, Remedies]] = []
        self.first_version = engine.version
        self.heads: dict[tuple[int, bool], int] = {}
        self.trials = TRIALS
        self.claiming: dict[int, QueuedJob] = {}
        self.lines: tuple[list[tuple[QueuedJob, bool]], ...] = ()
        self.beside: dict[int, PlannedPeer] = {}

    def run(self) -> None:
        """Decide about every waiting job."""
        self.close_gates()
        guaranteed, opportunistic = self.lines = self.orders()
        self.drop_claims(job for job, _ in guaranteed)
        for job, strict in guaranteed:
            self.try_to_place(job, strict=strict)
        self.take_turns(opportunistic)

    def close_gates(self) -> None:
        """Exclude the jobs that may not start now, even with free devices."""
        for job in self.snapshot.queued:
            reason = closed_gate(job, self.snapshot.now)
            if reason is None:
                reason = self.ports.refusal(job.demand)
                if reason is not None:
                    self._give_up(job)
            if reason is not None:
                self.reasons[job.id] = reason
                del self.waiting[job.id]

    def orders(
        self,
    ) -> tuple[list[tuple[QueuedJob, bool]], list[tuple[QueuedJob, bool]]]:
        """Return the policies' orders: guaranteed jobs, then opportunistic ones.

        Guarantees of virtual clusters do not overlap, so their orders are concatenated.
        """
        guaranteed: list[tuple[QueuedJob, bool]] = []
        opportunistic: list[tuple[QueuedJob, bool]] = []
        by_vc: dict[int, dict[int, QueuedJob]] = defaultdict(dict)
        for waiting in self.waiting.values():
            by_vc[waiting.vc][waiting.id] = waiting
        running = {job.vc for job in self.snapshot.holding}
        for vc in sorted(self.snapshot.vcs, key=lambda vc: vc.id):
            if vc.id not in by_vc and (is_plain(vc) or vc.id not in running):
                continue
            for job, strict in self._ask(vc, by_vc[vc.id]):
                is_borrowing = job.job_class is JobClass.OPPORTUNISTIC
                (opportunistic if is_borrowing else guaranteed).append((job, strict))
        return guaranteed, opportunistic

    def take_turns(self, jobs: Sequence[tuple[QueuedJob, bool]]) -> None:
        """Offer idle devices to the tenants in turn: weighted max-min on the devices borrowed."""
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
        """Start ``job``, preempt others for it, or record the reason why it waits."""
        waiting, reason = self.waiting[job.id], self.ports.refusal(job.demand)
        if reason is None and job.id in self.snapshot.grids:
            job, reason = self._planned(job)
        if reason is not None:
            # Jobs behind it may need fewer ports, or have a plan, so it does not block them.
            self._give_up(waiting)
            self.reasons[job.id] = reason
            return
        reason = self._held_back(job) if strict else None
        if reason is None:
            job = self._within_caps(job)
            reason = self.use.capped(job, self.vcs[job.vc])
        if reason is None:
            if waiting.claims:  # earlier starts may leave less of a cap than it has claimed
                self._drop_claims_for_else(waiting, job)
            question = question_of(job)
            version, reason = self.refusals.get(question, _NEVER)
            if version != self.version:
                reason = starting.place(self, job, question)
        if reason is not None:
            if waiting.claims and reason.code is not _WAITING_FOR_VICTIMS:
                self._give_up(waiting)
            self.reasons[job.id] = reason
            if strict:
                self.heads.setdefault((job.vc, job.job_class is _OPPORTUNISTIC), job.id)

    def drop_claims(self, tried: Iterable[QueuedJob]) -> None:
        """Drop claims of jobs that are not tried, or that changed since the claim."""
        claiming = [job for job in self.waiting.values() if job.claims]
        if claiming:
            wanted = {job.id: self._within_caps(job) for job in tried if job.claims}
            for job in claiming:
                self._drop_claims_for_else(job, wanted.get(job.id))

    def _drop_claims_for_else(self, job: QueuedJob, now: QueuedJob | None) -> None:
        """Drop the claims of ``job`` unless they match it as it is ``now``."""
        requests = requests_of(now, self.vcs[job.vc].name) if now is not None else []
        if requests != claimed_requests(self.engine, job):
            self._give_up(job)

    def _give_up(self, job: QueuedJob) -> None:
        for group in groups_of(job) if job.claims else ():
            self.engine.release(group)

    def _claims(self) -> None:
        """Store the claims of jobs with the reasons for which they wait."""
        for job_id, job in self.claiming.items():
            reason = self.reasons[job_id]
            if reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT:
                self.reasons[job_id] = replace(reason, claims=claims_of(self.engine, job))

    def restate(self) -> None:
        """Update the device counts in reasons to those after the round.

        All other data (certificates, pages, later remedies) shows the cluster after the starts of
        the round.
        """
        if not self.counted or self.engine.version == self.first_version:
            return
        recounted = self.engine.recounted(refusal for _, refusal, _ in self.counted)
        again = {
            id(reason): restated(reason, refusal, found)
            for (reason, _, found), refusal in zip(self.counted, recounted, strict=True)
        }
        self.reasons = {
            job_id: again.get(id(reason), reason) for job_id, reason in self.reasons.items()
        }

    def result(self) -> RoundResult:
        """Build the result of the round from all decisions."""
        self._claims()
        return RoundResult(
            starts=tuple(self.starts),
            preemptions=tuple(self.preemptions[job_id] for job_id in sorted(self.preemptions)),
            reasons=self.reasons,
            policy_states=self.policy_states,
            fallbacks=tuple(self.fallbacks),
            rebindings=tuple(
                rebinding
                for rebinding in self.held.rebindings()
                if rebinding.job_id not in self.preemptions
            ),
            rejections=tuple(self.rejections[job_id] for job_id in sorted(self.rejections)),
            policy_faults=self.policy_faults,
            stand_ins=self.stand_ins,
            wake=min(self.wakes, default=None),
        )

    def _ask(self, vc: VcFacts, waiting: Mapping[int, QueuedJob]) -> list[tuple[QueuedJob, bool]]:
        """Return the jobs that a virtual cluster's policy selects; record the rest of its plan."""
        known = plain_order(vc, waiting.values(), self.make)
        if known is not None:
            ordered, strict = known
            self.policy_faults[vc.id] = ""
            self.policy_states[vc.id] = vc.policy_state
            return [(job, strict) for job in ordered]
        plain = is_plain(vc)
        if not plain:
            waiting = self._uncapped(vc, waiting)
        view = (self.views.plain if plain else self.views.full)(vc, waiting.values())
        # First in, first out is built-in code and needs no timer, which would cost time in every
        # round.
        answer = ask(vc, view, limit=nullcontext if plain else self.limit, make=self.make)
        self.policy_faults[vc.id] = answer.fault
        if answer.fault:
            self.stand_ins[vc.id] = answer.instead
            self.fallbacks.append(f"{vc.name}: {with_stand_in(answer.fault, answer.instead)}")
        else:
            self.policy_states[vc.id] = answer.state
        if answer.plan.wake is not None and answer.plan.wake > self.snapshot.now:
            self.wakes.append(answer.plan.wake)
        plan = with_reverts(view, answer.plan)
        if self.grown is None:  # no job has started yet
            self.grown = self.use.copy()
        plan = grown_within_caps(view, plan, self.grown, self.holding, vc)
        orders = orders_of(view, plan, waiting)
        self.beside.update(orders.beside)
        self.reasons.update(orders.reasons)
        for job_id, reason in orders.rejected.items():
            self.rejections[job_id] = Rejection(job_id=job_id, reason=reason)
        for job_id, rule in orders.leaving.items():
            self.preemptions[job_id] = Preemption(
                job_id=job_id, for_job=0, rule=rule, cause=cause_of(view, plan, job_id)
            )
        tried = [(job, answer.plan.strict) for job in orders.tried]
        for job_id, seat in orders.beside.items():
            if self._is_apart(waiting[job_id], seat):
                del self.reasons[job_id]
                tried.append((waiting[job_id], False))
        return tried

    def _is_apart(self, job: QueuedJob, seat: PlannedPeer) -> bool:
        """Return whether a job cannot run beside a holder, so that it is tried as any other."""
        if seat.holder not in self.holding:
            return False
        restriction, need = self.restrictions.of(job), self.snapshot.peer_needs[job.id]
        hosts = [host for host in self.snapshot.hosts if host.holder == seat.holder]
        return all(
            seat_refused(job, need, host, restriction.nodes)
            or (host.memory_free < need.floor and host.address not in self._guested)
            for host in hosts
        )

    @cached_property
    def _guested(self) -> frozenset[str]:
        """The devices with opportunistic guests, which leave for jobs that a policy seats."""
        return frozenset(guest.address for guest in self.snapshot.guests)

    def _uncapped(self, vc: VcFacts, waiting: Mapping[int, QueuedJob]) -> dict[int, QueuedJob]:
        """Return the jobs that no cap blocks, for any decision of the policy.

        A profiled hybrid job without a plan at any of its sizes is left out, too.

        A reached cap remains reached in this round. Elastic jobs are checked at their smallest
        possible size.
        """
        found: dict[int, QueuedJob] = {}
        for job_id, job in waiting.items():
            reason = self._planned(job)[1] if job_id in self.snapshot.grids else None
            reason = reason or self.use.capped(job, vc, least=self._least(job))
            if reason is None:
                found[job_id] = job
            else:
                self.reasons[job_id] = reason
        return found

    def _least(self, job: QueuedJob) -> int:
        known = self.snapshot.known.get(job.id)
        scale = known.terms.scale if known is not None else None
        return (scale.smallest if scale is not None else None) or job.demand.devices

    def _within_caps(self, job: QueuedJob) -> QueuedJob:
        """Resize an elastic job to the largest size that caps allow of its policy's allocation."""
        known = self.snapshot.known.get(job.id)
        if known is None or is_plain(vc := self.vcs[job.vc]):
            return job  # first in, first out uses only gangs
        left = self.use.left(job, vc)
        if left is None or left >= job.demand.devices:
            return job
        cut = cut_down(job, known, self.waiting[job.id], left)
        grids = self.snapshot.grids.get(job.id, ())
        able, kinds = grid_types(grids, cut.demand.devices), cut.demand.members[0].device_types
        has_grid = any(kind in able for kind in kinds or able)
        return cut if has_grid or not grids else job

    def _planned(self, job: QueuedJob) -> tuple[QueuedJob, Reason | None]:
        """Return a profiled hybrid job at a size with a plan, or the reason why it waits."""
        known, snapshot = self.snapshot.known.get(job.id), self.snapshot
        scale = known.terms.scale if known is not None else None
        given = snapshot.given_sizes.get(job.id, ())
        asked = self.waiting[job.id].demand
        return planned(self._within_caps(job), asked, snapshot.grids[job.id], given, scale)

    def _held_back(self, job: QueuedJob) -> Reason | None:
        head = self.heads.get((job.vc, job.job_class is _OPPORTUNISTIC))
        if head is None:
            return None
        return Reason(
            code=ReasonCode.BEHIND_HIGHER_PRIORITY,
            message=message("behind-head", head=head, name=self.vcs[job.vc].name),
            blocked_by=(head,),
            unblock=(message("raise-priority"),),
        )

    def refusal(self, job: QueuedJob) -> Reason | None:
        """Return the reason why a job of one part would not start after all decisions, or None."""
        vc, restriction = self.vcs[job.vc], self.restrictions.of(job)
        reason = self.ports.refusal(job.demand) or self.use.capped(job, vc) or restriction.reason
        if reason is not None:
            return reason
        return starting.refusal(self, job, restriction)

    def remedies(self, wait: Wait, nodes: frozenset[str] | None) -> Remedies:
        """Search for remedies, only for the first refusals of a round."""
        if self.trials == 0:
            return Remedies(unblock=wait.unblock)
        self.trials -= 1
        return self.engine.remedies(wait, suggested=nodes)

    def start(self, job: QueuedJob, groups: Sequence[str]) -> None:
        """Record the start of a job on the devices of its engine groups."""
        opportunistic = job.job_class is JobClass.OPPORTUNISTIC
        views = [self.engine.group(group) for group in groups]
        placements = [view.placements for view in views if view is not None]
        members = placed_members(job, placements, self.tenancies.level)
        self.starts.append(
            Start(
                job_id=job.id,
                opportunistic=opportunistic,
                members=members,
                demand=job.demand if is_resized(job, self.waiting[job.id]) else None,
            )
        )
        self.tenancies.started(job, members)
        self.ports.take(job.demand)
        devices = job.demand.devices
        self.use.add(job, devices=devices, borrowed=devices if opportunistic else 0)

    def preempt(
        self, job: QueuedJob, decision: Preempt, groups: Sequence[str], others: Sequence[int]
    ) -> Reason:
        """Preempt the victims of a job, and jobs of other tenants on its nodes.

        Args:
            job: for which the engine has claimed devices.
            decision: the claim.
            groups: the engine's names of the job's parts so far.
            others: jobs that a job without isolation must not meet.
        """
        victims = sorted({job_of_group(group) for group in decision.victims} | set(others))
        if not self.holding.keys() >= set(victims):
            # A policy put a weaker job first, and it has just been placed: no change.
            for group in groups:
                self.engine.release(group)
            return given_to(victims)
        self.claiming[job.id] = job
        return self.order_out(job, victims)

    def order_out(self, job: QueuedJob, victims: Sequence[int]) -> Reason:
        """Order jobs to leave for another one; return the reason why that one waits."""
        for victim in victims:
            if victim not in self.leaving and victim not in self.preemptions:
                self.preemptions[victim] = order_out(self.holding[victim], job)
        return waits_for(victims)

    @property
    def version(self) -> int:
        """Increases with every change of the books or of the owners of nodes."""
        return self.engine.version + self.tenancies.version
