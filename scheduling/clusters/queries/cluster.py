"""The cluster at one time: nodes, devices, virtual clusters, free capacity and totals."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import quantiles
from threading import Lock
from typing import Any, Final, NamedTuple

from django.db.models import Count, Q, Sum, TextField
from django.db.models.functions import Cast

from scheduling.clusters.models import Node, VirtualCluster
from scheduling.clusters.queries.cluster_facts import (
    ClusterFacts,
    DeviceFacts,
    NodeRecord,
    cluster_facts,
)
from scheduling.clusters.queries.occupancy import Occupant, Sight, occupants, sight_of
from scheduling.clusters.queries.shares import FreeChain
from scheduling.common.timestamps import moment_of
from scheduling.core.device_types import is_display
from scheduling.core.explanations.lending import Missing
from scheduling.core.lifecycle import HOLDING, LIVE, JobState
from scheduling.core.messages import sentence
from scheduling.enums import NodeState
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import JobFilter, counts_by_state
from scheduling.rounds.queries import newest_round
from scheduling.topology.current import CellView, ChainView
from tenants.roles import Permission
from tenants.viewers import Viewer

WAIT_WINDOW: Final = timedelta(hours=24)
MOST_WAITS: Final = 500
NODES_KEPT: Final = 4096
VIEWS_KEPT: Final = 8
"""Maximum number of cached views of one node; viewers with other rights get other views."""

RACK_LABEL: Final = "rack"
_GIVEN: Final[dict[int, tuple[tuple["_MadeOf", "NodeView"], ...]]] = {}
_GIVING: Final = Lock()
_LIVE: Final = JobFilter(states=frozenset({"live"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    id: int
    index: int
    address: str
    device_type: str
    is_gpu: bool
    healthy: bool
    health_reason: str
    occupant: Occupant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCount:
    """The number of devices of one type on a node."""

    type: str
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node with its cells.

    Attributes:
        types: its device types, the most frequent first, and those of display GPUs last.
        rack: its label ``rack``, or the cell above it; empty if it has neither.
        placeable: whether new work may start on it.
    """

    id: int
    name: str
    rack: str
    state: str
    state_reason: str
    state_since: datetime
    types: tuple[TypeCount, ...]
    tree: CellView
    devices: tuple[DeviceView, ...]

    @property
    def device_type(self) -> str:
        """The most frequent device type; empty without devices."""
        return self.types[0].type if self.types else ""

    @property
    def placeable(self) -> bool:
        """Return whether new work may start on the node."""
        return self.state == NodeState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class VcUse:
    """The use of a virtual cluster in devices.

    Attributes:
        used: guaranteed devices that its own jobs use.
        borrowed: devices that its jobs hold outside the guarantee.
        lent: guaranteed devices that opportunistic jobs use now.
        unhealthy: guaranteed devices that are unhealthy or on nodes that are down.
        cordoned: healthy guaranteed devices on nodes that an admin has cordoned or drains.
        queued: devices that its waiting jobs request.
        idle: the rest of the guarantee.
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
    cordoned: int
    queued: int
    queued_jobs: int
    running_jobs: int

    @property
    def idle(self) -> int:
        """Return the rest of the guarantee."""
        return max(self.guarantee - self.used - self.lent - self.unhealthy - self.cordoned, 0)

    @property
    def healthy(self) -> int:
        """Return the number of guaranteed devices that work."""
        return self.guarantee - self.unhealthy


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The totals at the top of the overview.

    Attributes:
        cordoned: healthy idle devices on cordoned or draining nodes.
        in_use: devices that a job holds.
        jobs: number of live jobs by state, as far as the viewer may see them.
        median_wait_seconds: median wait of jobs first started in the last 24 h, as far as visible.
        p90_wait_seconds: 90th percentile of these waits.
    """

    devices: int
    healthy: int
    cordoned: int
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
        version: ``<topology>.<round>``, which changes with the topology and with every round.
        virtual_clusters: the virtual clusters that the viewer may see.
        unassigned: devices outside all guarantees, by chain.
        chains: levels of each chain.
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
    """Return the snapshot for the overview and ``GET /cluster/``, in at most 12 queries."""
    return snapshot_of(cluster_facts(), viewer, now=now)


