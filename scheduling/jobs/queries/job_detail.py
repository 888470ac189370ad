"""One job with its attempts, members, placement and specification."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import F

from scheduling.core.jobspec.amending import version_of
from scheduling.core.lifecycle import EVICTED, EndReason, end_reason, end_sentence
from scheduling.enums import SuspensionTier
from scheduling.jobs.models import Job, JobDependency
from scheduling.jobs.queries.events import visible_jobs_among
from scheduling.jobs.queries.instances import parts_of_job
from scheduling.jobs.queries.job_columns import can_release
from scheduling.jobs.queries.jobs import JobRow, rows_of_jobs, visible_job
from scheduling.runs.models import Attempt, Lease, Member, Preemption
from scheduling.topology.current import CellView, TopologyNow, current_topology
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.isolation import NETWORK_SHARED, NONE, NOT_ISOLATED, SHARED_NETWORK
from tessera.messages import sentence_from
from tessera.protocol import CAUSE_STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member: a rank of a role on its node.

    Attributes:
        rank: index within the role.
        node_rank: index within the gang.
        devices: device indices on the node.
        cells: leaf addresses of the devices, in the same order.
        stopping: whether the notice to leave was sent.
        isolation: actual isolation level; empty before the process runs.
        network: ``own``, or ``shared`` with the node; empty before the process runs.
        warnings: codes of protections that the node does not provide.
    """

    id: int
    role: str
    rank: int
    node_rank: int
    node_id: int
    node: str
    devices: tuple[int, ...]
    cells: tuple[str, ...]
    ports: Mapping[str, Sequence[int]]
    step: str
    step_since: datetime
    stopping: bool
    started_at: datetime | None
    exited_at: datetime | None
    exit_code: int | None
    exit_signal: int | None
    exit_cause: str
    failure_class: str
    message: str
    isolation: str = ""
    network: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One attempt.

    Attributes:
        opportunistic: whether it runs outside the guarantee of its virtual cluster.
        outcome: succeeded, failed or stopped; empty while the attempt is open.
        end_reason: an ``EndReason``; empty while the attempt is open.
        end_text: the end reason as a sentence, with the checkpoint of an evicted attempt.
        layout: logical workers of each process by member; None if the job has none.
        suspended_by: tier of its last suspension (``SuspensionTier``): in a turn of another job,
            or by the checkpoint with which it was evicted; empty without one.
        suspensions: number of its suspensions in turns.
        suspended_seconds: time for which they lasted.
    """

    id: int
    number: int
    round_number: int
    opportunistic: bool
    port: int
    created_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    outcome: str
    end_reason: str
    end_text: str
    exit_code: int | None
    failure_class: str
    message: str
    members: tuple[MemberView, ...]
    layout: Sequence[Sequence[int]] | None = None
    suspended_by: str = ""
    suspensions: int = 0
    suspended_seconds: float = 0.0

    @property
    def is_evicted(self) -> bool:
        """Return whether the scheduler or a drain took the devices of the attempt."""
        return self.end_reason in EVICTED


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """The part of a placement on one node.

    Attributes:
        tree: cells of the node.
        ranks: role and rank by device index, such as ``worker 0``.
    """

    node_id: int
    node: str
    tree: CellView
    ranks: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """All data of a job's page.

    Attributes:
        attempts: attempts, oldest first.
        placement: placement of the newest attempt, one entry per node.
        spec: canonical specification with defaults and without secrets.
        effective: specification with resolved values (priority, class, tenant).
        source_text: the submitted text; empty if there is none.
        parts: jobs of the instances, if the job is not a gang.
        after: jobs that must succeed first, as far as the viewer may see them.
        can_stop: whether the viewer may stop the job.
        can_release: whether the job is held and the viewer may release it.
        can_submit: whether the viewer may clone the job.
    """

    row: JobRow
    note: str
    held: bool
    not_before: datetime | None
    backoff_until: datetime | None
    first_started_at: datetime | None
    end_message: str
    failures: Mapping[str, int]
    excluded_nodes: tuple[str, ...]
    warnings: tuple[str, ...]
    spec: Mapping[str, Any]
    effective: Mapping[str, Any]
    source_text: str
    source_format: str
    cloned_from: int | None
    parts: tuple[int, ...]
    after: tuple[int, ...]
    attempts: tuple[AttemptView, ...]
    placement: tuple[NodePlacement, ...]
    can_stop: bool
    can_release: bool
    can_submit: bool

    @property
    def version(self) -> str:
        """Return the version of the specification, against which edits are checked."""
        return version_of(self.spec)


def job_detail(viewer: Viewer, job_id: int) -> JobDetail:
    """Return one job with all data of its page, in a fixed number of queries.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    job = visible_job(viewer, job_id)
    attempts = _attempts(job.pk)
    after = JobDependency.objects.filter(job=job).values_list("after_id", flat=True)
    known = visible_jobs_among(viewer, [*after, job.cloned_from_id])
    return JobDetail(
        row=rows_of_jobs(viewer, [job.pk])[job.pk],
        note=job.note,
        held=job.held,
        not_before=job.not_before,
        backoff_until=job.backoff_until,
        first_started_at=job.first_started_at,
        end_message=job.end_message,
        failures=dict(job.failures),
        excluded_nodes=tuple(job.excluded_nodes),
        warnings=tuple(sentence_from(each) for each in job.warnings),
        spec=job.spec,
        effective=_effective(job),
        source_text=job.source_text,
        source_format=job.source_format,
        cloned_from=job.cloned_from_id if job.cloned_from_id in known else None,
        parts=parts_of_job(viewer, job),
        after=tuple(sorted(known.intersection(after))),
        attempts=attempts,
        placement=_placement(attempts[-1], current_topology()) if attempts else (),
        can_stop=viewer.can_stop(job.tenant_id, job.owner_id),
        can_release=can_release(viewer, job),
        can_submit=viewer.can(Permission.SUBMIT_JOBS, job.tenant_id),
    )


