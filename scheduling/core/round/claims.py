"""Claims across rounds: devices that a job waits for, and preemptions of the jobs that leave.

A claim is stored with the reason for which the job waits, in the transaction that preempts its
victims. So the next round, in any process, reads it: no other job gets the devices meanwhile, and
no further victim is preempted in vain.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scheduling.core.cells import CellEngine, GangRequest, GroupState, Placed
from scheduling.core.cells.reconfiguration import RunningGang
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import PreemptionRule
from scheduling.core.messages import message, sentence
from scheduling.core.reasons import Reason
from scheduling.core.round.gang_requests import group_name, parts_of, requests_of
from scheduling.core.round.gates import closed_gate
from scheduling.core.round_result import Preemption
from scheduling.core.values import HoldingJob, QueuedJob
from tessera.reasons import ReasonCode


def read_claims(found: Any) -> dict[str, Any] | None:
    """Parse and check a stored claim; None if it is not readable, and the job claims again.

    One unreadable row, such as of another version, must not stop every round.
    """
    try:
        parts = [[_placed(*placed) for placed in part] for part in found["parts"]]
        demanded = parts_of(Demand.from_json(found["demand"]))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    return found if len(parts) == len(demanded) else None


def groups_of(job: QueuedJob) -> list[str]:
    """Return the engine's names for the parts of a job's gang, as claimed or as requested."""
    demand = Demand.from_json(job.claims["demand"]) if job.claims else job.demand
    return [group_name(job.id, part) for part in range(len(parts_of(demand)))]


def claimed_requests(engine: CellEngine, job: QueuedJob) -> list[GangRequest]:
    """Build engine requests with claims, part by part."""
    gangs = (engine.gangs.get(group) for group in groups_of(job))
    return [gang.request for gang in gangs if gang is not None]


def claims_of(engine: CellEngine, job: QueuedJob) -> dict[str, Any] | None:
    """Return the claims of a job as a document, or None if it has none left."""
    demand = job.demand
    views = [engine.group(group_name(job.id, n)) for n in range(len(parts_of(demand)))]
    found = [view for view in views if view is not None]
    if len(found) < len(views) or all(v.state is not GroupState.PREEMPTING for v in found):
        return None
    return {
        "demand": demand.to_json(),
        "parts": [
            [
                [placed.member, list(placed.leaves), list(placed.virtual)]
                for placed in view.placements
            ]
            for view in found
        ],
    }


def claimed_gangs(
    waiting: Iterable[QueuedJob], vcs: Mapping[int, str], now: float
) -> Iterator[RunningGang]:
    """Yield the gangs for which waiting jobs have claims, in the order of takeover.

    Args:
        waiting: all waiting jobs; jobs that may not start now have no claims.
        vcs: names of the virtual clusters.
        now: seconds since the epoch.
    """
    claiming = [job for job in waiting if job.claims and closed_gate(job, now) is None]
    for job in sorted(claiming, key=lambda job: (-job.priority, job.id)):
        assert job.claims is not None  # noqa: S101 (chosen so)
        asked = replace(job, demand=Demand.from_json(job.claims["demand"]))
        requests = requests_of(asked, vcs[job.vc])
        for request, part in zip(requests, job.claims["parts"], strict=True):
            yield RunningGang(request=request, placements=tuple(_placed(*one) for one in part))


def _placed(member: int, leaves: list[str], virtual: list[str]) -> Placed:
    return Placed(
        member=member,
        node="",
        devices=(),
        leaves=tuple(leaves),
        virtual=tuple(virtual),
        chain="",
    )


INTER_VC_RULE: Final = sentence("victim-of-guarantee")
INTRA_VC_RULE: Final = sentence("victim-of-priority")


def order_out(victim: HoldingJob, job: QueuedJob) -> Preemption:
    """Build the preemption of a running job for ``job``, with the rule that allows it."""
    same_vc = victim.vc == job.vc
    own = PreemptionRule.INTRA_VC if same_vc else PreemptionRule.INTER_VC
    borrows = victim.job_class is JobClass.OPPORTUNISTIC
    return Preemption(
        job_id=victim.id,
        for_job=job.id,
        rule=INTRA_VC_RULE if same_vc else INTER_VC_RULE,
        cause=PreemptionRule.OPPORTUNISTIC if borrows else own,
    )


def waits_for(victims: Sequence[int]) -> Reason:
    """Build the reason of a job that waits for its victims to leave."""
    return Reason(
        code=ReasonCode.WAITING_VICTIM_CHECKPOINT,
        message=message("waits-for-victims", n=len(victims)),
        blocked_by=tuple(victims),
    )


def given_to(others: Sequence[int]) -> Reason:
    """Build the reason of a job whose cells its policy has just assigned to others."""
    return Reason(
        code=ReasonCode.BEHIND_HIGHER_PRIORITY,
        message=message("policy-gave-away"),
        blocked_by=tuple(others),
    )
