"""Response shapes of nodes, devices and reconfigurations."""

from datetime import datetime
from typing import Annotated, Any, TypedDict

from portal.api.bodies import Body, From
from scheduling.clusters.queries.nodes import NodeDetail, NodeRow
from scheduling.clusters.services.reconfiguration import Reconfigured
from scheduling.runs.queries.device_failures import NodeFailures


class OccupantOut(TypedDict):
    """The occupant of a device; of a job that you may not see: state and "another tenant"."""

    allocation: str
    tenant: str
    job: Annotated[int | None, From("job_id")]
    name: str
    user: str
    virtual_cluster: str
    state: str
    opportunistic: bool
    reserved: bool


class DeviceOut(TypedDict):
    """A device: a GPU, or a declared CPU slot."""

    id: int
    index: int
    address: str
    type: Annotated[str, From("device_type")]
    is_gpu: bool
    healthy: bool
    health_reason: str
    occupant: OccupantOut | None


class CellOut(TypedDict):
    """A cell with its child cells; ``device`` is the index of a leaf on its node."""

    level: str
    type: str
    address: str
    device: int | None
    children: "list[CellOut]"


class IsolationLevelOut(TypedDict):
    """The result of probing an isolation level on a node; `remedy` makes it available."""

    level: str
    available: bool
    cause: str
    detail: str
    remedy: str


class NetworkOut(TypedDict):
    """The result of probing an own network on a node; `remedy` makes it available."""

    network: str
    available: bool
    cause: str
    detail: str
    remedy: str


class VisiblePathOut(TypedDict):
    """A path of a node that jobs see; if `tenants` is empty, jobs of all tenants see it.

    Jobs do not see a path with `checkpoints`; they may name it as their `checkpoint_dir`.
    """

    path: str
    writable: bool
    checkpoints: bool
    tenants: list[str]


class IsolationOut(TypedDict):
    """The isolation of jobs on a node; `owner` is the tenant of the node until an admin resets it.

    `job_network` is the setting for plain jobs of one instance; if it is empty, the configuration
    file of the node applies. `plain_network` is the network that these jobs get: `connected`,
    `isolated` or `shared`. `container_network` is the network of containers of one instance: `own`
    or `shared`. Lists of nodes omit `declared_network` (the setting in the configuration file of
    the node) and `networks` (the results of the network probes).
    """

    level: str
    levels: list[IsolationLevelOut]
    owner: str
    owned_since: datetime | None
    dedicated_to: list[str]
    visible_paths: list[VisiblePathOut]
    job_network: str
    plain_network: str
    container_network: str
    declared_network: str
    networks: list[NetworkOut]


class TypeCountOut(TypedDict):
    """The number of devices of one type on a node."""

    type: str
    devices: int


class NodeOut(TypedDict):
    """A node; ``host``, ``port`` and ``user`` require the right to manage nodes.

    ``types`` has the number of devices of each type, and ``device_type`` the most frequent type.

    ``data_interface`` is the network interface of gangs that an admin set; if it is empty, a gang
    uses the fastest interface that its nodes share.
    """

    id: int
    name: str
    state: str
    state_reason: Annotated[str, From("view.state_reason")]
    state_since: Annotated[datetime, From("view.state_since")]
    contact: str
    held: str
    rack: Annotated[str, From("view.rack")]
    device_type: Annotated[str, From("view.device_type")]
    types: Annotated[list[TypeCountOut], From("view.types")]
    devices: Annotated[int, From("view.devices", len)]
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
    data_interface: str
    isolation: IsolationOut


class OpenMemberOut(TypedDict):
    """A member of a gang that may still run on a node."""

    job: Annotated[int | None, From("job_id")]
    name: Annotated[str, From("job")]
    tenant: str
    role: str
    rank: int
    devices: list[int]
    step: str
    step_since: datetime
    stopping: bool
    started_at: datetime | None


class TruthOut(TypedDict):
    """The state of a device according to the database, the runner and the device itself."""

    device: Annotated[int, From("device_index")]
    database: str
    runner: str
    condition: Annotated[str, From("device")]
    verdict: str


class GpuOut(TypedDict):
    """Identity and facts of a GPU; `driver_index` may change with each start of the driver."""

    device: Annotated[int, From("index")]
    uuid: str
    model: str
    serial: str
    pci_address: str
    driver_index: int | None


class DeviceMarkOut(TypedDict):
    """The quarantine of a device by an admin; without `until`, it lasts until an admin ends it."""

    device: int
    reason: str
    until: datetime | None


class CanaryOut(TypedDict):
    """The newest canary job of a device.

    `result` is `passed`, `failed` or `untested`, and empty while the job runs. `figures` has the
    tested `bytes`, the `patterns`, the `seconds` and the result of DCGM. `requested_by` is empty
    if the portal started the job.
    """

    device: int
    job: int | None
    requested_by: str
    requested_at: datetime
    ended_at: datetime | None
    result: str
    cause: str
    figures: Annotated[Any, From("figures", dict)]