def attempts_of_job(viewer: Viewer, job_id: int) -> tuple[AttemptView, ...]:
    """Return the attempts of one job, oldest first.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    return _attempts(visible_job(viewer, job_id).pk)


def _attempts(job_id: int) -> tuple[AttemptView, ...]:
    members: dict[int, list[MemberView]] = defaultdict(list)
    cells = _cells(job_id)
    for row in (
        Member.objects.filter(attempt__job_id=job_id)
        .annotate(node_name=F("node__name"))
        .order_by("attempt_id", "node_rank")
    ):
        members[row.attempt_id].append(_member(row, cells))
    rows = Attempt.objects.filter(job_id=job_id).select_related("preemption").order_by("number")
    return tuple(_attempt(row, members[row.pk]) for row in rows)


def _cells(job_id: int) -> Mapping[int, Mapping[int, str]]:
    """Return the leaf addresses by member and device index."""
    cells: dict[int, dict[int, str]] = defaultdict(dict)
    for member_id, index, address in Lease.objects.filter(job_id=job_id).values_list(
        "member_id", "device__index", "device__address"
    ):
        # The address of a retired device ends with ~ and its primary key.
        cells[member_id][index] = address.partition("~")[0]
    return cells


def _attempt(row: Attempt, members: Sequence[MemberView]) -> AttemptView:
    receipt: Preemption | None = getattr(row, "preemption", None)
    reason = _end_reason(row, receipt)
    if receipt is not None:
        members = [_on_notice(member) for member in members]
    return AttemptView(
        id=row.pk,
        number=row.number,
        round_number=row.round_number,
        opportunistic=row.opportunistic,
        port=row.port,
        created_at=row.created_at,
        running_at=row.running_at,
        ended_at=row.ended_at,
        outcome=row.outcome,
        end_reason=reason or "",
        end_text=_end_text(reason, receipt) if reason else "",
        exit_code=row.exit_code,
        failure_class=row.failure_class,
        message=row.message,
        members=tuple(members),
        layout=row.layout,
        suspended_by=SuspensionTier.CHECKPOINT if reason in EVICTED else row.suspended_by,
        suspensions=row.suspensions,
        suspended_seconds=row.suspended_seconds,
    )


def _end_reason(row: Attempt, receipt: Preemption | None) -> EndReason | None:
    if row.ended_at is None:
        return None
    return end_reason(
        outcome=row.outcome,
        failure_class=row.failure_class,
        evicted_by=receipt.cause if receipt else None,
    )


def _on_notice(member: MemberView) -> MemberView:
    """Return a member of an evicted attempt with a message about the notice."""
    if member.exit_cause != CAUSE_STOPPED:
        return member
    return replace(member, message="exited after the preemption notice")


def _end_text(reason: EndReason, receipt: Preemption | None) -> str:
    return end_sentence(
        reason,
        saved=receipt is not None and receipt.checkpoint_at is not None,
        step=receipt.checkpoint_step if receipt else None,
    )


def _member(row: Member, cells: Mapping[int, Mapping[int, str]]) -> MemberView:
    addresses = cells.get(row.pk, {})
    return MemberView(
        id=row.pk,
        role=row.role,
        rank=row.rank,
        node_rank=row.node_rank,
        node_id=row.node_id,
        node=row.node_name,  # type: ignore[attr-defined]  # annotated
        devices=tuple(row.devices),
        cells=tuple(addresses.get(index, "") for index in row.devices),
        ports=row.ports,
        step=row.step,
        step_since=row.step_since,
        stopping=row.stop_asked_at is not None,
        started_at=row.started_at,
        exited_at=row.exited_at,
        exit_code=row.exit_code,
        exit_signal=row.exit_signal,
        exit_cause=row.exit_cause,
        failure_class=row.failure_class,
        message=row.message,
        isolation=row.isolation,
        network=row.network,
        warnings=_warnings(row),
    )


def _warnings(row: Member) -> tuple[str, ...]:
    """Return warning codes of protections that the node of a member does not provide."""
    found = row.warnings.split()
    if row.isolation == NONE:
        found.append(NOT_ISOLATED)
    if row.network == SHARED_NETWORK:
        found.append(NETWORK_SHARED)
    return tuple(dict.fromkeys(found))


def _placement(attempt: AttemptView, topology: TopologyNow) -> tuple[NodePlacement, ...]:
    by_node: dict[tuple[int, str], dict[int, str]] = defaultdict(dict)
    for member in attempt.members:
        for index in member.devices:
            by_node[member.node_id, member.node][index] = f"{member.role} {member.rank}"
    return tuple(
        NodePlacement(
            node_id=node_id,
            node=name,
            tree=topology.tree_of(name),
            ranks=dict(sorted(ranks.items())),
        )
        for (node_id, name), ranks in by_node.items()
    )


def _effective(job: Job) -> dict[str, Any]:
    return {
        **job.spec,
        "virtual_cluster": job.virtual_cluster.name,
        "priority": job.priority,
        "class": job.job_class,
    }