def snapshot_of(facts: ClusterFacts, viewer: Viewer, *, now: datetime) -> ClusterView:
    """Return the facts that the viewer may see, with numbers that change every minute."""
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    number, _ = newest_round()
    topology = facts.topology
    return ClusterView(
        version=f"{topology.version}.{number}",
        topology_version=topology.version,
        round_number=number,
        at=now,
        nodes=node_views(facts, viewer),
        virtual_clusters=vc_uses(viewer, facts),
        chains=tuple(topology.chains.values()),
        free=facts.free,
        unassigned=facts.unassigned,
        totals=_totals(viewer, facts, now),
    )


def node_views(facts: ClusterFacts, viewer: Viewer) -> tuple[NodeView, ...]:
    """Return nodes with their cell trees and the occupants of their devices, by name."""
    sight = sight_of(viewer, facts)
    return facts.once(("nodes", sight), lambda: _node_views(facts, sight))


class _MadeOf(NamedTuple):
    """Cache key of a node's view; ``held`` has the occupants of its devices in order."""

    node: NodeRecord
    rack: str
    tree: CellView
    devices: tuple[DeviceFacts, ...]
    held: tuple[Occupant | None, ...]


def _node_views(facts: ClusterFacts, sight: Sight) -> tuple[NodeView, ...]:
    held = occupants(facts, sight)
    return tuple(_node_view(_made_of(facts, node, held)) for node in facts.nodes)


def _made_of(facts: ClusterFacts, node: NodeRecord, held: Mapping[int, Occupant]) -> _MadeOf:
    devices = facts.devices_by_node.get(node.id, ())
    return _MadeOf(
        node=node,
        rack=str(node.labels.get(RACK_LABEL) or facts.topology.racks.get(node.name, "")),
        tree=facts.topology.tree_of(node.name),
        devices=devices,
        held=tuple(held.get(device.id) for device in devices),
    )


def _node_view(made_of: _MadeOf) -> NodeView:
    """Return the cached view of a node if its key is unchanged, else a new view.

    The key is compared with the newest keys of the node, since hashing it with all cells is
    slower.
    """
    node = made_of.node
    given = _GIVEN.get(node.id, ())
    for known, view in given:
        if known == made_of:
            return view
    view = NodeView(
        id=node.id,
        name=node.name,
        rack=made_of.rack,
        state=node.state,
        state_reason=node.state_reason,
        state_since=node.state_since,
        types=_types_of(made_of.devices),
        tree=made_of.tree,
        devices=tuple(map(_device_view, made_of.devices, made_of.held)),
    )
    with _GIVING:
        _GIVEN[node.id] = ((made_of, view), *given[: VIEWS_KEPT - 1])
        while len(_GIVEN) > NODES_KEPT:
            _GIVEN.pop(next(iter(_GIVEN)))
    return view


def _types_of(devices: Sequence[DeviceFacts]) -> tuple[TypeCount, ...]:
    counts = Counter(device.device_type for device in devices).most_common()
    counts.sort(key=lambda pair: is_display(pair[0]))
    return tuple(TypeCount(type=kind, devices=number) for kind, number in counts)


def _device_view(device: DeviceFacts, occupant: Occupant | None) -> DeviceView:
    return DeviceView(
        id=device.id,
        index=device.device_index,
        address=device.address,
        device_type=device.device_type,
        is_gpu=device.is_gpu,
        healthy=device.healthy,
        health_reason=device.health_reason,
        occupant=occupant,
    )


def vc_uses(viewer: Viewer, facts: ClusterFacts | None = None) -> tuple[VcUse, ...]:
    """Return the use of the virtual clusters that the viewer may see, by name."""
    facts = facts or cluster_facts()
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
            facts=facts,
            counts=counts.get(vc.pk, {}),
        )
        for vc in rows.defer("policy_state")
    )


def vc_use(viewer: Viewer, vc: VirtualCluster) -> VcUse:
    """Return the use of one virtual cluster that the viewer may see; zeros for an archived one."""
    return _vc_use(
        vc=vc,
        tenant=viewer.name_of(vc.tenant_id),
        facts=cluster_facts(),
        counts=_live_counts(viewer, vc).get(vc.pk, {}),
    )


