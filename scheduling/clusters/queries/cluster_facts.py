"""Cluster facts (nodes, devices, leases, guarantees), read as plain rows and cached.

Every request reads the rows, so each process sees changes by other processes. Derived facts are
cached until the rows change. The facts are not filtered by permissions:
``scheduling.clusters.queries.occupancy`` decides what a viewer may see.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from django.db.models import IntegerField, Model, QuerySet
from django.db.models.functions import Cast

from scheduling.clusters.models import Device, Node, PinnedCell, VcQuota
from scheduling.clusters.queries.shares import FreeChain, free_chain
from scheduling.core.explanations.lending import ChainUse, Missing, missing
from scheduling.enums import LeaseKind, NodeState
from scheduling.jobs.models import Job
from scheduling.runs.models import Lease
from scheduling.topology.current import TopologyNow, current_topology
from tenants.compiled_sql import CompiledQuery

Made = TypeVar("Made")

_RESERVED: Final = LeaseKind.RESERVED.value

KEPT: Final = 16
"""Maximum number of values cached with the facts: one per set of rights and use."""


class NodeRecord(NamedTuple):
    """A node without the columns that only its details need."""

    id: int
    name: str
    labels: Mapping[str, Any]
    state: str
    state_reason: str
    state_since: datetime


class DeviceFacts(NamedTuple):
    id: int
    node_id: int
    device_index: int
    address: str
    chain: str
    device_type: str
    is_gpu: bool
    healthy: bool
    health_reason: str


class LeaseFacts(NamedTuple):
    """An open lease; ``uid`` identifies the attempt."""

    device_id: int
    kind: str
    virtual_cell: str
    uid: str
    job_id: int

    @property
    def reserved(self) -> bool:
        """Return whether the device is only reserved, since its current job is leaving."""
        return self.kind == _RESERVED

    @property
    def opportunistic(self) -> bool:
        """Return whether the device is outside the guarantee of its virtual cluster."""
        return not self.virtual_cell


class HolderFacts(NamedTuple):
    """A job with at least one lease."""

    id: int
    tenant_id: int
    virtual_cluster_id: int
    virtual_cluster: str
    name: str
    owner: str
    state: str


class Rows(NamedTuple):
    """All rows; equal rows give equal facts.

    Attributes:
        quotas: virtual cluster, chain, level and count of each quota.
        pinned: virtual cluster and address of each pinned cell.
    """

    nodes: tuple[NodeRecord, ...]
    devices: tuple[DeviceFacts, ...]
    leases: tuple[LeaseFacts, ...]
    holders: tuple[HolderFacts, ...]
    quotas: tuple[tuple[int, str, str, int], ...]
    pinned: tuple[tuple[int, str], ...]


class ClusterFacts:
    """The whole cluster at one time, without permission checks; treat it as frozen.

    Attributes:
        leases: leases whose job existed at the time of the read.
        holders: jobs with leases, by ID.
    """

    def __init__(self, topology: TopologyNow, rows: Rows) -> None:
        self.topology = topology
        self.rows = rows
        self.nodes = rows.nodes
        self.devices = rows.devices
        self.holders: Mapping[int, HolderFacts] = {holder.id: holder for holder in rows.holders}
        self.leases = tuple(lease for lease in rows.leases if lease.job_id in self.holders)
        self._made: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def has_equal_rows(self, other: "ClusterFacts") -> bool:
        """Return whether both have equal rows."""
        return self.topology is other.topology and self.rows == other.rows

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the value of ``make``, computed once and cached with the facts.

        Args:
            key: all other inputs of the result, above all the viewer's rights.
            make: returns an immutable value.
        """
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                found: Made = self._made[key]
                return found
        made = make()
        with self._lock:
            self._made[key] = made
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return made

    @cached_property
    def tenant_ids(self) -> frozenset[int]:
        return frozenset(holder.tenant_id for holder in self.holders.values())

    @cached_property
    def devices_by_node(self) -> Mapping[int, tuple[DeviceFacts, ...]]:
        found: dict[int, list[DeviceFacts]] = defaultdict(list)
        for device in self.devices:
            found[device.node_id].append(device)
        return {node_id: tuple(devices) for node_id, devices in found.items()}

    @cached_property
    def held(self) -> frozenset[int]:
        """Return the IDs of devices that are held or reserved."""
        return frozenset(lease.device_id for lease in self.leases)

    @cached_property
    def in_use(self) -> int:
        """Return the number of devices that a job holds."""
        return len({lease.device_id for lease in self.leases if not lease.reserved})

    @cached_property
    def borrowed(self) -> Mapping[int, int]:
        """Return the number of devices held outside the guarantee, by virtual cluster ID."""
        found: dict[int, int] = defaultdict(int)
        for lease in self.leases:
            if lease.opportunistic and not lease.reserved:
                found[self.holders[lease.job_id].virtual_cluster_id] += 1
        return dict(found)

    @cached_property
    def promised(self) -> Mapping[str, Mapping[int, int]]:
        """Return the guaranteed devices by chain and virtual cluster ID, pinned cells included."""
        found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for vc, chain, level, count in self.rows.quotas:
            view = self.topology.chains.get(chain)
            rung = view.level_of_type(level) if view else None
            if rung is not None:
                found[chain][vc] += rung.devices * count
        for vc, address in self.rows.pinned:
            place = self.topology.cell_at(address)
            if place is not None:
                found[place.chain][vc] += place.devices
        return {chain: dict(shares) for chain, shares in found.items()}

    @cached_property
    def uses(self) -> Mapping[str, ChainUse]:
        chain_of = {device.id: device.chain for device in self.devices}
        placeable, held = self._placeable, self.held
        used: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        borrowed: dict[str, int] = defaultdict(int)
        for lease in self.leases:
            chain = chain_of.get(lease.device_id, "")
            if lease.reserved:
                continue
            if lease.opportunistic:
                borrowed[chain] += 1
            else:
                used[chain][self.holders[lease.job_id].virtual_cluster_id] += 1
        out: dict[str, int] = defaultdict(int)
        cordoned: dict[str, int] = defaultdict(int)
        for device in self.devices:
            if (device.healthy and device.node_id in placeable) or device.id in held:
                continue
            is_cordoned = device.healthy and device.node_id in self._cordoned
            (cordoned if is_cordoned else out)[device.chain] += 1
        return {
            name: ChainUse(
                guaranteed=self.promised.get(name, {}),
                used=dict(used[name]),
                borrowed=borrowed[name],
                out=out[name],
                cordoned=cordoned[name],
                total=chain.devices,
            )
            for name, chain in self.topology.chains.items()
        }

    @cached_property
    def missing(self) -> Mapping[str, Mapping[int, Missing]]:
        """Return lent, unhealthy and cordoned devices, by chain and virtual cluster ID."""
        return {name: missing(use) for name, use in self.uses.items()}

    @cached_property
    def unassigned(self) -> Mapping[str, int]:
        """Return the number of devices outside all guarantees, by chain."""
        return {
            name: max(use.total - sum(use.guaranteed.values()), 0)
            for name, use in self.uses.items()
        }

    @cached_property
    def free(self) -> tuple[FreeChain, ...]:
        idle: dict[str, list[int]] = defaultdict(list)
        for device in self.devices:
            if device.healthy and device.node_id in self._placeable and device.id not in self.held:
                place = self.topology.cells.leaves.get(device.address)
                if place is not None:
                    idle[place[0]].append(place[1])
        chains = self.topology.chains
        return tuple(
            free_chain(chain, [level.level for level in chains[name].levels], idle[name])
            for name, chain in self.topology.cells.chains.items()
        )

    @cached_property
    def _placeable(self) -> frozenset[int]:
        return frozenset(node.id for node in self.nodes if node.state == NodeState.READY)

    @cached_property
    def _cordoned(self) -> frozenset[int]:
        held_back = (NodeState.CORDONED, NodeState.DRAINING)
        return frozenset(node.id for node in self.nodes if node.state in held_back)


