"""The cluster at one instant: nodes, devices, shares and what is free, in a few queries."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import quantiles
from typing import Any, Final

from django.db.models import Count, Sum

from scheduling.core.lifecycle import HOLDING, JobState
from scheduling.enums import NodeState
from scheduling.models import Device, Job, Node, PinnedCell, VcQuota, VirtualCluster
from scheduling.selectors.jobs import JobFilter, counts_by_state
from scheduling.selectors.occupancy import Occupancy, Occupant, occupancy
from scheduling.selectors.rounds import newest_round
from scheduling.selectors.shares import ChainUse, FreeChain, Missing, free_chain, missing
from scheduling.selectors.topology import CellView, ChainView, TopologyNow, current_topology
from tenants.roles import Permission
from tenants.viewers import Viewer

WAIT_WINDOW: Final = timedelta(hours=24)
MOST_WAITS: Final = 2000
RACK_LABEL: Final = "rack"
_LIVE: Final = JobFilter(states=frozenset({"live"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """One device and what is on it."""

    id: int
    index: int
    address: str
    device_type: str
    is_gpu: bool
    healthy: bool
    health_reason: str
    occupant: Occupant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node with its cells.

    Attributes:
        rack: its label ``rack``, or the cell above it; empty for neither.
        placeable: new work may start here.
    """

    id: int
    name: str
    rack: str
    state: str
    state_reason: str
    state_since: datetime
    device_type: str
    tree: CellView
    devices: tuple[DeviceView, ...]

    @property
    def placeable(self) -> bool:
        """Whether new work may start here."""
        return self.state == NodeState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class VcUse:
    """A virtual cluster in devices.

    Attributes:
        used: of the guarantee, by its own jobs.
        borrowed: held by its jobs outside the guarantee.
        lent: of the guarantee, on which opportunistic jobs run now.
        unhealthy: of the guarantee, out of order or on nodes that take no work.
        queued: wanted by jobs that wait.
        idle: what is left of the guarantee.
    """

    id: int
    name: str
    tenant: str
    tenant_id: int
    policy: str
    guarantee: int
    used: int
    borrowed: int
    lent: int
    unhealthy: int
    queued: int
    queued_jobs: int
    running_jobs: int

    @property
    def idle(self) -> int:
        """What is left of the guarantee."""
        return max(self.guarantee - self.used - self.lent - self.unhealthy, 0)

    @property
    def healthy(self) -> int:
        """Devices of the guarantee that can be had."""
        return self.guarantee - self.unhealthy


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The numbers at the top of the overview.

    Attributes:
        in_use: devices that a job holds.
        jobs: number of the viewer's visible live jobs by state.
        median_wait_seconds: of the jobs first started in the last 24 h, as far as visible.
        p90_wait_seconds: nine in ten started within this.
    """

    devices: int
    healthy: int
    in_use: int
    borrowed: int
    gpus: int
    jobs: Mapping[str, int]
    median_wait_seconds: float | None
    p90_wait_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One snapshot of the cluster.

    Attributes:
        version: changes with the topology and with every round: ``<topology>.<round>``.
        virtual_clusters: those that the viewer may see.
        unassigned: devices by chain that no virtual cluster is promised.
        chains: the levels of each chain.
    """

    version: str
    topology_version: int
    round_number: int
    at: datetime
    nodes: tuple[NodeView, ...]
    virtual_clusters: tuple[VcUse, ...]
    chains: tuple[ChainView, ...]
    free: tuple[FreeChain, ...]
    unassigned: Mapping[str, int]
    totals: Totals


def cluster_snapshot(viewer: Viewer, *, now: datetime) -> ClusterView:
    """Everything that the overview and ``GET /cluster/`` show, in at most 12 queries."""
    viewer.require(Permission.VIEW_CLUSTER, what="the cluster")
    number, _ = newest_round()
    topology = current_topology()
    nodes = node_rows()
    devices = device_rows()
    held = occupancy(viewer)
    uses = chain_uses(topology, nodes, devices, held)
    return ClusterView(
        version=f"{topology.version}.{number}",
        topology_version=topology.version,
        round_number=number,
        at=now,
        nodes=node_views(topology, nodes, devices, held),
        virtual_clusters=_vc_uses(viewer, uses, held),
        chains=tuple(topology.chains.values()),
        free=_free(topology, nodes, devices, held),
        unassigned={
            name: max(use.total - sum(use.guaranteed.values()), 0) for name, use in uses.items()
        },
        totals=_totals(viewer, devices, held, now),
    )


