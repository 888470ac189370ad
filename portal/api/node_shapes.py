"""Nodes and devices as the API and the live messages show them."""

from datetime import datetime
from typing import Any, TypedDict

from scheduling.selectors.cluster import DeviceView
from scheduling.selectors.node_isolation import NodeIsolation
from scheduling.selectors.node_members import OpenMember
from scheduling.selectors.node_truth import TruthRow
from scheduling.selectors.nodes import NodeDetail, NodeRow
from scheduling.selectors.occupancy import Occupant
from scheduling.selectors.topology import CellView


class OccupantOut(TypedDict):
    """What holds a device; of a job that you may not see only the state and "another tenant"."""

    allocation: str
    tenant: str
    job: int | None
    name: str
    user: str
    virtual_cluster: str
    state: str
    opportunistic: bool
    reserved: bool


class DeviceOut(TypedDict):
    """One device: a GPU, or a declared CPU slot."""

    id: int
    index: int
    address: str
    type: str
    is_gpu: bool
    healthy: bool
    health_reason: str
    occupant: OccupantOut | None


class CellOut(TypedDict):
    """A cell and what is inside it; ``device`` is the index of a leaf on its node."""

    level: str
    type: str
    address: str
    device: int | None
    children: "list[CellOut]"


class LevelOut(TypedDict):
    """One isolation level as a node was tried; `remedy` makes it available."""

    level: str
    available: bool
    cause: str
    detail: str
    remedy: str


class NetworkOut(TypedDict):
    """One own network of plain jobs as a node was tried; `remedy` makes it available."""

    network: str
    available: bool
    cause: str
    detail: str
    remedy: str


class VisiblePathOut(TypedDict):
    """A path of a node that jobs may see; `tenants` empty: jobs of all tenants.

    Jobs do not see a path with `checkpoints`; they may name it as their `checkpoint_dir`.
    """

    path: str
    writable: bool
    checkpoints: bool
    tenants: list[str]


class IsolationOut(TypedDict):
    """How a node separates jobs; `owner` is the tenant that it belongs to until it is reset.

    `job_network` is the setting for plain jobs of one instance (empty: by the node's own file),
    `plain_network` what they get: `connected`, `isolated` or `shared`; `container_network` what
    containers of one instance get: `own` or `shared`. Lists of nodes leave out
    `declared_network`, the setting in the node's own file, and `networks`, what was tried.
    """

    level: str
    levels: list[LevelOut]
    owner: str
    owned_since: datetime | None
    dedicated_to: list[str]
    visible_paths: list[VisiblePathOut]
    job_network: str
    plain_network: str
    container_network: str
    declared_network: str
    networks: list[NetworkOut]


class NodeOut(TypedDict):
    """A node; ``host``, ``port`` and ``user`` only for those who may manage nodes."""

    id: int
    name: str
    state: str
    state_reason: str
    state_since: datetime
    contact: str
    held: str
    rack: str
    device_type: str
    devices: int
    healthy: int
    in_use: int
    jobs: int
    agrees: bool | None
    has_docker: bool
    cpus: float
    memory_bytes: int
    labels: dict[str, str]
    host: str
    port: int
    user: str
    probed_at: datetime | None
    last_contact_at: datetime | None
    version: int
    isolation: IsolationOut


class OpenMemberOut(TypedDict):
    """A rank that is not known to be gone from a node."""

    job: int | None
    name: str
    tenant: str
    role: str
    rank: int
    devices: list[int]
    step: str
    step_since: datetime
    stopping: bool
    started_at: datetime | None


class TruthOut(TypedDict):
    """What database, runner and device each say of one device."""

    device: int
    database: str
    runner: str
    condition: str
    verdict: str


class NodeDetailOut(NodeOut):
    """A node with its devices, cells and what runs there."""

    device_list: list[DeviceOut]
    cell: CellOut
    members: list[OpenMemberOut]
    truth: list[TruthOut]
    contact_reason: str
    held_reason: str
    driver: str
    inventory: Any
    warnings: list[str]
    host_key_fingerprint: str
    declared_dead_at: datetime | None
    created_at: datetime
    can_manage: bool


