"""Conversion of one virtual cluster's plan for a round: jobs to try, preemptions, rejections.

A plan is a desired state. Running jobs whose allocation changes leave first, by the same notice
and grace period as for any other preemption; when their devices are free, the policy decides again
and they start at their new size. Recently started jobs are not changed, so that no policy can
make a job spend its time on restarts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import PreemptionRule
from scheduling.core.messages import message, sentence
from scheduling.core.performance.executors import fewer_are_faster
from scheduling.core.performance.reverts import is_slower
from scheduling.core.policies import WRAP, UnknownPolicyError, make_policy
from scheduling.core.policies.base import Policy, TimeLimit, guarded_plan
from scheduling.core.policies.plans import IllegalPlanError, check_plan
from scheduling.core.policies.queues.ordered import Fifo
from scheduling.core.policy_interface import Alloc, JobPhase, Plan, PolicyJob, Snapshot
from scheduling.core.reasons import Reason
from scheduling.core.round.gang_sizes import sized
from scheduling.core.round.peers import (
    PlannedPeer,
    check_groups,
    planned_peers,
    separation_of,
)
from scheduling.core.values import QueuedJob, VcFacts
from tessera.messages import Listing, Message, message_of
from tessera.reasons import ReasonCode

SUSPEND_AFTER_SECONDS: Final = 60.0
"""Minimum seconds that a job runs before its policy may suspend it."""

RESIZE_AFTER_SECONDS: Final = 300.0
"""Minimum seconds that a job runs at a size before its policy may resize or move it."""

RESTARTS_TO_PAY: Final = 10.0
"""Minimum run time before a resize, as a multiple of the duration of its start."""

PLAIN: Final = Fifo.name
LONGEST_FAULT: Final = 500
_KEPT: Final = "; running jobs keep their devices"
_WORDS: Final = {PLAIN: "first in, first out"}

MakePolicy: TypeAlias = Callable[[str, Mapping[str, Any]], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswer:
    """Result of a policy.

    Attributes:
        fault: reason why another policy decided; empty if this policy decided.
        instead: the policy of the replacement plan.
    """

    plan: Plan
    state: Mapping[str, Any]
    fault: str = ""
    instead: str = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """A plan converted for the round.

    Attributes:
        tried: waiting jobs at their planned size, in order.
        leaving: running jobs that must leave, with the rule.
        reasons: for waiting jobs that are not tried.
        rejected: waiting jobs that are rejected permanently.
        beside: waiting jobs that start on the device of another job.
    """

    tried: tuple[QueuedJob, ...]
    leaving: Mapping[int, str] = field(default_factory=dict)
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    rejected: Mapping[int, Reason] = field(default_factory=dict)
    beside: Mapping[int, PlannedPeer] = field(default_factory=dict)


def is_plain(vc: VcFacts) -> bool:
    """Return whether a virtual cluster's policy uses only gangs and arrivals."""
    return vc.policy in {PLAIN, *Fifo.aliases} and not vc.policy_args.get(WRAP)


def ask(
    vc: VcFacts,
    view: Snapshot,
    *,
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
) -> PolicyAnswer:
    """Return the plan of a virtual cluster's policy, or first in, first out if it fails.

    Args:
        vc: its policy decides.
        view: input of the policy.
        limit: time limit of the policy.
        make: builds a policy from its name and parameters.
    """
    try:
        policy = make(vc.policy, vc.policy_args)
    except UnknownPolicyError as error:
        return _instead(vc, view, str(error))
    if isinstance(policy, Fifo):  # the same as a guard's fallback
        return PolicyAnswer(plan=policy.plan(view, {})[0], state=vc.policy_state)
    plan, state, fault = guarded_plan(
        policy, view, vc.policy_state, limit=limit, check=check_live_plan
    )
    if fault is not None:
        return _instead(vc, view, fault.partition(_KEPT)[0])
    # A policy that replaces a failing one, inside the policy rules around that.
    faults = plan.notes.get("faults", ())
    told = "; ".join(str(one).partition(_KEPT)[0] for one in faults)
    instead = str(plan.notes.get("instead", PLAIN))
    return PolicyAnswer(plan=plan, state=state, fault=told[:LONGEST_FAULT], instead=instead)


def with_stand_in(fault: str, name: str) -> str:
    """Append the name of the replacement to a policy's fault (``PolicyAnswer.instead``)."""
    return f"{fault}; {_WORDS.get(name, name)} instead"