def cluster_facts() -> ClusterFacts:
    """Return the current facts, in seven queries; equal rows return the same object."""
    return _NEWEST.shared(ClusterFacts(current_topology(), _read()))


def facts_of_node(node_id: int) -> ClusterFacts:
    """Return the facts of one node, in seven queries."""
    return ClusterFacts(current_topology(), _read(node_id))


class _Newest:
    def __init__(self) -> None:
        self._facts: ClusterFacts | None = None

    def shared(self, facts: ClusterFacts) -> ClusterFacts:
        """Return the cached facts if they equal ``facts``, else ``facts``."""
        known = self._facts
        if known is not None and known.has_equal_rows(facts):
            return known
        self._facts = facts
        return facts


class _Devices:
    """Cache of the newest devices, which most reads find unchanged."""

    def __init__(self) -> None:
        self._last: tuple[list[Any], tuple[DeviceFacts, ...]] = [], ()

    def of(self, rows: list[Any]) -> tuple[DeviceFacts, ...]:
        known, made = self._last
        if known != rows:
            made = tuple(
                DeviceFacts._make((*first, bool(is_gpu), bool(healthy), reason))
                for *first, is_gpu, healthy, reason in rows
            )
            self._last = rows, made
        return made


_NEWEST: Final = _Newest()
_DEVICES: Final = _Devices()
_DEVICE_COLUMNS: Final = (
    "id",
    "node_id",
    "index",
    "address",
    "chain",
    "device_type",
    "gpu_number",
    "healthy_number",
    "health_reason",
)
_LEASE_COLUMNS: Final = ("device_id", "kind", "virtual_cell", "attempt__uid", "job_id")
_HOLDER_COLUMNS: Final = (
    "id",
    "tenant_id",
    "virtual_cluster_id",
    "virtual_cluster__name",
    "name",
    "owner__username",
    "state",
)


