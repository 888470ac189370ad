"""Placement of one job during a round: nodes, victims, or the reason for its wait."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from scheduling.core.cells import (
    Bind,
    CellEngine,
    GangRequest,
    Phase,
    Preempt,
    Remedies,
    RequestError,
    Wait,
)
from scheduling.core.jobspec import JobClass
from scheduling.core.messages import message
from scheduling.core.reasons import Reason
from scheduling.core.round.gang_requests import requests_of
from scheduling.core.round.node_restrictions import Restriction
from scheduling.core.round.node_tenancy import Nodes, Tenancies, Tier
from scheduling.core.round.placement import (
    Restrictions,
    never_together,
    refused,
    wait_reason,
)
from scheduling.core.values import QueuedJob, VcFacts
from tessera.reasons import ReasonCode


class RoundBooks(Protocol):
    """State of a round for the placement of one job (``round.state.RoundState``)."""

    engine: CellEngine
    vcs: dict[int, VcFacts]
    restrictions: Restrictions
    tenancies: Tenancies
    refusals: dict[Hashable, tuple[int, Reason]]
    counted: list[tuple[Reason, Wait, Remedies]]

    @property
    def version(self) -> int:
        """Increases with every change of the books or of the owners of nodes."""

    def remedies(self, wait: Wait, nodes: frozenset[str] | None) -> Remedies:
        """Return the changes with which a refused job would start."""

    def start(self, job: QueuedJob, groups: Sequence[str]) -> None:
        """Record that a job starts on the devices of its groups."""

    def preempt(
        self, job: QueuedJob, decision: Preempt, groups: Sequence[str], others: Sequence[int]
    ) -> Reason:
        """Order the victims of a decision to leave for a job."""

    def order_out(self, job: QueuedJob, victims: Sequence[int]) -> Reason:
        """Order jobs to leave for another one."""


def place(state: RoundBooks, job: QueuedJob, question: Hashable) -> Reason | None:
    """Start a job, preempt others for it, or return the reason why it waits."""
    restriction = state.restrictions.of(job)
    if restriction.reason is not None:
        return restriction.reason
    requests = requests_of(job, state.vcs[job.vc].name)
    # Do not preempt for a part of a job whose other parts cannot be placed.
    reason = never_together(state.engine, requests)
    if reason is None:
        wait: Wait | None = None
        for tier in state.tenancies.tiers(job, restriction.nodes):
            with _following(state, job, tier):
                answer = _place_on(state, job, requests, tier)
            if answer is None or isinstance(answer, Reason):
                return answer
            wait = answer.wait
        reason = tenancy_refusal(state, job, requests, restriction)
        if reason is None and wait is not None:
            found = state.remedies(wait, tier.nodes)
            reason = wait_reason(wait, found)
            if wait.counts:
                state.counted.append((reason, wait, found))
        # Each possible placement would have cost another virtual cluster a guarantee.
        reason = reason or state.tenancies.not_isolated(job)
    state.refusals[question] = (state.version, reason)
    return reason


def refusal(state: RoundBooks, job: QueuedJob, restriction: Restriction) -> Reason | None:
    """Return the reason why a job of one part would not start after all decisions, or None."""
    (request,) = requests_of(job, state.vcs[job.vc].name)
    wait: Wait | None = None
    for tier in state.tenancies.tiers(job, restriction.nodes):
        try:
            with _following(state, job, tier):
                decision = state.engine.schedule(request, suggested=tier.nodes)
        except RequestError as error:
            return refused(error)
        if isinstance(decision, Wait):
            wait = decision
        elif tier.cells is not None or _would_keep_promises(state, job, decision):
            return None if _starts_alone(state, job, decision) else _WAITS
    reason = tenancy_refusal(state, job, [request], restriction)
    if reason is None and wait is not None:
        reason = wait_reason(wait, Remedies(unblock=wait.unblock))
    return reason or state.tenancies.not_isolated(job)


_WAITS = Reason(
    code=ReasonCode.WAITING_VICTIM_CHECKPOINT,
    message=message("waits-for-leaving"),
)


def tenancy_refusal(
    state: RoundBooks,
    job: QueuedJob,
    requests: Sequence[GangRequest],
    restriction: Restriction,
) -> Reason | None:
    """Return the tenancy rule that is the only obstacle to a start of the job, or None."""
    tenancies = state.tenancies
    if tenancies.owners and _fits(state.engine, requests, restriction.nodes):
        return tenancies.not_isolated(job)
    for reason, nodes in restriction.lifted:
        if _fits(state.engine, requests, nodes):
            return reason
    return None


class _Refused:
    """Refusal on a set of nodes; ``wait`` is None if a placement would violate a guarantee."""

    __slots__ = ("wait",)

    def __init__(self, wait: Wait | None) -> None:
        self.wait = wait


def _place_on(
    state: RoundBooks, job: QueuedJob, requests: Sequence[GangRequest], tier: Tier
) -> Reason | _Refused | None:
    """Place a job on some nodes; a refused placement leaves the books unchanged."""
    engine, tenancies = state.engine, state.tenancies
    before = _promises(state, job) if tier.cells is None else None
    used: set[str] = set()
    groups: list[str] = []
    answer: Reason | _Refused | None = None
    for request in requests:
        try:
            decision = engine.schedule(request, phase=Phase.PREEMPTING, suggested=tier.nodes)
        except RequestError as error:
            answer = refused(error)
            break
        if isinstance(decision, Wait):
            answer = _Refused(decision)
            break
        groups.append(request.group)
        used |= _nodes_of(decision)
        if isinstance(decision, Preempt):
            if before is None or tenancies.keeps_promises(before):
                return state.preempt(job, decision, groups, tenancies.in_the_way(job, used))
            answer = _Refused(None)
            break
        engine.commit(decision)
    if answer is None and before is not None and not tenancies.keeps_promises(before):
        answer = _Refused(None)
    others = tenancies.in_the_way(job, used) if answer is None else []
    if answer is None and not others:
        state.start(job, groups)
        return None
    _release(engine, groups)
    if answer is None:
        tenancies.clear(job, used)
        answer = state.order_out(job, others)
    return answer


def _following(state: RoundBooks, job: QueuedJob, tier: Tier) -> AbstractContextManager[None]:
    """Restrict the cells that a job may open during its trial to those of the tier."""
    if tier.cells is None:
        return nullcontext()
    return state.engine.reserved(state.vcs[job.vc].name, tier.cells)


def _promises(state: RoundBooks, job: QueuedJob) -> Mapping[str, int] | None:
    """Return the devices that virtual clusters miss before the placement; None if not checked."""
    if not state.tenancies.bind or job.job_class is JobClass.OPPORTUNISTIC:
        return None
    return state.tenancies.reservation.missing()


def _would_keep_promises(state: RoundBooks, job: QueuedJob, decision: Bind | Preempt) -> bool:
    before = _promises(state, job)
    if before is None or isinstance(decision, Preempt):
        return True
    state.engine.commit(decision)
    kept = state.tenancies.keeps_promises(before)
    state.engine.release(decision.request.group)
    return kept


def _starts_alone(state: RoundBooks, job: QueuedJob, decision: Bind | Preempt) -> bool:
    if isinstance(decision, Preempt):
        return False
    return not state.tenancies.in_the_way(job, _nodes_of(decision))


def _fits(engine: CellEngine, requests: Sequence[GangRequest], nodes: Nodes) -> bool:
    try:
        return not any(
            isinstance(engine.schedule(request, suggested=nodes), Wait) for request in requests
        )
    except RequestError:
        return False


def _nodes_of(decision: Bind | Preempt) -> frozenset[str]:
    return frozenset(placed.node for placed in decision.placements)


def _release(engine: CellEngine, groups: Iterable[str]) -> None:
    for group in groups:
        engine.release(group)
