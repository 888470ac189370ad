"""Nodes for pages and REST: rows of the list, and details of one node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db.models import Max

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.cluster import NodeView, node_views
from scheduling.clusters.queries.cluster_facts import cluster_facts, facts_of_node
from scheduling.clusters.queries.conditions import (
    ConditionRow,
    GpuRow,
    condition_rows,
    gpu_rows,
)
from scheduling.clusters.queries.cpu_pools import CpuUse, cpu_use_of
from scheduling.clusters.queries.node_isolation import (
    NodeIsolation,
    isolation_of,
    names_of_tenants,
    state_reason_for,
    with_networks,
    with_owners,
)
from scheduling.clusters.queries.node_truth import TruthRow, truth_of
from scheduling.core.jump_hosts import jump_host_text
from scheduling.core.messages import sentence
from scheduling.enums import MemberStep, NodeState
from scheduling.runs.models import CanaryRun
from scheduling.runs.queries.node_members import (
    ListedMember,
    OpenMember,
    open_members,
    ranks_by_node,
)
from tenants.errors import NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.hardware import Condition
from tessera.messages import plain

_LIST_COLUMNS: Final = (
    "boot_id",
    "contact",
    "container_network",
    "cpus",
    "data_interface",
    "dedicated_to",
    "has_docker",
    "held",
    "host",
    "isolation",
    "isolation_level",
    "job_network",
    "labels",
    "last_contact_at",
    "memory_bytes",
    "plain_network",
    "port",
    "probed_at",
    "user",
    "version",
    "visible_paths",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node in the list.

    Attributes:
        view: name, state, cells and devices, with the reason that the viewer may read.
        healthy: number of healthy devices.
        in_use: number of devices in use.
        jobs: number of jobs with an open member on the node.
        running: number of members whose process the node has confirmed.
        agrees: whether database and node agree on every open member; None without contact.
        host: host of its address; empty for viewers who may not manage nodes.
        port: port of its address; 0 for these viewers.
        user: user of its address; empty for these viewers.
        isolation: isolation of jobs, and the tenants that may use the node.
        data_interface: network interface of gangs that an admin set; empty for a free choice.
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
    isolation: NodeIsolation
    data_interface: str = ""

    @property
    def can_drain(self) -> bool:
        """Return whether a drain has an effect; a cordoned node without jobs needs none."""
        return self.held == "" or (self.held == "cordoned" and self.in_use > 0)

    @property
    def id(self) -> int:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        return self.view.state


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMark:
    """The quarantine of a device by an admin; ``until`` is None until an admin ends it."""

    device: int
    reason: str
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRow:
    """The newest canary job of a device.

    Attributes:
        job: its ID; None if the job was deleted.
        requested_by: name of the admin who requested it; empty if the portal did.
        result: empty while the job runs.
        figures: bytes and seconds of the test, and others that it reported.
    """

    device: int
    job: int | None
    requested_by: str
    requested_at: datetime
    ended_at: datetime | None
    result: str
    cause: str
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """All data of a node's page.

    Attributes:
        gpus: identities of its GPUs; empty for viewers who may not manage nodes.
        marks: quarantines of its devices by admins.
        canaries: newest canary jobs of its devices; empty for viewers who may not manage nodes.
        conditions: conditions of its GPUs and their driver at the last probe.
        inventory: the last inventory; empty for viewers who may not manage nodes, as are the host
            key and reasons with addresses.
        can_manage: whether the viewer may cordon, drain, edit and remove the node.
        cpu_use: its CPUs and memory: share of the devices, and use by jobs without devices.
    """

    row: NodeRow
    members: tuple[OpenMember, ...]
    truth: tuple[TruthRow, ...]
    contact_reason: str
    held_reason: str
    health_reasons: tuple[str, ...]
    boot_id: str
    driver: str
    cuda: str
    gpus: tuple[GpuRow, ...]
    marks: tuple[DeviceMark, ...]
    canaries: tuple[CanaryRow, ...]
    conditions: tuple[ConditionRow, ...]
    inventory: Mapping[str, Any]
    warnings: tuple[str, ...]
    host_key: str
    host_key_fingerprint: str
    jump_host: str
    jump_host_key_fingerprint: str
    declared_dead_at: datetime | None
    created_at: datetime
    can_manage: bool
    cpu_use: CpuUse


def list_nodes(viewer: Viewer) -> tuple[NodeRow, ...]:
    """Return all nodes by name, in a fixed number of queries."""
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-nodes"))
    views = node_views(cluster_facts(), viewer)
    nodes = with_owners(Node.objects.filter(removed_at=None).only(*_LIST_COLUMNS))
    by_id = {node.pk: node for node in nodes.order_by()}
    members = ranks_by_node()
    names = names_of_tenants(by_id.values())
    bare = [view.id for view in views if not any(device.healthy for device in view.devices)]
    for pk, inventory in Node.objects.filter(pk__in=bare).values_list("pk", "inventory"):
        if pk in by_id:
            by_id[pk].inventory = inventory
    return tuple(
        _row(viewer, by_id[view.id], view, members[view.id], names)
        for view in views
        if view.id in by_id
    )


def node_detail(viewer: Viewer, node_id: int) -> NodeDetail:
    """Return the details of one node.

    Raises:
        NotFoundError: the node is unknown.
    """
    node = node_for(viewer, node_id)
    facts = facts_of_node(node.pk)
    view = next(iter(node_views(facts, viewer)), None)
    if view is None:  # removed a moment ago
        raise _no_such_node(node_id)
    members = open_members(viewer, node.pk)
    devices = list(node.devices.filter(retired_at=None))
    may = viewer.can(Permission.MANAGE_NODES)
    found = node.inventory if isinstance(node.inventory, dict) else {}
    row = _row(viewer, node, view, members, names_of_tenants([node]))
    return NodeDetail(
        row=replace(row, isolation=with_networks(row.isolation, found, may_manage=may)),
        members=tuple(members),
        truth=truth_of(
            node,
            view,
            members=members,
            found=found,
            facts=facts,
            uuids={device.pk: device.uuid for device in devices},
        ),
        contact_reason=node.contact_reason if may else "",
        held_reason=node.held_reason,
        health_reasons=_health_reasons(view),
        boot_id=node.boot_id if may else "",
        driver=str(found.get("driver", "")),
        cuda=str(found.get("cuda", "")),
        gpus=gpu_rows(devices) if may else (),
        marks=tuple(
            DeviceMark(
                device=device.index, reason=device.disabled_reason, until=device.disabled_until
            )
            for device in devices
            if device.disabled_reason
        ),
        canaries=_canaries(devices) if may else (),
        conditions=_conditions(found, devices, may_manage=may),
        inventory=found if may else {},
        warnings=tuple(str(warning) for warning in found.get("warnings", ())) if may else (),
        host_key=node.host_key if may else "",
        host_key_fingerprint=node.host_key_fingerprint if may else "",
        jump_host=jump_host_text(node.jump_host) if may else "",
        jump_host_key_fingerprint=node.jump_host.get("host_key_fingerprint", "") if may else "",
        declared_dead_at=node.declared_dead_at,
        cpu_use=cpu_use_of(node, devices),
        created_at=node.created_at,
        can_manage=may,
    )


def _canaries(devices: Sequence[Device]) -> tuple[CanaryRow, ...]:
    tested = [device for device in devices if device.is_gpu]
    if not tested:
        return ()
    newest = CanaryRun.objects.filter(device__in=tested).order_by().values("device")
    runs = CanaryRun.objects.filter(pk__in=newest.annotate(newest=Max("pk")).values("newest"))
    numbers = {device.pk: device.index for device in tested}
    return tuple(
        CanaryRow(
            device=numbers[run.device_id],
            job=run.job_id,
            requested_by=run.requested_by,
            requested_at=run.requested_at,
            ended_at=run.ended_at,
            result=run.result,
            cause=run.cause,
            figures=run.figures,
        )
        for run in sorted(runs, key=lambda run: numbers[run.device_id])
    )


def _health_reasons(view: NodeView) -> tuple[str, ...]:
    return tuple(
        sentence(
            "device-reason",
            index=device.index,
            value=plain(device.health_reason or "unhealthy"),
        )
        for device in view.devices
        if not device.healthy
    )


def _conditions(
    found: Mapping[str, Any], devices: Sequence[Device], *, may_manage: bool
) -> tuple[ConditionRow, ...]:
    """Return the conditions; details, which may name processes, are only for managers."""
    conditions = [Condition.from_json(one) for one in found.get("conditions", ())]
    rows = condition_rows(conditions, devices)
    return rows if may_manage else tuple(replace(row, detail="") for row in rows)


def node_for(viewer: Viewer, node_id: int) -> Node:
    """Return one node, for services and for versions.

    Raises:
        NotFoundError: the node is unknown.
    """
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-nodes"))
    node = (
        with_owners(Node.objects.filter(pk=node_id, removed_at=None)).first()
        if 0 < node_id < 2**63
        else None
    )
    if node is None:
        raise _no_such_node(node_id)
    return node


def _no_such_node(node_id: int) -> NotFoundError:
    return NotFoundError(sentence("no-such-node"), field="id", value=node_id)


def _row(
    viewer: Viewer,
    node: Node,
    view: NodeView,
    members: Sequence[OpenMember | ListedMember],
    names: Mapping[int, str],
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
        data_interface=node.data_interface,
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        labels=dict(node.labels),
        host=node.host if may else "",
        port=node.port if may else 0,
        user=node.user if may else "",
        probed_at=node.probed_at,
        last_contact_at=node.last_contact_at,
        version=node.version,
        isolation=isolation_of(viewer, node, names),
    )


def _without_devices(node: Node, view: NodeView, *, may_manage: bool) -> str:
    """Return the reason why a node with contact takes no job; empty if it has a healthy device."""
    if any(device.healthy for device in view.devices) or node.probed_at is None:
        return ""
    found = node.inventory if isinstance(node.inventory, dict) else {}
    noticed = [str(warning) for warning in found.get("warnings", ())] if may_manage else []
    if noticed:
        return sentence("no-healthy-device-because", noticed="; ".join(noticed))
    if not view.devices and node.cpus:
        return sentence("node-without-devices")
    return sentence("no-healthy-device")


def _agrees(node: Node, members: Sequence[OpenMember | ListedMember]) -> bool:
    """Return whether every running member was started since the node's last boot."""
    return all(
        member.pid is not None and member.boot_id in ("", node.boot_id)
        for member in members
        if member.step == MemberStep.RUNNING
    )
