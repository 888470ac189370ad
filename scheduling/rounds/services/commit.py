"""Writes of a round besides starts: rejections, reasons, bindings, queue order, next wake-up."""

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.db import connection, transaction

from scheduling import ports
from scheduling.clusters.models import VirtualCluster
from scheduling.common.canonical_json import canonical_json
from scheduling.core.lifecycle import FailureClass, JobEventKind, JobState, PreemptionRule
from scheduling.core.messages import sentence
from scheduling.core.reasons import Reason
from scheduling.core.round.decide import Line, Lines
from scheduling.core.round.policy_answers import PLAIN, with_stand_in
from scheduling.core.round_result import Preemption, Rebinding, Rejection, RoundResult
from scheduling.core.values import ClusterSnapshot
from scheduling.jobs.models import Job, JobSecret
from scheduling.jobs.services.lifecycle import Note, record_job_events, try_job_event
from scheduling.rounds.models import QueueOrder
from scheduling.runs.models import Attempt, Lease
from tenants.audit import Actor, record
from tessera.reasons import ReasonCode

SYSTEM: Final = Actor.system("rounds")
EARLIEST_SECONDS: Final = 1.0
"""Lower bound of the time until a policy's requested next round."""


def reject_jobs(rejections: Sequence[Rejection], *, now: datetime) -> tuple[int, ...]:
    """End queued jobs permanently that their policies reject, and return their IDs."""
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
    """Record in the audit the jobs that return to their former size, with the rule."""
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
    """Return the policy faults that changed since the last round; an empty text means fixed."""
    before = {vc.id: vc.policy_fault for vc in snapshot.vcs}
    return {vc: fault for vc, fault in faults.items() if fault != before.get(vc, "")}


def write_faults(snapshot: ClusterSnapshot, result: RoundResult, *, now: datetime) -> None:
    """Record on virtual clusters and in the audit which policies started or stopped failing.

    Only changes are written: a policy that fails in every round has one audit row.
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
    """Request a round at the time that a policy needs, if the next regular round is too late."""
    if wake is None:
        return
    seconds = max(EARLIEST_SECONDS, wake - now.timestamp())
    if seconds < round_seconds:
        at = datetime.fromtimestamp(now.timestamp() + seconds, tz=UTC)
        transaction.on_commit(lambda: ports.bound().rounds.request_at(at))


MAX_TEXT: Final = 500
QUEUED: Final = JobState.QUEUED.value

# The cost of a CASE expression with one branch per job grows with the square of their number.
# PostgreSQL reads all rows from one parameter. SQLite runs in this process, so one prepared
# statement is executed for each row. SQLite updates the index of a column that is set, also to its
# former value, so an unchanged code is not set.
_SQLITE: Final = """
    UPDATE {table} SET reason_text = %s, reason = %s, reason_code = %s WHERE id = %s AND state = %s
"""
_SQLITE_SAME_CODE: Final = """
    UPDATE {table} SET reason_text = %s, reason = %s WHERE id = %s AND state = %s
"""
_POSTGRESQL: Final = """
    UPDATE {table} SET reason_code = new.code, reason_text = new.text, reason = new.detail
    FROM jsonb_to_recordset(%s::jsonb) AS new(id bigint, code text, text text, detail jsonb)
    WHERE {table}.id = new.id AND {table}.state = %s