def _read(node_id: int | None = None) -> Rows:
    nodes = Node.objects.filter(removed_at=None).order_by("name")
    if node_id is not None:
        nodes = nodes.filter(pk=node_id)
    devices, leases, holders = _OF_ALL if node_id is None else _OF_A_NODE
    known, number = _DEVICES if node_id is None else _Devices(), node_id or 0
    return Rows(
        nodes=tuple(map(NodeRecord._make, nodes.values_list(*NodeRecord._fields))),
        devices=known.of(devices.rows(number)),
        leases=tuple(map(LeaseFacts._make, leases.rows(number))),
        holders=tuple(map(HolderFacts._make, holders.rows(number))),
        quotas=tuple(_QUOTAS.rows()),
        pinned=tuple(_PINNED.rows()),
    )


def _devices(**which: int) -> QuerySet[Device, Any]:
    # Booleans are read as numbers: compared as stored, and converted only for changed rows.
    return (
        Device.objects.filter(retired_at=None, **which)
        .annotate(gpu_number=Cast("is_gpu", IntegerField()))
        .annotate(healthy_number=Cast("healthy", IntegerField()))
        .order_by("node_id", "index")
        .values_list(*_DEVICE_COLUMNS)
    )


def devices_in_use() -> int:
    """Return the number of devices that a job holds (`ClusterFacts.in_use`), by one query."""
    rows = Lease.objects.filter(released_at=None).exclude(kind__in=[_RESERVED, LeaseKind.GUEST])
    return rows.values("device_id").distinct().count()


def _leases(**which: int) -> QuerySet[Lease, Any]:
    # Ordered like the index of open leases: an order by ID would read all past leases.
    # A guest is not the holder of its device.
    rows = Lease.objects.filter(released_at=None, **which).exclude(kind=LeaseKind.GUEST)
    rows = rows.order_by("job_id", "id")
    return rows.values_list(*_LEASE_COLUMNS)


def _holders(**which: int) -> QuerySet[Job, Any]:
    leases = Lease.objects.filter(released_at=None, **which).exclude(kind=LeaseKind.GUEST)
    rows = Job.objects.unscoped().filter(pk__in=leases.values("job_id")).order_by("id")
    return rows.values_list(*_HOLDER_COLUMNS)


def _promised(model: type[Model], *columns: str) -> CompiledQuery:
    """Return a query for the guarantees of virtual clusters that are not archived."""
    rows = model._default_manager.filter(virtual_cluster__archived_at=None).order_by("id")
    return CompiledQuery(lambda _: rows.values_list("virtual_cluster_id", *columns))


_OF_ALL: Final = (
    CompiledQuery(lambda _: _devices()),
    CompiledQuery(lambda _: _leases()),
    CompiledQuery(lambda _: _holders()),
)
_OF_A_NODE: Final = (
    CompiledQuery(lambda node: _devices(node_id=node)),
    CompiledQuery(lambda node: _leases(device__node_id=node)),
    CompiledQuery(lambda node: _holders(device__node_id=node)),
)
_QUOTAS: Final = _promised(VcQuota, "chain", "level", "count")
_PINNED: Final = _promised(PinnedCell, "address")