def vc_uses(viewer: Viewer) -> tuple[VcUse, ...]:
    """The virtual clusters that the viewer may see, in devices, by name."""
    topology, held = current_topology(), occupancy(viewer)
    return _vc_uses(viewer, chain_uses(topology, node_rows(), device_rows(), held), held)


def node_rows() -> list[Node]:
    """All nodes without what only their own page shows, by name."""
    return list(
        Node.objects.filter(removed_at=None).defer("inventory", "host_key").order_by("name")
    )


def device_rows(node_id: int | None = None) -> list[Device]:
    """The devices in the topology, by node and index."""
    devices = Device.objects.filter(retired_at=None).order_by("node_id", "index")
    return list(devices if node_id is None else devices.filter(node_id=node_id))


def node_views(
    topology: TopologyNow, nodes: Sequence[Node], devices: Sequence[Device], held: Occupancy
) -> tuple[NodeView, ...]:
    """Nodes with their cell trees and what is on their devices."""
    by_node: dict[int, list[DeviceView]] = defaultdict(list)
    for device in devices:
        by_node[device.node_id].append(_device_view(device, held))
    return tuple(
        NodeView(
            id=node.pk,
            name=node.name,
            rack=str(node.labels.get(RACK_LABEL) or topology.racks.get(node.name, "")),
            state=node.state,
            state_reason=node.state_reason,
            state_since=node.state_since,
            device_type=by_node[node.pk][0].device_type if by_node[node.pk] else "",
            tree=topology.tree_of(node.name),
            devices=tuple(by_node[node.pk]),
        )
        for node in nodes
    )


def chain_uses(
    topology: TopologyNow, nodes: Sequence[Node], devices: Sequence[Device], held: Occupancy
) -> Mapping[str, ChainUse]:
    """Each chain in devices: promised, used, borrowed, out of order; in two queries."""
    promised = promised_devices(topology)
    placeable = {node.pk for node in nodes if node.state == NodeState.READY}
    chain_of = {device.pk: device.chain for device in devices}
    used: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    borrowed: dict[str, int] = defaultdict(int)
    for lease in held.leases:
        chain = chain_of.get(lease.device_id, "")
        if lease.reserved:
            continue
        if lease.opportunistic:
            borrowed[chain] += 1
        else:
            used[chain][lease.virtual_cluster_id] += 1
    out: dict[str, int] = defaultdict(int)
    for device in devices:
        is_useful = device.healthy and device.node_id in placeable
        out[device.chain] += not is_useful and device.pk not in held.by_device
    return {
        name: ChainUse(
            guaranteed=promised.get(name, {}),
            used=used[name],
            borrowed=borrowed[name],
            out=out[name],
            total=chain.devices,
        )
        for name, chain in topology.chains.items()
    }


def promised_devices(topology: TopologyNow) -> Mapping[str, Mapping[int, int]]:
    """Devices promised by chain and virtual cluster id, pinned cells included."""
    promised: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for vc, chain, level, count in VcQuota.objects.filter(
        virtual_cluster__archived_at=None
    ).values_list("virtual_cluster_id", "chain", "level", "count"):
        view = topology.chains.get(chain)
        rung = view.level_of_type(level) if view else None
        if rung is not None:
            promised[chain][vc] += rung.devices * count
    for vc, address in PinnedCell.objects.filter(virtual_cluster__archived_at=None).values_list(
        "virtual_cluster_id", "address"
    ):
        place = topology.cell_at(address)
        if place is not None:
            promised[place.chain][vc] += place.devices
    return promised


def _device_view(device: Device, held: Occupancy) -> DeviceView:
    return DeviceView(
        id=device.pk,
        index=device.index,
        address=device.address,
        device_type=device.device_type,
        is_gpu=device.is_gpu,
        healthy=device.healthy,
        health_reason=device.health_reason,
        occupant=held.by_device.get(device.pk),
    )