def node_out(row: NodeRow) -> NodeOut:
    """A node in a list."""
    view = row.view
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "state_reason": view.state_reason,
        "state_since": view.state_since,
        "contact": row.contact,
        "held": row.held,
        "rack": view.rack,
        "device_type": view.device_type,
        "devices": len(view.devices),
        "healthy": row.healthy,
        "in_use": row.in_use,
        "jobs": row.jobs,
        "agrees": row.agrees,
        "has_docker": row.has_docker,
        "cpus": row.cpus,
        "memory_bytes": row.memory_bytes,
        "labels": dict(row.labels),
        "host": row.host,
        "port": row.port,
        "user": row.user,
        "probed_at": row.probed_at,
        "last_contact_at": row.last_contact_at,
        "version": row.version,
        "isolation": _isolation_out(row.isolation),
    }


def _isolation_out(isolation: NodeIsolation) -> IsolationOut:
    return {
        "level": isolation.level,
        "levels": [
            {
                "level": level.level,
                "available": level.available,
                "cause": level.cause,
                "detail": level.detail,
                "remedy": level.remedy,
            }
            for level in isolation.levels
        ],
        "owner": isolation.owner,
        "owned_since": isolation.owned_since,
        "dedicated_to": list(isolation.dedicated_to),
        "visible_paths": [
            {
                "path": one.path,
                "writable": one.writable,
                "checkpoints": one.checkpoints,
                "tenants": list(one.tenants),
            }
            for one in isolation.visible_paths
        ],
        "job_network": isolation.job_network,
        "plain_network": isolation.plain_network,
        "container_network": isolation.container_network,
        "declared_network": isolation.declared_network,
        "networks": [
            {
                "network": one.network,
                "available": one.available,
                "cause": one.cause,
                "detail": one.detail,
                "remedy": one.remedy,
            }
            for one in isolation.networks
        ],
    }


def node_detail_out(detail: NodeDetail) -> NodeDetailOut:
    """A node's page."""
    return {
        **node_out(detail.row),
        "device_list": [device_out(device) for device in detail.row.view.devices],
        "cell": cell_out(detail.row.view.tree),
        "members": [_member_out(member) for member in detail.members],
        "truth": [_truth_out(row) for row in detail.truth],
        "contact_reason": detail.contact_reason,
        "held_reason": detail.held_reason,
        "driver": detail.driver,
        "inventory": dict(detail.inventory),
        "warnings": list(detail.warnings),
        "host_key_fingerprint": detail.host_key_fingerprint,
        "declared_dead_at": detail.declared_dead_at,
        "created_at": detail.created_at,
        "can_manage": detail.can_manage,
    }


def device_out(device: DeviceView) -> DeviceOut:
    """One device and what is on it."""
    return {
        "id": device.id,
        "index": device.index,
        "address": device.address,
        "type": device.device_type,
        "is_gpu": device.is_gpu,
        "healthy": device.healthy,
        "health_reason": device.health_reason,
        "occupant": None if device.occupant is None else occupant_out(device.occupant),
    }


def occupant_out(occupant: Occupant) -> OccupantOut:
    """What holds a device."""
    return {
        "allocation": occupant.allocation,
        "tenant": occupant.tenant,
        "job": occupant.job_id,
        "name": occupant.name,
        "user": occupant.user,
        "virtual_cluster": occupant.virtual_cluster,
        "state": occupant.state,
        "opportunistic": occupant.opportunistic,
        "reserved": occupant.reserved,
    }


def cell_out(cell: CellView) -> CellOut:
    """A cell with everything inside it."""
    return {
        "level": cell.level,
        "type": cell.type,
        "address": cell.address,
        "device": cell.device,
        "children": [cell_out(child) for child in cell.children],
    }


def _member_out(member: OpenMember) -> OpenMemberOut:
    return {
        "job": member.job_id,
        "name": member.job,
        "tenant": member.tenant,
        "role": member.role,
        "rank": member.rank,
        "devices": list(member.devices),
        "step": member.step,
        "step_since": member.step_since,
        "stopping": member.stopping,
        "started_at": member.started_at,
    }


def _truth_out(row: TruthRow) -> TruthOut:
    return {
        "device": row.device_index,
        "database": row.database,
        "runner": row.runner,
        "condition": row.device,
        "verdict": row.verdict,
    }