def plain_order(
    vc: VcFacts, waiting: Iterable[QueuedJob], make: MakePolicy
) -> tuple[list[QueuedJob], bool] | None:
    """Return the result of ``ask`` and ``orders_of`` for plain first in, first out.

    It tries all waiting jobs unchanged, changes no running job and has no state. So it needs
    neither a view nor a plan.

    Returns:
        The jobs in order, and whether passing is forbidden; None if ``ask`` must be called.
    """
    if not is_plain(vc):
        return None
    try:
        policy = make(vc.policy, vc.policy_args)
    except UnknownPolicyError:
        return None
    if not isinstance(policy, Fifo):
        return None
    return policy.in_order(waiting), not policy.backfill


def check_live_plan(view: Snapshot, plan: Plan) -> None:
    """Raise if a plan is not legal, or if nodes cannot apply it.

    Raises:
        IllegalPlanError: see ``check_plan``; or jobs share a device that may not or cannot, or
            have no shape for their size.
    """
    able = {job.id for job in view.jobs if job.terms.shareable}
    shared = [job_id for job_id, alloc in plan.allocs.items() if alloc.share is not None]
    if not able.issuperset(shared):
        alone = [job_id for job_id in shared if job_id not in able]
        raise IllegalPlanError(sentence("sharing-unsupported", shared=_jobs(alone)))
    check_plan(view, plan)
    if shared:
        check_groups(plan)
    for job in view.jobs:
        alloc = plan.allocs.get(job.id)
        if alloc is not None and alloc != job.alloc and sized(job.demand, alloc) is None:
            raise IllegalPlanError(sentence("no-shape", id=job.id, alloc=_words(alloc)))


def orders_of(view: Snapshot, plan: Plan, waiting: Mapping[int, QueuedJob]) -> Orders:
    """Convert ``plan`` to orders for the jobs of ``view``.

    Args:
        view: input of the policy.
        plan: a plan that ``check_live_plan`` accepts.
        waiting: the queued jobs of the virtual cluster, by id.
    """
    planned = planned_peers(view, plan)
    beside = {job_id: seat for job_id, seat in planned.items() if job_id in waiting}
    chosen = [
        job_id
        for job_id in plan.order
        if job_id in waiting and job_id in plan.allocs and job_id not in beside
    ]
    if not plan.offer:
        chosen += sorted(plan.allocs.keys() & waiting.keys() - set(chosen) - beside.keys())
    asked = {job.id: job.demand for job in view.jobs if job.id in waiting}
    # For an offer, the cell engine decides which of its types a job gets.
    tried = tuple(
        waiting[job_id]
        if plan.offer
        and plan.allocs[job_id].devices == asked[job_id].devices
        and not plan.allocs[job_id].one_node
        else _at_size(waiting[job_id], asked[job_id], plan.allocs[job_id])
        for job_id in chosen
    )
    rejected = {
        job_id: reason if reason.text else replace(reason, message=message("policy-refuses"))
        for job_id, reason in plan.reject.items()
        if job_id in waiting
    }
    untried = waiting.keys() - set(chosen) - rejected.keys()
    return Orders(
        tried=tried,
        leaving={} if plan.offer else dict(_leaving(view, plan, planned)),
        reasons={
            job_id: _beside(beside[job_id]) if job_id in beside else _why(plan, job_id, view.now)
            for job_id in untried
        },
        rejected=rejected,
        beside=beside,
    )


def _beside(seat: PlannedPeer) -> Reason:
    return Reason(
        code=ReasonCode.HELD_BY_POLICY, message=message("waits-for-partner", holder=seat.holder)
    )


def _instead(vc: VcFacts, view: Snapshot, fault: str) -> PolicyAnswer:
    plan, _ = Fifo().plan(view, {})
    return PolicyAnswer(plan=plan, state=vc.policy_state, fault=fault[:LONGEST_FAULT])


def _at_size(job: QueuedJob, asked: Demand, alloc: Alloc) -> QueuedJob:
    demand = sized(asked, alloc) or job.demand
    if demand == job.demand and alloc.one_node == job.one_node:
        return job
    return replace(job, demand=demand, one_node=alloc.one_node)


def _leaving(
    view: Snapshot, plan: Plan, planned: Mapping[int, PlannedPeer]
) -> list[tuple[int, str]]:
    """Return the running jobs that must change or leave, with the rule for their owners."""
    found = []
    for job in view.jobs:
        if job.phase is not JobPhase.RUNNING or job.alloc is None:
            continue
        if job.job_class is JobClass.OPPORTUNISTIC and job.id not in plan.allocs:
            continue  # borrowed devices: their owner takes them back on demand
        alloc = plan.allocs.get(job.id)
        rule = _change(view, job, alloc)
        if not rule and alloc is not None and (planned or job.beside):
            rule = _regrouping(view, plan, job, planned)
        if rule:
            found.append((job.id, rule))
    return found


