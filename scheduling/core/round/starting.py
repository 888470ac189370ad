"""Trying to place one job during a round: on which nodes, at whose cost, and why it waits."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

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
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.core.round.gang_requests import Restriction, requests_of
from scheduling.core.round.node_tenancy import Nodes, Tier
from scheduling.core.round.placement import never_together, refused, wait_reason
from scheduling.core.values import QueuedJob

if TYPE_CHECKING:
    from scheduling.core.round.state import RoundState


def place(deciding: "RoundState", job: QueuedJob, question: Hashable) -> Reason | None:
    """Start a job, order others to leave for it, or say why it waits."""
    restriction = deciding.restrictions.of(job)
    if restriction.reason is not None:
        return restriction.reason
    requests = requests_of(job, deciding.vcs[job.vc].name)
    # Nobody has to leave for a part of a job whose other parts find no place.
    reason = never_together(deciding.engine, requests)
    if reason is None:
        wait: Wait | None = None
        for tier in deciding.tenancies.tiers(job, restriction.nodes):
            with _following(deciding, job, tier):
                answer = _place_on(deciding, job, requests, tier)
            if answer is None or isinstance(answer, Reason):
                return answer
            wait = answer.wait
        reason = kept_off(deciding, job, requests, restriction)
        if reason is None and wait is not None:
            found = deciding.remedies(wait, tier.nodes)
            reason = wait_reason(wait, found)
            if wait.counts:
                deciding.counted.append((reason, wait, found))
        # Each place that there was would have cost somebody else a guarantee.
        reason = reason or deciding.tenancies.not_isolated(job)
    deciding.refusals[question] = (deciding.version, reason)
    return reason


def refusal(deciding: "RoundState", job: QueuedJob, restriction: Restriction) -> Reason | None:
    """Why a job of one part would not start after all that was decided; nothing changes."""
    (request,) = requests_of(job, deciding.vcs[job.vc].name)
    wait: Wait | None = None
    for tier in deciding.tenancies.tiers(job, restriction.nodes):
        try:
            with _following(deciding, job, tier):
                decision = deciding.engine.schedule(request, suggested=tier.nodes)
        except RequestError as error:
            return refused(error)
        if isinstance(decision, Wait):
            wait = decision
        elif tier.cells is not None or _would_keep_promises(deciding, job, decision):
            return None if _starts_alone(deciding, job, decision) else _WAITS
    reason = kept_off(deciding, job, [request], restriction)
    if reason is None and wait is not None:
        reason = wait_reason(wait, Remedies(unblock=wait.unblock))
    return reason or deciding.tenancies.not_isolated(job)


_WAITS = Reason(
    code=ReasonCode.WAITING_VICTIM_CHECKPOINT,
    message=message("waits-for-leaving"),
)


def kept_off(
    deciding: "RoundState",
    job: QueuedJob,
    requests: Sequence[GangRequest],
    restriction: Restriction,
) -> Reason | None:
    """The rule about tenants and nodes without which a job would not wait; None for none."""
    tenancies = deciding.tenancies
    if tenancies.owners and _fits(deciding.engine, requests, restriction.nodes):
        return tenancies.not_isolated(job)
    for reason, nodes in restriction.lifted:
        if _fits(deciding.engine, requests, nodes):
            return reason
    return None


class _Refused:
    """No place on a set of nodes; ``wait`` is None where one would have cost a guarantee."""

    __slots__ = ("wait",)

    def __init__(self, wait: Wait | None) -> None:
        self.wait = wait


def _place_on(
    deciding: "RoundState", job: QueuedJob, requests: Sequence[GangRequest], tier: Tier
) -> Reason | _Refused | None:
    """Place a job on some nodes; a refused placement leaves the books unchanged."""
    engine, tenancies = deciding.engine, deciding.tenancies
    before = _promises(deciding, job) if tier.cells is None else None
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
                return deciding.preempt(job, decision, groups, tenancies.in_the_way(job, used))
            answer = _Refused(None)
            break
        engine.commit(decision)
    if answer is None and before is not None and not tenancies.keeps_promises(before):
        answer = _Refused(None)
    others = tenancies.in_the_way(job, used) if answer is None else []
    if answer is None and not others:
        deciding.start(job, groups)
        return None
    _release(engine, groups)
    if answer is None:
        tenancies.clear(job, used)
        answer = deciding.order_out(job, others)
    return answer


def _following(deciding: "RoundState", job: QueuedJob, tier: Tier) -> AbstractContextManager[None]:
    """While a job is tried on a tier it opens no cells but those of the tier."""
    if tier.cells is None:
        return nullcontext()
    return deciding.engine.reserved(deciding.vcs[job.vc].name, tier.cells)


def _promises(deciding: "RoundState", job: QueuedJob) -> Mapping[str, int] | None:
    """Devices that virtual clusters miss before a guaranteed job is placed; None: not asked."""
    if not deciding.tenancies.bind or job.job_class is JobClass.OPPORTUNISTIC:
        return None
    return deciding.tenancies.reservation.missing()


def _would_keep_promises(deciding: "RoundState", job: QueuedJob, decision: Bind | Preempt) -> bool:
    before = _promises(deciding, job)
    if before is None or isinstance(decision, Preempt):
        return True
    deciding.engine.commit(decision)
    kept = deciding.tenancies.keeps_promises(before)
    deciding.engine.release(decision.request.group)
    return kept


def _starts_alone(deciding: "RoundState", job: QueuedJob, decision: Bind | Preempt) -> bool:
    if isinstance(decision, Preempt):
        return False
    return not deciding.tenancies.in_the_way(job, _nodes_of(decision))


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