def _vc_uses(viewer: Viewer, uses: Mapping[str, ChainUse], held: Occupancy) -> tuple[VcUse, ...]:
    absent = {name: missing(use) for name, use in uses.items()}
    borrowed: dict[int, int] = defaultdict(int)
    for lease in held.leases:
        borrowed[lease.virtual_cluster_id] += lease.opportunistic and not lease.reserved
    counts = _live_counts(viewer)
    rows = (
        VirtualCluster.objects.visible_to(viewer, Permission.VIEW_TENANT)
        .filter(archived_at=None)
        .order_by("name")
    )
    return tuple(
        _vc_use(
            vc=vc,
            tenant=viewer.name_of(vc.tenant_id),
            uses=uses,
            absent=absent,
            borrowed=borrowed[vc.pk],
            counts=counts.get(vc.pk, {}),
        )
        for vc in rows.defer("policy_state")
    )


def _vc_use(
    *,
    vc: VirtualCluster,
    tenant: str,
    uses: Mapping[str, ChainUse],
    absent: Mapping[str, Mapping[int, Missing]],
    borrowed: int,
    counts: Mapping[str, tuple[int, int]],
) -> VcUse:
    none = Missing()
    queued_jobs, queued = counts.get(JobState.QUEUED, (0, 0))
    return VcUse(
        id=vc.pk,
        name=vc.name,
        tenant=tenant,
        tenant_id=vc.tenant_id,
        policy=vc.policy,
        guarantee=sum(use.guaranteed.get(vc.pk, 0) for use in uses.values()),
        used=sum(use.used.get(vc.pk, 0) for use in uses.values()),
        borrowed=borrowed,
        lent=sum(chain.get(vc.pk, none).lent for chain in absent.values()),
        unhealthy=sum(chain.get(vc.pk, none).unhealthy for chain in absent.values()),
        queued=queued,
        queued_jobs=queued_jobs,
        running_jobs=sum(counts.get(state, (0, 0))[0] for state in HOLDING),
    )


def _live_counts(viewer: Viewer) -> Mapping[int, Mapping[str, tuple[int, int]]]:
    """Jobs and devices by virtual cluster and live state."""
    found: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    live: Any = Job.objects.visible_to(viewer, Permission.VIEW_TENANT)
    for vc, state, jobs, devices in (
        live.filter(state__in=[*HOLDING, JobState.QUEUED])
        .order_by()
        .values_list("virtual_cluster_id", "state")
        .annotate(jobs=Count("id"), wanted=Sum("devices"))
    ):
        found[vc][state] = (jobs, devices)
    return found


def _free(
    topology: TopologyNow, nodes: Sequence[Node], devices: Sequence[Device], held: Occupancy
) -> tuple[FreeChain, ...]:
    placeable = {node.pk for node in nodes if node.state == NodeState.READY}
    idle: dict[str, list[int]] = defaultdict(list)
    for device in devices:
        if device.healthy and device.node_id in placeable and device.pk not in held.by_device:
            place = topology.cells.leaves.get(device.address)
            if place is not None:
                idle[place[0]].append(place[1])
    return tuple(
        free_chain(chain, [level.level for level in topology.chains[name].levels], idle[name])
        for name, chain in topology.cells.chains.items()
    )


def _totals(viewer: Viewer, devices: Sequence[Device], held: Occupancy, now: datetime) -> Totals:
    in_use = {lease.device_id for lease in held.leases if not lease.reserved}
    median, p90 = _waits(viewer, now)
    return Totals(
        devices=len(devices),
        healthy=sum(device.healthy for device in devices),
        in_use=len(in_use),
        borrowed=sum(lease.opportunistic and not lease.reserved for lease in held.leases),
        gpus=sum(device.is_gpu for device in devices),
        jobs=counts_by_state(viewer, _LIVE),
        median_wait_seconds=median,
        p90_wait_seconds=p90,
    )


def _waits(viewer: Viewer, now: datetime) -> tuple[float | None, float | None]:
    """Median and ninth decile of the waits for a first start, of the newest starts of a day."""
    waits = [
        (started - submitted).total_seconds()
        for submitted, started in Job.objects.visible_to(viewer)
        .filter(first_started_at__gte=now - WAIT_WINDOW)
        .order_by("-first_started_at")
        .values_list("submitted_at", "first_started_at")[:MOST_WAITS]
        if started is not None
    ]
    if len(waits) < 2:
        return (waits[0], waits[0]) if waits else (None, None)
    deciles = quantiles(waits, n=10, method="inclusive")
    return deciles[4], deciles[8]
