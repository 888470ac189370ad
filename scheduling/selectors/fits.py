"""Which job sizes fit a virtual cluster, asked of a cell engine with all that runs restored."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduling.core.cells import CellEngine, ClusterSpec, fitting_sizes
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import HOLDING
from scheduling.core.requests import restored_requests
from scheduling.core.values import HeldLeaf, HoldingJob
from scheduling.models import Device, Job, Lease, Node
from scheduling.selectors.topology import ChainView, TopologyNow

GANG_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)


class Fit(StrEnum):
    """When a gang of some size can start."""

    NOW = "now"
    LATER = "later"
    BORROW = "borrow"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """Which gangs fit, for one device type: an answer for each of ``sizes``.

    Attributes:
        sizes: devices of the gang; larger than a node means whole nodes.
        fits: in the same order.
    """

    device_type: str
    sizes: tuple[int, ...]
    fits: tuple[Fit, ...]


def what_fits(topology: TopologyNow, spec: ClusterSpec, vc: str) -> tuple[FitRow, ...]:
    """Which gangs fit a virtual cluster, by device type, in a fixed number of queries."""
    account = _engine_in_force(spec).free_view()["virtual_clusters"][vc]  # type: ignore[index]
    promised = fitting_sizes(spec, vc)
    by_type: dict[str, list[ChainView]] = defaultdict(list)
    for chain in topology.chains.values():
        by_type[chain.device_type].append(chain)
    rows = []
    for device_type, chains in by_type.items():
        now: dict[int, int] = defaultdict(int)
        for chain in chains:
            for size, count in account.get(chain.name, {}).get("largest_gang", {}).items():
                now[size] = max(now[size], count)
        largest = max(chain.devices for chain in chains)
        sizes = tuple(size for size in GANG_SIZES if size <= 2 * largest)
        rows.append(
            FitRow(
                device_type=device_type,
                sizes=sizes,
                fits=tuple(
                    _fit(size, now=now, later=promised.get(device_type, {}), chains=chains)
                    for size in sizes
                ),
            )
        )
    return tuple(rows)


def _fit(
    devices: int, *, now: Mapping[int, int], later: Mapping[int, int], chains: Sequence[ChainView]
) -> Fit:
    if _holds(devices, now, chains):
        return Fit.NOW
    if _holds(devices, later, chains):
        return Fit.LATER
    there = {
        level.devices: level.cells
        for chain in chains
        for level in chain.levels[: chain.node_level]
    }
    return Fit.BORROW if _holds(devices, there, chains) else Fit.NEVER


def _holds(devices: int, instances: Mapping[int, int], chains: Sequence[ChainView]) -> bool:
    """Whether a gang of so many devices is among the instances by size.

    A gang that is larger than a node is so many whole nodes.
    """
    for chain in chains:
        node = chain.levels[chain.node_level - 1].devices
        size = min(devices, node)
        count = -(-devices // size)
        if any(cell >= size and fit >= count for cell, fit in instances.items() if cell <= node):
            return True
    return False


def _engine_in_force(spec: ClusterSpec) -> CellEngine:
    """The cell engine with the health of now and all that runs, as the next round begins."""
    engine = CellEngine(spec)
    for name in (
        Node.objects.filter(removed_at=None).exclude(state="ready").values_list("name", flat=True)
    ):
        engine.set_node_health(name, healthy=False)
    for name, index in Device.objects.filter(retired_at=None, healthy=False).values_list(
        "node__name", "index"
    ):
        engine.set_device_health(name, index, healthy=False)
    for vc, job in _holding():
        if vc in spec.virtual_clusters:
            for request, placements in restored_requests(job, vc, 0.0):
                engine.restore(request, placements)
    return engine


def _holding() -> list[tuple[str, HoldingJob]]:
    """The jobs that hold devices, with their leaves by member."""
    leaves: dict[int, dict[int, list[HeldLeaf]]] = defaultdict(lambda: defaultdict(list))
    for job_id, member_id, address, virtual in (
        Lease.objects.filter(released_at=None)
        .order_by("job_id", "member_id", "id")
        .values_list("job_id", "member_id", "device__address", "virtual_cell")
    ):
        leaves[job_id][member_id].append(HeldLeaf(address=address, virtual=virtual))
    rows = (
        Job.objects.unscoped()
        .filter(state__in=HOLDING)
        .order_by("id")
        .values_list(
            "id",
            "virtual_cluster_id",
            "virtual_cluster__name",
            "tenant_id",
            "owner_id",
            "priority",
            "job_class",
            "demand",
        )
    )
    return [
        (
            name,
            HoldingJob(
                id=job_id,
                vc=vc_id,
                tenant=tenant_id,
                owner=owner_id,
                priority=priority,
                job_class=JobClass(job_class),
                demand=Demand.from_json(demand),
                submitted=0.0,
                since=0.0,
                leaving=False,
                members=tuple(tuple(held) for held in leaves[job_id].values()),
            ),
        )
        for job_id, vc_id, name, tenant_id, owner_id, priority, job_class, demand in rows
        if job_id in leaves
    ]
