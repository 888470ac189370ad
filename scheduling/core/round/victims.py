"""Jobs that have to leave for another one: the orders, and what the other one is told."""

from collections.abc import Sequence
from typing import Final

from scheduling.core.jobspec import JobClass
from scheduling.core.lifecycle import PreemptionRule
from scheduling.core.messages import message, sentence
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.core.values import HoldingJob, Preemption, QueuedJob

INTER_VC_RULE: Final = sentence("victim-of-guarantee")
INTRA_VC_RULE: Final = sentence("victim-of-priority")


def order_out(victim: HoldingJob, job: QueuedJob) -> Preemption:
    """The order to a running job to leave for ``job``, by the rule that allows it."""
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
    """What a job is told whose cells are being freed for it."""
    return Reason(
        code=ReasonCode.WAITING_VICTIM_CHECKPOINT,
        message=message("waits-for-victims", n=len(victims)),
        blocked_by=tuple(victims),
    )


def given_to(others: Sequence[int]) -> Reason:
    """What a job is told whose cells its policy has just given to others."""
    return Reason(
        code=ReasonCode.BEHIND_HIGHER_PRIORITY,
        message=message("policy-gave-away"),
        blocked_by=tuple(others),
    )
