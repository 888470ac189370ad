"""Nodes in a snapshot: their rows, facts, shares of devices, and CPU pools."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from django.db.models import FilteredRelation, Q, TextField
from django.db.models.functions import Cast

from scheduling.clusters.models import Device, Node
from scheduling.core.cpu_pools import CpuPool, pool_of
from scheduling.core.device_types import is_display
from scheduling.core.jobspec import Requirements
from scheduling.core.values import NodeFacts
from scheduling.enums import NodeState
from tessera.isolation import NAMESPACE

UNPROBED: Final = NAMESPACE
"""Assumed level of a node that was not probed; its runner does not start jobs at a lower level."""


def largest_nodes(devices: Iterable[tuple[Any, ...]]) -> Mapping[str, int]:
    """Return the devices of the largest node of each type."""
    counts = Counter((kind, node_id) for _, node_id, *_, kind, _, _, _ in devices)
    largest: dict[str, int] = {}
    for (kind, _), count in counts.items():
        largest[kind] = max(count, largest.get(kind, 0))
    return largest


def node_rows(using: str) -> list[tuple[Any, ...]]:
    """Return the nodes with the columns of ``node_facts`` and ``pools_of_rows``."""
    return list(
        Node.objects.using(using)
        .filter(removed_at=None)
        .annotate(
            open_tenancy=FilteredRelation("tenancies", condition=Q(tenancies__reset_at=None)),
            # Read as text: almost all are empty, and equal texts are parsed once.
            dedicated_text=Cast("dedicated_to", TextField()),
            type_memory_text=Cast("type_memory", TextField()),
            nvlink_text=Cast("nvlink_types", TextField()),
        )
        .order_by("name")
        .values_list(
            "id", "name", "state", "contact", "has_docker", "isolation_level",
            "open_tenancy__tenant_id", "dedicated_text", "has_rdma",
            "driver_version", "cuda_version", "gpu_memory_bytes", "type_memory_text",
            "nvlink_text", "cpus", "memory_bytes",
        )
    )  # fmt: skip


def device_rows(using: str) -> list[tuple[Any, ...]]:
    """Return the devices that are not retired."""
    return list(
        Device.objects.using(using)
        .filter(retired_at=None)
        .annotate(
            healthy_text=Cast("healthy", TextField()),
            suspect_text=Cast("suspect_since", TextField()),
        )
        .values_list(
            "id", "node_id", "address", "healthy_text", "cpus", "memory_bytes", "device_type",
            "node__name", "index", "suspect_text",
        )
    )  # fmt: skip


def node_facts(
    nodes: list[tuple[Any, ...]], devices: list[tuple[Any, ...]]
) -> tuple[NodeFacts, ...]:
    """Return the facts of the nodes that a round uses."""
    share: dict[int, tuple[float, int]] = {}
    for _, node_id, _, _, cpus, memory_bytes, *_ in devices:
        share.setdefault(node_id, (cpus, memory_bytes))
    return tuple(
        NodeFacts(
            name=name,
            placeable=state == NodeState.READY,
            healthy=contact != NodeState.DOWN,
            has_docker=has_docker,
            cpus_per_device=share.get(pk, (0.0, 0))[0],
            memory_per_device=share.get(pk, (0.0, 0))[1],
            isolation=level or UNPROBED,
            owner=owner,
            tenants=_tenants(dedicated),
            has_rdma=has_rdma,
            gpus=_gpu_facts(*gpus),
            type_memory=_type_memory(memory),
            nvlink=_names(nvlink),
        )
        for (
            pk, name, state, contact, has_docker, level, owner, dedicated, has_rdma, *gpus,
            memory, nvlink, _, _,
        ) in nodes
    )  # fmt: skip


def pools_of_rows(nodes: list[tuple[Any, ...]], devices: list[tuple[Any, ...]]) -> list[CpuPool]:
    """Return the CPUs and memory of the nodes that belong to no device; display GPUs have none."""
    shares: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for _, node_id, _, _, cpus, memory, kind, *_ in devices:
        if not is_display(kind):
            shares[node_id].append((cpus, memory))
    pools = [
        pool_of(name, cpus=cpus, memory=memory, shares=shares.get(pk, ()))
        for pk, name, *_, cpus, memory in nodes
    ]
    return [pool for pool in pools if pool is not None]


@lru_cache(maxsize=1024)
def _gpu_facts(driver: str, cuda: str, device_memory: int) -> Requirements:
    return Requirements(driver=driver, cuda=cuda, device_memory=device_memory)


@lru_cache(maxsize=1024)
def _type_memory(stored: str) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(json.loads(stored).items()))


@lru_cache(maxsize=1024)
def _names(stored: str) -> tuple[str, ...]:
    return tuple(json.loads(stored))


@lru_cache(maxsize=1024)
def _tenants(dedicated: str) -> frozenset[int]:
    return frozenset(json.loads(dedicated))
