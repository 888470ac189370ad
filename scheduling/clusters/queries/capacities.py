"""Capacity in devices, processors and memory, by device type and by virtual cluster."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Min

from scheduling.clusters.models import Device
from scheduling.clusters.queries.cluster import vc_uses
from scheduling.clusters.queries.cluster_facts import ClusterFacts, cluster_facts
from scheduling.clusters.queries.virtual_clusters import VcRow, list_virtual_clusters
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapacity:
    devices: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0

    def times(self, count: float) -> "DeviceCapacity":
        """Return the capacity multiplied by ``count``."""
        return DeviceCapacity(
            devices=round(self.devices * count),
            cpus=self.cpus * count,
            memory_bytes=int(self.memory_bytes * count),
        )

    def plus(self, other: "DeviceCapacity") -> "DeviceCapacity":
        return DeviceCapacity(
            devices=self.devices + other.devices,
            cpus=self.cpus + other.cpus,
            memory_bytes=self.memory_bytes + other.memory_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VcCapacity:
    """A virtual cluster in devices, processors and memory.

    Attributes:
        promised: its guarantee.
        healthy: the healthy part of its guarantee.
        used: capacity held by its jobs, inside and outside the guarantee.
        percent: percentage of the cluster's devices that its guarantee contains.
        used_percent: percentage of the cluster's devices that its jobs hold.
        device_types: device types of its cells; all types if it has no guarantee.
    """

    name: str
    promised: DeviceCapacity
    healthy: DeviceCapacity
    used: DeviceCapacity
    percent: float
    used_percent: float
    running_jobs: int
    queued_jobs: int
    device_types: tuple[str, ...]


def device_types(viewer: Viewer) -> Mapping[str, DeviceCapacity]:
    """Return one device of each type with the smallest capacity per device, in one query."""
    viewer.require(Permission.VIEW_CLUSTER, what="the device types")
    rows = Device.objects.filter(retired_at=None).values_list("device_type")
    shares = rows.annotate(cpus=Min("cpus"), memory=Min("memory_bytes")).order_by("device_type")
    return {
        kind: DeviceCapacity(devices=1, cpus=cpus, memory_bytes=memory)
        for kind, cpus, memory in shares
    }


def vc_capacities(viewer: Viewer) -> tuple[VcCapacity, ...]:
    """Return the virtual clusters that the viewer may see, by name."""
    types, facts = device_types(viewer), cluster_facts()
    rows = list_virtual_clusters(viewer, vc_uses(viewer, facts))
    return tuple(_capacity(row, types, facts) for row in rows)


def _capacity(row: VcRow, types: Mapping[str, DeviceCapacity], facts: ClusterFacts) -> VcCapacity:
    promised = DeviceCapacity()
    names: set[str] = set()
    for kind, devices in _promises(row, facts):
        names.add(kind)
        promised = promised.plus(types.get(kind, DeviceCapacity(devices=1)).times(devices))
    each = _of_one(promised, types)
    use = row.use
    all_devices = max(len(facts.devices), 1)
    used = use.used + use.borrowed
    return VcCapacity(
        name=use.name,
        promised=promised,
        healthy=each.times(use.healthy),
        used=each.times(used),
        percent=100 * use.guarantee / all_devices,
        used_percent=100 * used / all_devices,
        running_jobs=use.running_jobs,
        queued_jobs=use.queued_jobs,
        device_types=tuple(sorted(names or types)),
    )


def _promises(row: VcRow, facts: ClusterFacts) -> list[tuple[str, int]]:
    """Return device types with numbers of devices, from quotas and pinned cells."""
    topology = facts.topology
    found = []
    for chain, cell_type, count in row.cells:
        view = topology.chains.get(chain)
        level = view.level_of_type(cell_type) if view else None
        if view is not None and level is not None:
            found.append((view.device_type, level.devices * count))
    for _name, address in row.pinned:
        place = topology.cell_at(address)
        if place is not None:
            found.append((topology.chains[place.chain].device_type, place.devices))
    return found


def _of_one(promised: DeviceCapacity, types: Mapping[str, DeviceCapacity]) -> DeviceCapacity:
    """Return the capacity per device of the guarantee, or of the smallest type without one."""
    if promised.devices:
        return promised.times(1 / promised.devices)
    return min(types.values(), key=lambda share: share.cpus, default=DeviceCapacity(devices=1))