def _regrouping(
    view: Snapshot, plan: Plan, job: PolicyJob, planned: Mapping[int, PlannedPeer]
) -> str:
    """Return the rule by which a running job leaves for another device in use; empty if not."""
    rule = separation_of(view, plan, job, planned)
    return rule if job.beside or view.now - job.since >= _patience(view, job) else ""


def _patience(view: Snapshot, job: PolicyJob) -> float:
    return max(RESIZE_AFTER_SECONDS, RESTARTS_TO_PAY * view.model.restart_seconds(job))


def _change(view: Snapshot, job: PolicyJob, alloc: Alloc | None) -> str:
    """Return the rule by which a running job must leave; empty if it continues."""
    ran = view.now - job.since
    if alloc is None:
        return sentence("policy-preempts") if ran >= SUSPEND_AFTER_SECONDS else ""
    held = job.alloc
    if held is None:
        return ""
    if _counts(held) == _counts(alloc) or _is_any(held, alloc):
        rule = _other_executors(job, alloc)
    elif is_slower(job, held):
        rule = sentence("reverts-size", held=_words(held), alloc=_words(alloc))
    else:
        rule = sentence("policy-resizes", alloc=_words(alloc), held=_words(held))
    return rule if ran >= _patience(view, job) else ""


def _other_executors(job: PolicyJob, alloc: Alloc) -> str:
    """Return the reason why a job of the right size restarts with another number of processes."""
    if not job.terms.preemptible:
        return ""
    now, fewer = job.facts.executors, fewer_are_faster(job, job.alloc)
    if fewer is not None:
        slow, fast = _per_device(now), _per_device(fewer)
        return sentence("reverts-processes", slow=slow, fast=fast)
    wanted = {part.executors for part in alloc.parts}
    number = wanted.pop() if len(wanted) == 1 else None
    if number is None or number == now or now < 1:
        return ""
    if number < now <= job.terms.executors:
        return ""  # fewer processes are not fast enough: the number would oscillate
    return sentence("policy-reprocesses", value=_per_device(number), now=_per_device(now))


def _per_device(executors: int) -> Message:
    return message("processes-per-device", n=executors)


def cause_of(view: Snapshot, plan: Plan, job_id: int) -> PreemptionRule:
    """Return the cause of a plan's preemption of a running job."""
    alloc = plan.allocs.get(job_id)
    job = next(job for job in view.jobs if job.id == job_id)
    held = job.alloc
    if alloc is None or held is None:
        return PreemptionRule.POLICY
    same = _counts(held) == _counts(alloc) or _is_any(held, alloc)
    if same and (alloc.share is not None or held.share is not None):
        return PreemptionRule.MOVE
    if is_slower(job, held) or (same and fewer_are_faster(job, held) is not None):
        return PreemptionRule.REVERT
    return PreemptionRule.RESIZE if same or alloc.devices != held.devices else PreemptionRule.MOVE


def _is_any(held: Alloc, alloc: Alloc) -> bool:
    """Return whether a plan leaves the types open and does not change the sizes."""
    return held.devices == alloc.devices and any(part.type is None for part in alloc.parts)


def _counts(alloc: Alloc) -> Counter[str | None]:
    found: Counter[str | None] = Counter()
    for part in alloc.parts:
        found[part.type] += part.n
    return found


def _why(plan: Plan, job_id: int, now: float) -> Reason:
    held = plan.hold.get(job_id)
    if held is None:
        return Reason(
            code=ReasonCode.HELD_BY_POLICY,
            message=message_of(plan.why[job_id])
            if job_id in plan.why
            else message("policy-gives-nothing"),
        )
    minutes = max(0, round((held.time - now) / 60.0))
    if job_id in plan.why:
        reserved = message_of(plan.why[job_id])
    elif held.type:
        reserved = message("policy-reserves-type", n=held.n, type=held.type, minutes=minutes)
    else:
        reserved = message("policy-reserves", n=held.n, minutes=minutes)
    return Reason(code=ReasonCode.RESERVATION, message=reserved)


def _words(alloc: Alloc) -> Listing:
    counts = sorted(_counts(alloc).items(), key=lambda item: item[0] or "")
    devices = tuple(
        message("devices-of-type", n=n, type=kind) if kind else message("devices", n=n)
        for kind, n in counts
    )
    return Listing(devices, "and")


def _jobs(ids: list[int]) -> Message:
    shown = ", ".join(str(job_id) for job_id in sorted(ids)[:5])
    if len(ids) > 5:
        return message("jobs-and-more", shown=shown, more=len(ids) - 5)
    return message("jobs", n=len(ids), shown=shown)