class ConditionOut(TypedDict):
    """A condition of a GPU, or of the node if `device` is null."""

    device: int | None
    code: str
    action: str
    text: str
    detail: str


class CpuAmountOut(TypedDict):
    """CPUs and bytes of memory."""

    cpus: float
    memory_bytes: Annotated[int, From("memory")]


class CpuUseOut(TypedDict):
    """CPUs and memory of a node: the share of its devices, and the pool that belongs to none.

    Jobs without devices lease parts of the pool. `device_cpus` and `device_memory_bytes` are the
    share of each device that an admin has set; null is an equal part of the node.
    """

    devices: CpuAmountOut
    pool: CpuAmountOut
    leased: CpuAmountOut
    free: CpuAmountOut
    instances: int
    device_cpus: float | None
    device_memory_bytes: int | None


class NodePageOut(TypedDict):
    """Fields that only the details of a node have."""

    cpu_use: CpuUseOut
    device_list: Annotated[list[DeviceOut], From("row.view.devices")]
    cell: Annotated[CellOut, From("row.view.tree")]
    members: list[OpenMemberOut]
    truth: list[TruthOut]
    contact_reason: str
    held_reason: str
    driver: str
    cuda: str
    gpus: list[GpuOut]
    quarantined: Annotated[list[DeviceMarkOut], From("marks")]
    canaries: list[CanaryOut]
    conditions: list[ConditionOut]
    inventory: Annotated[Any, From("inventory", dict)]
    warnings: list[str]
    host_key_fingerprint: str
    jump_host: str
    jump_host_key_fingerprint: str
    declared_dead_at: datetime | None
    created_at: datetime
    can_manage: bool


class DeviceFailuresOut(TypedDict):
    """Distinct jobs that left a device in the last 30 days, and those that failed there.

    `tenants` counts the tenants of the failed jobs. `rate` is the estimated failure rate, and
    `probability` that the rate exceeds three times the rate of all nodes. The portal proposes to
    quarantine a `suspect` device.
    """

    device: int
    jobs: int
    failed: int
    tenants: int
    rate: float
    probability: float
    suspect: bool


class NodeFailuresOut(TypedDict):
    """Devices of a node on which jobs failed; `all_jobs` and `all_failed` count all nodes."""

    all_jobs: int
    all_failed: int
    devices: list[DeviceFailuresOut]


class NodeDetailOut(NodeOut, NodePageOut):
    """A node with its devices, cells and running jobs.

    `failures` requires the right to manage nodes; it is null for other users.
    """

    failures: NodeFailuresOut | None


node_out = Body(NodeOut, NodeRow)
_page_out = Body(NodePageOut, NodeDetail)


def node_detail_out(detail: NodeDetail, failures: NodeFailures | None) -> NodeDetailOut:
    shown = None if failures is None else node_failures_out(failures)
    return {**node_out(detail.row), **_page_out(detail), "failures": shown}


def node_failures_out(failures: NodeFailures) -> NodeFailuresOut:
    return {
        "all_jobs": failures.fleet_jobs,
        "all_failed": failures.fleet_failed,
        "devices": [
            {
                "device": index,
                "jobs": one.jobs,
                "failed": one.failed,
                "tenants": one.tenants,
                "rate": round(one.rate, 4),
                "probability": round(one.probability, 4),
                "suspect": one.is_suspect,
            }
            for index, one in failures.devices.items()
        ],
    }


class AffectedJobOut(TypedDict):
    """A job that a change affects; name and user are empty for jobs that you may not see."""

    id: Annotated[int, From("job_id")]
    name: str
    user: str
    virtual_cluster: str
    tenant: str
    devices: int


class PromiseOut(TypedDict):
    """Guaranteed cells of one level before and after."""

    virtual_cluster: Annotated[str, From("vc")]
    chain: str
    level: str
    before: int
    after: int


class PinChangeOut(TypedDict):
    """The address of a pinned cell before and after; empty if it is not pinned."""

    virtual_cluster: Annotated[str, From("vc")]
    name: str
    before: str
    after: str


class ReconfigurationOut(TypedDict):
    """The result of a reconfiguration or dry run; no job is preempted.

    `version` is a version of the topology: the current one for a dry run, or the new one. Jobs
    in `become_opportunistic` continue on borrowed devices from the next round on.
    """

    dry_run: bool
    version: int
    fits: Annotated[bool, From("effect.change.fits")]
    witnesses: Annotated[list[str], From("effect.change.witnesses")]
    become_opportunistic: Annotated[list[AffectedJobOut], From("effect.loses")]
    guaranteed_again: Annotated[list[AffectedJobOut], From("effect.regains")]
    no_longer_fit: Annotated[list[AffectedJobOut], From("effect.no_longer_fit")]
    cells: Annotated[list[PromiseOut], From("effect.change.promises")]
    pinned: Annotated[list[PinChangeOut], From("effect.change.pins")]
    nodes_added: Annotated[list[str], From("effect.change.nodes_added")]
    nodes_removed: Annotated[list[str], From("effect.change.nodes_removed")]


reconfiguration_out = Body(ReconfigurationOut, Reconfigured)
