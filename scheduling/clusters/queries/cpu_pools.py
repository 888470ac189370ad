"""CPUs and memory of nodes: share of the devices, use by jobs without devices, and the rest."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.clusters.models import Device, Node
from scheduling.core.cpu_pools import NOTHING, Amount, CpuPool, pool_of, total_of
from scheduling.core.device_types import is_display
from scheduling.runs.models import CpuLease


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """CPUs and bytes of memory of a node.

    Attributes:
        devices: the share of all devices.
        pool: what belongs to no device.
        leased: the part of the pool that jobs without devices use.
        instances: number of their instances.
        device_cpus: CPUs of each device that an admin has set; None for an equal part.
        device_memory_bytes: bytes of each device that an admin has set; None for an equal part.
    """

    devices: Amount
    pool: Amount
    leased: Amount
    instances: int
    device_cpus: float | None
    device_memory_bytes: int | None

    @property
    def free(self) -> Amount:
        """The rest of the pool; nothing if its jobs use more than it has now."""
        left = self.pool.minus(self.leased)
        return Amount(max(left.millicpus, 0), max(left.memory, 0))


def stored_pools(using: str = "default") -> tuple[CpuPool, ...]:
    """Return the pools of all nodes that have CPUs and memory for jobs without devices."""
    shares = _shares(using)
    pools = [
        pool_of(name, cpus=cpus, memory=memory, shares=shares.get(pk, ()))
        for pk, name, cpus, memory in Node.objects.using(using)
        .filter(removed_at=None)
        .order_by("name")
        .values_list("id", "name", "cpus", "memory_bytes")
    ]
    return tuple(pool for pool in pools if pool is not None)


def cpu_use_of(node: Node, devices: Iterable[Device]) -> CpuUse:
    """Return the use of a node's CPUs and memory, in one query.

    Args:
        node: the node.
        devices: its devices, without retired ones.
    """
    shares = [(one.cpus, one.memory_bytes) for one in devices if not is_display(one.device_type)]
    pool = pool_of(node.name, cpus=node.cpus, memory=node.memory_bytes, shares=shares)
    leases = CpuLease.objects.filter(node=node, released_at=None)
    used = [Amount.wanted(*row) for row in leases.values_list("cpus", "memory_bytes")]
    return CpuUse(
        devices=Amount.there(sum(cpus for cpus, _ in shares), sum(size for _, size in shares)),
        pool=Amount.there(pool.cpus, pool.memory) if pool is not None else NOTHING,
        leased=total_of(used),
        instances=len(used),
        device_cpus=node.device_cpus,
        device_memory_bytes=node.device_memory_bytes,
    )


def _shares(using: str) -> dict[int, list[tuple[float, int]]]:
    """Return CPUs and bytes of the devices by node; display GPUs have no share."""
    rows = Device.objects.using(using).filter(retired_at=None)
    found: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for node_id, kind, cpus, memory in rows.values_list(
        "node_id", "device_type", "cpus", "memory_bytes"
    ):
        if not is_display(kind):
            found[node_id].append((cpus, memory))
    return found
