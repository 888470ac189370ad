"""Nodes as faces read them: rows of the list, and one node with what each side says of it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import QuerySet

from scheduling.enums import MemberStep, NodeState
from scheduling.models import Member, Node
from scheduling.selectors.cluster import DeviceView, NodeView, node_views
from scheduling.selectors.cluster_facts import ClusterFacts, cluster_facts, facts_of_node
from scheduling.selectors.node_reasons import state_reason_for
from tenants.errors import NotFoundError
from tenants.roles import Permission
from tenants.viewers import ANOTHER_TENANT, Viewer

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


_LIST_COLUMNS: Final = (
    "boot_id",
    "contact",
    "cpus",
    "has_docker",
    "held",
    "host",
    "labels",
    "last_contact_at",
    "memory_bytes",
    "port",
    "probed_at",
    "user",
    "version",
)


class _Rank(NamedTuple):
    """As much of an open member as the list of all nodes needs."""

    step: str
    pid: int | None
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node in the list.

    Attributes:
        view: name, state, cells and devices; its reason as the viewer may read it.
        healthy, in_use: devices.
        jobs: jobs with an open member here.
        running: members whose process the node has confirmed.
        agrees: database and node tell the same of every open member; None while the node is not
            heard.
        host, port, user: how it is reached; empty and 0 for those who may not manage nodes.
    """

    view: NodeView
    contact: str
    held: str
    healthy: int
    in_use: int
    jobs: int
    running: int
    agrees: bool | None
    has_docker: bool
    cpus: float
    memory_bytes: int
    labels: Mapping[str, str]
    host: str
    port: int
    user: str
    probed_at: datetime | None
    last_contact_at: datetime | None
    version: int

    @property
    def id(self) -> int:
        """Row of the node."""
        return self.view.id

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.view.name

    @property
    def state(self) -> str:
        """State of the node."""
        return self.view.state


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMember:
    """A rank that is not known to be gone from a node.

    Attributes:
        job_id: None when the viewer may not see the job.
        lease_renewed_at: when the node last confirmed that it may go on.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """What each side says of one device.

    Attributes:
        database: who holds it by its lease; empty for nobody.
        runner: the process that the node reported; empty for none.
        device: what the last probe found: present, missing, or unhealthy with the reason.
        verdict: ``agree``, or what does not fit.
    """

    device_index: int
    job_id: int | None
    database: str
    runner: str
    device: str
    verdict: str

    @property
    def agrees(self) -> bool:
        """Whether all three say the same."""
        return self.verdict == "agree"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """A node's page.

    Attributes:
        inventory: what the node said when it was probed last; empty for those who may not manage
            nodes, as are the host key and the reasons that name addresses.
        can_manage: the viewer may cordon, drain, edit and remove it.
    """

    row: NodeRow
    members: tuple[OpenMember, ...]
    truth: tuple[TruthRow, ...]
    contact_reason: str
    held_reason: str
    health_reasons: tuple[str, ...]
    boot_id: str
    driver: str
    inventory: Mapping[str, Any]
    warnings: tuple[str, ...]
    host_key: str
    host_key_fingerprint: str
    declared_dead_at: datetime | None
    created_at: datetime
    can_manage: bool


def list_nodes(viewer: Viewer) -> tuple[NodeRow, ...]:
    """All nodes by name, in a fixed number of queries, and one more where devices are missing."""
    viewer.require(Permission.VIEW_CLUSTER, what="the nodes")
    views = node_views(cluster_facts(), viewer)
    nodes = Node.objects.filter(removed_at=None).only(*_LIST_COLUMNS)
    by_id = {node.pk: node for node in nodes.order_by()}
    members = _ranks()
    bare = [view.id for view in views if not any(device.healthy for device in view.devices)]
    for pk, inventory in Node.objects.filter(pk__in=bare).values_list("pk", "inventory"):
        if pk in by_id:
            by_id[pk].inventory = inventory
    return tuple(
        _row(viewer, by_id[view.id], view, members[view.id]) for view in views if view.id in by_id
    )


def node_detail(viewer: Viewer, node_id: int) -> NodeDetail:
    """One node.

    Raises:
        NotFoundError: there is no such node.
    """
    node = node_for(viewer, node_id)
    facts = facts_of_node(node.pk)
    view = next(iter(node_views(facts, viewer)), None)
    if view is None:  # it was removed a moment ago
        raise _no_such_node(node_id)
    members = _open_members(viewer, node.pk)
    may = viewer.can(Permission.MANAGE_NODES)
    found = node.inventory if isinstance(node.inventory, dict) else {}
    return NodeDetail(
        row=_row(viewer, node, view, members),
        members=tuple(members),
        truth=_truth(node, view, members, found, facts),
        contact_reason=node.contact_reason if may else "",
        held_reason=node.held_reason,
        health_reasons=tuple(
            f"Device {device.index}: {device.health_reason or 'unhealthy'}"
            for device in view.devices
            if not device.healthy
        ),
        boot_id=node.boot_id if may else "",
        driver=str(found.get("driver", "")),
        inventory=found if may else {},
        warnings=tuple(str(warning) for warning in found.get("warnings", ())) if may else (),
        host_key=node.host_key if may else "",
        host_key_fingerprint=node.host_key_fingerprint if may else "",
        declared_dead_at=node.declared_dead_at,
        created_at=node.created_at,
        can_manage=may,
    )


def node_for(viewer: Viewer, node_id: int) -> Node:
    """The row of one node, for services and for versions.

    Raises:
        NotFoundError: there is no such node.
    """
    viewer.require(Permission.VIEW_CLUSTER, what="the nodes")
    node = (
        Node.objects.filter(pk=node_id, removed_at=None).first() if 0 < node_id < 2**63 else None
    )
    if node is None:
        raise _no_such_node(node_id)
    return node


def _no_such_node(node_id: int) -> NotFoundError:
    return NotFoundError("There is no such node.", field="id", value=node_id)


def _open() -> QuerySet[Member]:
    """Members that are not known to be gone."""
    return Member.objects.filter(removed_at=None).exclude(step__in=GONE).order_by("id")


def _ranks() -> Mapping[int, list[_Rank]]:
    """Open members by node, in one query."""
    found: dict[int, list[_Rank]] = defaultdict(list)
    for node_id, *rank in _open().values_list("node_id", *_Rank._fields):
        found[node_id].append(_Rank._make(rank))
    return found


def _open_members(viewer: Viewer, node_id: int) -> list[OpenMember]:
    """The open members of one node, in one query."""
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


def _row(
    viewer: Viewer, node: Node, view: NodeView, members: Sequence[OpenMember | _Rank]
) -> NodeRow:
    may = viewer.can(Permission.MANAGE_NODES)
    running = sum(member.step == MemberStep.RUNNING for member in members)
    is_heard = node.contact == "ready"
    told = state_reason_for(view.state, view.state_reason, may_manage=may)
    if view.state == NodeState.READY:
        told = _without_devices(node, view, may_manage=may)
    return NodeRow(
        view=view if told == view.state_reason else replace(view, state_reason=told),
        contact=node.contact,
        held=node.held,
        healthy=sum(device.healthy for device in view.devices),
        in_use=sum(device.occupant is not None for device in view.devices),
        jobs=len({device.occupant.allocation for device in view.devices if device.occupant}),
        running=running,
        agrees=_agrees(node, members) if is_heard else None,
        has_docker=node.has_docker,
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        labels=dict(node.labels),
        host=node.host if may else "",
        port=node.port if may else 0,
        user=node.user if may else "",
        probed_at=node.probed_at,
        last_contact_at=node.last_contact_at,
        version=node.version,
    )


def _without_devices(node: Node, view: NodeView, *, may_manage: bool) -> str:
    """Why a node that answers takes no job all the same; empty while it has a healthy device."""
    if any(device.healthy for device in view.devices) or node.probed_at is None:
        return ""
    found = node.inventory if isinstance(node.inventory, dict) else {}
    noticed = [str(warning) for warning in found.get("warnings", ())] if may_manage else []
    return f"no healthy device{': ' if noticed else ''}{'; '.join(noticed)}"


def _agrees(node: Node, members: Sequence[OpenMember | _Rank]) -> bool:
    """Every member that is said to run was started since the node's last boot."""
    return all(
        member.pid is not None and member.boot_id in ("", node.boot_id)
        for member in members
        if member.step == MemberStep.RUNNING
    )


