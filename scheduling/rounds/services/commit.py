"""What a round does because of policies besides starts: refusals, faults, and the next wish."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from django.db import transaction

from scheduling import ports
from scheduling.clusters.models import VirtualCluster
from scheduling.core.lifecycle import FailureClass, JobEventKind, PreemptionRule
from scheduling.core.round.policy_answers import PLAIN, with_stand_in
from scheduling.core.values import ClusterSnapshot, Preemption, Rejection, RoundResult
from scheduling.jobs.models import Job, JobSecret
from scheduling.jobs.services.lifecycle import Note, try_job_event
from tenants.audit import Actor, record

SYSTEM: Final = Actor.system("rounds")
EARLIEST_SECONDS: Final = 1.0
"""No policy is asked again sooner, whatever it wishes."""


def reject_jobs(rejections: Sequence[Rejection], *, now: datetime) -> tuple[int, ...]:
    """End queued jobs that their policies refuse for good; returns those that it has ended."""
    refused = []
    for rejection in rejections:
        reason = rejection.reason
        after = try_job_event(
            job_id=rejection.job_id,
            event=JobEventKind.FAIL,
            now=now,
            note=Note(text=reason.text, detail={"code": reason.code.value}),
            failure_class=FailureClass.USER,
            end_message=f"{reason.code.value}: {reason.text}"[:500],
        )
        if after is not None:
            refused.append(rejection.job_id)
    JobSecret.objects.filter(job_id__in=refused).delete()
    return tuple(refused)


def audit_reverts(preemptions: Sequence[Preemption]) -> None:
    """Say in the audit log which jobs go back to the size that they had, and why."""
    reverted = {
        one.job_id: one.rule for one in preemptions if one.cause == PreemptionRule.REVERT.value
    }
    if not reverted:
        return
    for job in Job.objects.unscoped().filter(pk__in=reverted).order_by("id"):
        record(
            actor=SYSTEM,
            action="job.revert",
            obj=job,
            tenant=job.tenant_id,
            message=reverted[job.pk],
        )


def new_faults(snapshot: ClusterSnapshot, faults: Mapping[int, str]) -> dict[int, str]:
    """Faults of policies that are not those of the round before; empty: over."""
    before = {vc.id: vc.policy_fault for vc in snapshot.vcs}
    return {vc: fault for vc, fault in faults.items() if fault != before.get(vc, "")}


def write_faults(snapshot: ClusterSnapshot, result: RoundResult, *, now: datetime) -> None:
    """Say on their virtual clusters and in the audit log which policies fail, or do so no more.

    Only what is new is written: a policy that fails in every round has one row.
    """
    known = {vc.id: vc for vc in snapshot.vcs}
    for vc_id, fault in new_faults(snapshot, result.policy_faults).items():
        vc, instead = known[vc_id], result.stand_ins.get(vc_id, PLAIN)
        VirtualCluster.objects.unscoped().filter(pk=vc_id).update(
            policy_fault=fault, policy_fault_at=now if fault else None
        )
        record(
            actor=SYSTEM,
            action="policy.fail" if fault else "policy.recover",
            object_type="virtualcluster",
            object_id=vc_id,
            object_name=vc.name,
            before={"policy": vc.policy, "fault": vc.policy_fault},
            after={"policy": instead if fault else vc.policy, "fault": fault},
            tenant=vc.tenant,
            message=with_stand_in(fault, instead) if fault else "",
        )


def announce_wake(wake: float | None, *, now: datetime, round_seconds: float) -> None:
    """Request a round at the instant that a policy wants, if the next tick comes too late."""
    if wake is None:
        return
    seconds = max(EARLIEST_SECONDS, wake - now.timestamp())
    if seconds < round_seconds:
        at = datetime.fromtimestamp(now.timestamp() + seconds, tz=UTC)
        transaction.on_commit(lambda: ports.bound().rounds.request_at(at))
