"""Members of gangs that may still be on their nodes, and their directives."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from django.db.models import QuerySet

from scheduling.enums import MemberStep
from scheduling.runs.models import Member
from tenants.roles import Permission
from tenants.viewers import Viewer

GONE: Final = (MemberStep.EXITED, MemberStep.RELEASED)
_MEMBER_COLUMNS: Final = (
    "id",
    "role",
    "rank",
    "devices",
    "step",
    "step_since",
    "stop_asked_at",
    "pid",
    "boot_id",
    "started_at",
    "lease_renewed_at",
    "attempt__job_id",
    "attempt__job__name",
    "attempt__job__tenant_id",
)


class ListedMember(NamedTuple):
    """Columns of an open member for the list of all nodes."""

    step: str
    pid: int | None
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMember:
    """A member that may still be on a node.

    Attributes:
        job_id: None if the viewer may not see the job.
        lease_renewed_at: time at which the node last confirmed its lease.
    """

    member_id: int
    job_id: int | None
    job: str
    tenant: str
    role: str
    rank: int
    devices: tuple[int, ...]
    step: str
    step_since: datetime
    stopping: bool
    pid: int | None
    boot_id: str
    started_at: datetime | None
    lease_renewed_at: datetime | None


def ranks_by_node() -> Mapping[int, list[ListedMember]]:
    """Return the open members by node ID, unordered, in one query."""
    found: dict[int, list[ListedMember]] = defaultdict(list)
    # With an order by ID, SQLite would read all past members.
    open_now = _open().order_by()
    for node_id, *rank in open_now.values_list("node_id", *ListedMember._fields):
        found[node_id].append(ListedMember._make(rank))
    return found


def open_members(viewer: Viewer, node_id: int) -> list[OpenMember]:
    """Return the open members of one node, in one query."""
    rows = _open().filter(node_id=node_id)
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    found = []
    for values in rows.values_list(*_MEMBER_COLUMNS):
        row = dict(zip(_MEMBER_COLUMNS, values, strict=True))
        tenant_id = row["attempt__job__tenant_id"]
        is_visible = visible is None or tenant_id in visible
        found.append(
            OpenMember(
                member_id=row["id"],
                job_id=row["attempt__job_id"] if is_visible else None,
                job=row["attempt__job__name"] if is_visible else "",
                tenant=viewer.name_of(tenant_id),
                role=row["role"] if is_visible else "",
                rank=row["rank"] if is_visible else 0,
                devices=tuple(row["devices"]),
                step=row["step"],
                step_since=row["step_since"],
                stopping=row["stop_asked_at"] is not None,
                pid=row["pid"],
                boot_id=row["boot_id"],
                started_at=row["started_at"],
                lease_renewed_at=row["lease_renewed_at"],
            )
        )
    return found


def _open() -> QuerySet[Member]:
    """Return members that may still be on their nodes."""
    return Member.objects.filter(removed_at=None).exclude(step__in=GONE).order_by("id")


class DirectiveKind(StrEnum):
    """The next directive to a node for one member."""

    PREPARE = "prepare"
    GO = "go"
    CANCEL = "cancel"
    STOP = "stop"
    TUNE = "tune"
    SHARE = "share"
    NOTHING = "nothing"


def directive_of(member: Member) -> DirectiveKind:
    """Return the directive for ``member``, from its step, stop request and settings."""
    step = MemberStep(member.step)
    if member.stop_asked_at is not None:
        before_go = (MemberStep.WAITING, MemberStep.PREPARING, MemberStep.PREPARED)
        return DirectiveKind.CANCEL if step in before_go else DirectiveKind.STOP
    if step in (MemberStep.WAITING, MemberStep.PREPARING):
        return DirectiveKind.PREPARE
    if step is MemberStep.RUNNING and member.settings_told < member.settings_version:
        return DirectiveKind.TUNE
    if step is MemberStep.RUNNING and member.share_told < member.share_version:
        return DirectiveKind.SHARE
    return DirectiveKind.GO if step is MemberStep.STARTING else DirectiveKind.NOTHING