def _vc_use(
    *,
    vc: VirtualCluster,
    tenant: str,
    facts: ClusterFacts,
    counts: Mapping[str, tuple[int, int]],
) -> VcUse:
    none = Missing()
    uses, absent = facts.uses.values(), facts.missing.values()
    queued_jobs, queued = counts.get(JobState.QUEUED, (0, 0))
    return VcUse(
        id=vc.pk,
        name=vc.name,
        tenant=tenant,
        tenant_id=vc.tenant_id,
        policy=vc.policy,
        guarantee=sum(use.guaranteed.get(vc.pk, 0) for use in uses),
        used=sum(use.used.get(vc.pk, 0) for use in uses),
        borrowed=facts.borrowed.get(vc.pk, 0),
        lent=sum(chain.get(vc.pk, none).lent for chain in absent),
        unhealthy=sum(chain.get(vc.pk, none).unhealthy for chain in absent),
        cordoned=sum(chain.get(vc.pk, none).cordoned for chain in absent),
        queued=queued,
        queued_jobs=queued_jobs,
        running_jobs=sum(counts.get(state, (0, 0))[0] for state in HOLDING),
    )


def _live_counts(
    viewer: Viewer, only: VirtualCluster | None = None
) -> Mapping[int, Mapping[str, tuple[int, int]]]:
    """Return live jobs and their devices by virtual cluster and state."""
    found: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    live: Any = Job.objects.visible_to(viewer, Permission.VIEW_TENANT)
    if only is not None:
        # The filter contains the tenant, since the covering index begins with it.
        live = live.filter(tenant_id=only.tenant_id, virtual_cluster_id=only.pk)
    for vc, state, jobs, devices in (
        live.filter(state__in=[*HOLDING, JobState.QUEUED])
        .order_by()
        .values_list("virtual_cluster_id", "state")
        .annotate(jobs=Count("id"), wanted=Sum("devices"))
    ):
        found[vc][state] = (jobs, devices)
    return found


def _totals(viewer: Viewer, facts: ClusterFacts, now: datetime) -> Totals:
    median, p90 = _waits(viewer, now)
    return Totals(
        devices=len(facts.devices),
        healthy=sum(device.healthy for device in facts.devices),
        cordoned=sum(use.cordoned for use in facts.uses.values()),
        in_use=facts.in_use,
        borrowed=sum(facts.borrowed.values()),
        gpus=sum(device.is_gpu for device in facts.devices),
        jobs=counts_by_state(viewer, _LIVE),
        median_wait_seconds=median,
        p90_wait_seconds=p90,
    )


def _waits(viewer: Viewer, now: datetime) -> tuple[float | None, float | None]:
    """Return median and 90th percentile of the waits before first starts of the last day."""
    waits = [
        (moment_of(started) - moment_of(submitted)).total_seconds()
        for submitted, started in Job.objects.visible_to(viewer)
        .filter(first_started_at__gte=now - WAIT_WINDOW)
        .order_by("-first_started_at")
        .annotate(
            submitted_text=Cast("submitted_at", TextField()),
            started_text=Cast("first_started_at", TextField()),
        )
        .values_list("submitted_text", "started_text")[:MOST_WAITS]
    ]
    if len(waits) < 2:
        return (waits[0], waits[0]) if waits else (None, None)
    deciles = quantiles(waits, n=10, method="inclusive")
    return deciles[4], deciles[8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """Live jobs and nodes of the cluster in three numbers.

    Attributes:
        live_jobs: number of live jobs that the viewer may see.
        nodes: number of all nodes.
        nodes_in_trouble: number of suspect and down nodes.
    """

    live_jobs: int
    nodes: int
    nodes_in_trouble: int


def at_a_glance(viewer: Viewer) -> Glance:
    troubled = Q(state__in=(NodeState.SUSPECT, NodeState.DOWN))
    nodes: dict[str, Any] = Node.objects.filter(removed_at=None).aggregate(
        all=Count("id"), troubled=Count("id", filter=troubled)
    )
    return Glance(
        live_jobs=Job.objects.visible_to(viewer).filter(state__in=LIVE).count(),
        nodes=nodes["all"],
        nodes_in_trouble=nodes["troubled"],
    )