"""


def store_reasons(
    reasons: Mapping[int, Reason],
    details: Mapping[int, Mapping[str, Any]],
    *,
    same_code: Container[int] = frozenset(),
) -> None:
    """Write the reason of each job that is still queued.

    Args:
        reasons: by job id; jobs with the same reason share one object, which is encoded once.
        details: ``reason_detail`` of each, by ``id`` of the reason.
        same_code: jobs whose stored reason has the same code; only rounds write codes.
    """
    if not reasons:
        return
    unique = {id(reason): reason for reason in reasons.values()}
    table = connection.ops.quote_name(Job._meta.db_table)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            encoded = {
                key: (reason.text[:MAX_TEXT], canonical_json(details[key]).decode())
                for key, reason in unique.items()
            }
            cursor.executemany(
                _SQLITE_SAME_CODE.format(table=table),
                [
                    (*encoded[id(reason)], job_id, QUEUED)
                    for job_id, reason in reasons.items()
                    if job_id in same_code
                ],
            )
            cursor.executemany(
                _SQLITE.format(table=table),
                [
                    (*encoded[id(reason)], reason.code.value, job_id, QUEUED)
                    for job_id, reason in reasons.items()
                    if job_id not in same_code
                ],
            )
        else:
            spelled = {
                key: {
                    "code": reason.code.value,
                    "text": reason.text[:MAX_TEXT],
                    "detail": details[key],
                }
                for key, reason in unique.items()
            }
            rows = [{"id": job_id, **spelled[id(reason)]} for job_id, reason in reasons.items()]
            cursor.execute(_POSTGRESQL.format(table=table), [json.dumps(rows), QUEUED])


def reason_detail(reason: Reason) -> dict[str, Any]:
    """Return the parameters of a reason, which are stored besides code and text."""
    detail = reason.to_json()
    if reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT:
        detail["waiting_for"] = list(reason.blocked_by)
    return detail


LOST: Final = "guarantee_lost"
REGAINED: Final = "guarantee_regained"
_LOST_TEXT: Final = sentence("borrows-now")
_REGAINED_TEXT: Final = sentence("guaranteed-now")


def write_rebindings(
    *, rebindings: Iterable[Rebinding], round_number: int, now: datetime
) -> tuple[int, ...]:
    """Write the virtual leaf of each lease and an event of each job, in the round's transaction.

    Jobs that have released their devices meanwhile are skipped.

    Args:
        rebindings: the changed bindings of the round.
        round_number: number of the round, for the events.
        now: time to store.

    Returns:
        The IDs of the jobs that were written.
    """
    wanted = {
        (rebinding.job_id, leaf.address): leaf.virtual
        for rebinding in rebindings
        for leaf in rebinding.leaves
    }
    if not wanted:
        return ()
    rows = Lease.objects.filter(released_at=None, job_id__in={job_id for job_id, _ in wanted})
    leases = []
    for lease in rows.select_related("device").order_by("id"):
        virtual = wanted.get((lease.job_id, lease.device.address))
        if virtual is not None:
            lease.virtual_cell = virtual
            leases.append(lease)
    Lease.objects.bulk_update(leases, ["virtual_cell"], batch_size=500)
    lost = {lease.job_id for lease in leases if not lease.virtual_cell}
    found = {lease.job_id for lease in leases}
    _record_guarantee_change(lost, borrows=True, round_number=round_number, now=now)
    _record_guarantee_change(found - lost, borrows=False, round_number=round_number, now=now)
    return tuple(sorted(found))


def _record_guarantee_change(
    jobs: set[int], *, borrows: bool, round_number: int, now: datetime
) -> None:
    if not jobs:
        return
    attempts = Attempt.objects.filter(job_id__in=jobs, ended_at=None)
    attempts.update(opportunistic=borrows)
    numbers = dict(attempts.values_list("job_id", "number"))
    text = _LOST_TEXT if borrows else _REGAINED_TEXT
    record_job_events(
        notes={
            job_id: Note(text=text, attempt=numbers.get(job_id), detail={"round": round_number})
            for job_id in sorted(jobs)
        },
        kind=LOST if borrows else REGAINED,
        now=now,
    )


def write_lines(lines: Lines) -> None:
    """Store the queue orders that have changed, in the round's transaction."""
    stored = dict(QueueOrder.objects.values_list("virtual_cluster_id", "digest"))
    rows = []
    for vc_id in sorted(stored.keys() | lines.keys()):
        line = lines.get(vc_id, Line())
        digest = _digest(line)
        if stored.get(vc_id) != digest:
            rows.append(
                QueueOrder(
                    virtual_cluster_id=vc_id,
                    guaranteed=line.guaranteed,
                    opportunistic=line.opportunistic,
                    digest=digest,
                )
            )
    if rows:
        QueueOrder.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["virtual_cluster"],
            update_fields=["guaranteed", "opportunistic", "digest"],
        )


def _digest(line: Line) -> str:
    spelled = json.dumps([line.guaranteed, line.opportunistic])
    return hashlib.sha256(spelled.encode()).hexdigest()[: QueueOrder.DIGEST_LENGTH]