def _truth(
    node: Node,
    view: NodeView,
    members: Sequence[OpenMember],
    found: Mapping[str, Any],
    facts: ClusterFacts,
) -> tuple[TruthRow, ...]:
    by_device = {index: member for member in members for index in member.devices}
    listed = found.get("devices")
    present = (
        {entry.get("index") for entry in listed if isinstance(entry, dict)}
        if isinstance(listed, list)
        else None
    )
    leased = {lease.device_id for lease in facts.leases if not lease.reserved}
    return tuple(
        _truth_row(
            node=node,
            device=device,
            member=by_device.get(device.index),
            is_leased=device.id in leased,
            is_present=present is None or device.index in present,
        )
        for device in view.devices
    )


def _truth_row(
    *,
    node: Node,
    device: DeviceView,
    member: OpenMember | None,
    is_leased: bool,
    is_present: bool,
) -> TruthRow:
    occupant = device.occupant if is_leased else None
    database = ""
    if occupant is not None:
        is_known = occupant.job_id is not None
        database = occupant.name if is_known else f"a job of {occupant.tenant or ANOTHER_TENANT}"
    runs = member is not None and member.step == MemberStep.RUNNING
    says = "" if member is None else (f"pid {member.pid}" if runs else member.step)
    condition = "present" if is_present else "missing"
    if not device.healthy:
        condition = device.health_reason or "unhealthy"
    return TruthRow(
        device_index=device.index,
        job_id=occupant.job_id if occupant else None,
        database=database,
        runner=says,
        device=condition,
        verdict=_verdict(node, member, is_leased=is_leased, is_present=is_present),
    )


def _verdict(node: Node, member: OpenMember | None, *, is_leased: bool, is_present: bool) -> str:
    """The first thing that does not fit, the worst first."""
    faults = (
        (node.contact != "ready", "not yet known"),
        (member is not None and not is_leased, "runs without a lease"),
        (is_leased and member is None, "leased, and nothing runs"),
        (is_leased and not is_present, "leased, and the device is gone"),
        (not is_present, "the device is gone"),
        (
            member is not None and member.boot_id not in ("", node.boot_id),
            "the node has restarted since",
        ),
    )
    return next((words for is_so, words in faults if is_so), "agree")
