"""One job with all data of its page: attempts, ranks, placement, specification."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import F

from scheduling.core.jobspec.amending import version_of
from scheduling.core.lifecycle import EVICTED, EndReason, end_reason, end_sentence
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
    """One rank of one role on its node.

    Attributes:
        rank: index within the role; ``node_rank``: index within the gang.
        devices: indices on the node.
        cells: addresses of the devices' leaves, in the same order.
        stopping: the notice to leave was sent.
        isolation: the level at which it runs; empty until then.
        network: ``own`` or ``shared`` with its node; empty before it runs.
        warnings: codes: protections that the node does not give.
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
        opportunistic: it runs outside its virtual cluster's guarantee.
        outcome: succeeded, failed, stopped; empty while it is open.
        end_reason: why it ended, an ``EndReason``; empty while it is open.
        end_text: the same as a sentence, with the checkpoint of an evicted attempt.
        layout: logical workers of each process, by member; None: it has none.
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

    @property
    def is_evicted(self) -> bool:
        """Whether the scheduler or a drain took its devices."""
        return self.end_reason in EVICTED


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """The part of a placement on one node.

    Attributes:
        tree: the node's cells.
        ranks: ``worker 0`` by device index.
    """

    node_id: int
    node: str
    tree: CellView
    ranks: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """A job's page.

    Attributes:
        attempts: oldest first.
        placement: of the newest attempt, one entry a node.
        spec: canonical, with defaults and without secrets.
        effective: the specification with its resolved values (priority, class, tenant).
        source_text: the submitted text, if any.
        parts: of a job that is not a gang, the jobs of its instances.
        after: jobs that must succeed first, as far as the viewer may see them.
        can_stop: the viewer may stop it.
        can_release: it is held, and the viewer may release it.
        can_submit: the viewer may clone it.
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
        """Version of the specification, against which an edit is checked."""
        return version_of(self.spec)


def job_detail(viewer: Viewer, job_id: int) -> JobDetail:
    """One job with all data of its page, in a fixed number of queries.

    Raises:
        NotFoundError: unknown job, or the viewer may not see it.
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
    """The attempts of one job, oldest first.

    Raises:
        NotFoundError: unknown job, or the viewer may not see it.
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
    """Leaf address by device index, by member."""
    cells: dict[int, dict[int, str]] = defaultdict(dict)
    for member_id, index, address in Lease.objects.filter(job_id=job_id).values_list(
        "member_id", "device__index", "device__address"
    ):
        # The address of a device that has left the topology ends in ~ and its row.
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
    """A rank of an evicted attempt: its runner only knows that it was asked to stop."""
    if member.exit_cause != CAUSE_STOPPED:
        return member
    return replace(member, message="left after the preemption notice")


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
    """Warning codes of a rank: protections that its node does not give."""
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
