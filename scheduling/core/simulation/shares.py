"""Guarantees of a simulated trace: virtual clusters with whole nodes of each device type."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.workloads.clusters import SimCluster
from scheduling.core.workloads.traces import SimulationError, Trace

_SHARE: Final = r"[A-Za-z0-9._-]+:[0-9]{1,6}"
_VC: Final = re.compile(rf"([^/=,\s]{{1,100}})=({_SHARE}(?:,{_SHARE})*)")
_ASSIGNING: Final = 1_000_033
#: Guaranteed nodes by virtual cluster, then by device type.
Shares = Mapping[str, Mapping[str, int]]


def read_shares(texts: list[str], cluster: SimCluster) -> Shares:
    """Parse guarantees from texts such as ``vision=aws:2,rtx:1``.

    Raises:
        SimulationError: a text is malformed, or the sum exceeds the cluster.
    """
    shares: dict[str, dict[str, int]] = {}
    promised = dict.fromkeys(cluster.types, 0)
    for text in texts:
        match = _VC.fullmatch(text)
        if match is None:
            raise SimulationError(
                f"--guarantee: {text[:80]!r} is not of the form NAME=TYPE:NODES,..."
            )
        if match[1] in shares:
            raise SimulationError(f"--guarantee: {match[1]} is given twice")
        nodes: dict[str, int] = {}
        for part in match[2].split(","):
            kind, _mark, count = part.partition(":")
            if kind not in promised:
                raise SimulationError(f"--guarantee: {match[1]}: device type {kind} not found")
            nodes[kind] = nodes.get(kind, 0) + int(count)
            promised[kind] += int(count)
            if promised[kind] > cluster.groups[kind].nodes:
                raise SimulationError(
                    f"--guarantee: {promised[kind]} nodes of {kind} are guaranteed, but the "
                    f"cluster has {cluster.groups[kind].nodes}"
                )
        shares[match[1]] = nodes
    return shares


def assigned(trace: Trace, shares: Shares, cluster: SimCluster, seed: int) -> list[str]:
    """Assign each job to its tenant's virtual cluster, or to a random one, weighted by size.

    Raises:
        SimulationError: a tenant has no virtual cluster.
    """
    names = sorted(shares)
    sizes = np.array([sum(guarantee(shares[name], cluster).values()) for name in names], float)
    if not sizes.sum():
        raise SimulationError("--guarantee: no guarantees given")
    lots = np.random.default_rng([seed, _ASSIGNING])
    drawn = lots.choice(len(names), size=len(trace.jobs), p=sizes / sizes.sum())
    found: list[str] = []
    for job, lot in zip(trace.jobs, drawn, strict=True):
        if job.tenant and job.tenant not in shares:
            raise SimulationError(
                f"{job.name}: its tenant {job.tenant} has no virtual cluster; add a "
                f"--guarantee for it"
            )
        found.append(job.tenant or names[int(lot)])
    return found


def guarantee(nodes: Mapping[str, int], cluster: SimCluster) -> dict[str, int]:
    """Return the guaranteed devices by type."""
    return {kind: count * cluster.groups[kind].devices for kind, count in nodes.items()}


def cluster_spec(cluster: SimCluster, shares: Shares) -> ClusterSpec:
    """Return the cells of a cluster: each device type is a chain of nodes.

    Args:
        cluster: the nodes by type.
        shares: guaranteed nodes by virtual cluster and type.
    """
    types: dict[str, CellType] = {}
    physical: list[PhysicalCell] = []
    for kind, group in cluster.groups.items():
        types[f"{kind}-node"] = CellType(child=kind, count=group.devices, node_level=True)
        types[f"{kind}-all"] = CellType(child=f"{kind}-node", count=group.nodes)
        nodes = tuple(PhysicalCell(address=node_name(kind, n)) for n in range(group.nodes))
        physical.append(PhysicalCell(type=f"{kind}-all", address=kind, children=nodes))
    return ClusterSpec(
        cell_types=types,
        physical=tuple(physical),
        virtual_clusters={
            name: VcSpec(
                quotas=tuple(
                    Quota(chain=f"{kind}-all", level=f"{kind}-node", count=count)
                    for kind, count in sorted(nodes.items())
                )
            )
            for name, nodes in shares.items()
        },
    )


def node_name(device_type: str, node: int) -> str:
    """Return the name of a node by its index among the nodes of a type."""
    return f"{device_type}#{node}"
