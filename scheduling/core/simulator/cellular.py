"""Virtual clusters in a simulation: private views for the policy, and cells for the placement.

Each device type is a chain of nodes; a virtual cluster is guaranteed complete nodes of it. The
policy plans each virtual cluster separately, as in live rounds, and the cell engine places gangs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np

from scheduling.core.cells import (
    Bind,
    CellEngine,
    CellType,
    ClusterSpec,
    GangRequest,
    Member,
    PhysicalCell,
    Quota,
    VcSpec,
)
from scheduling.core.policies.base import Need, Policy
from scheduling.core.policy_interface import Alloc, Plan, Pool, Snapshot
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.faults import NodeChange
from scheduling.core.simulator.traces import SimulationError, Trace

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


class CellBook:
    """Devices of each job, as the cell engine places them."""

    def __init__(self, cluster: SimCluster, shares: Shares, vcs: list[str]) -> None:
        self._cluster = cluster
        self._vcs = vcs
        self._engine = CellEngine(_spec(cluster, shares))
        self._held: dict[int, list[tuple[str, int, int]]] = {}
        self._down: set[tuple[str, int]] = set()

    def take(self, job_id: int, alloc: Alloc, types: tuple[str, ...]) -> Alloc | None:
        """Bind cells of the job's virtual cluster; return None if none are free.

        Raises:
            SimulationError: the allocation mixes device types.
        """
        if len(alloc.parts) > 1:
            raise SimulationError("a job on several device types cannot be placed on cells")
        part = alloc.single
        request = GangRequest(
            group=str(job_id),
            vc=self._vcs[job_id],
            members=(Member(count=part.n, leaf_count=1),),
            leaf_types=(part.type,) if part.type is not None else types,
        )
        decision = self._engine.schedule(request)
        if not isinstance(decision, Bind):
            return None
        held: dict[tuple[str, int], int] = {}
        for placed in self._engine.commit(decision):
            kind, _mark, node = placed.node.rpartition("#")
            key = kind, int(node)
            held[key] = held.get(key, 0) + len(placed.devices)
        self._held[job_id] = [(kind, node, n) for (kind, node), n in sorted(held.items())]
        kind = self._held[job_id][0][0]
        return alloc if part.type == kind else replace(alloc, parts=(replace(part, type=kind),))

    def release(self, job_id: int) -> None:
        """Free a job's cells."""
        if self._held.pop(job_id, None) is not None:
            self._engine.release(str(job_id))

    def on(self, device_type: str, node: int) -> list[int]:
        """Return the jobs on a node, by ID."""
        return sorted(
            job_id
            for job_id, held in self._held.items()
            if any((kind, place) == (device_type, node) for kind, place, _n in held)
        )

    def change(self, change: NodeChange) -> None:
        """Note that a node is down, or back."""
        key = change.device_type, change.node
        (self._down.discard if change.is_up else self._down.add)(key)
        self._engine.set_node_health(_node(*key), healthy=change.is_up)

    def capacity(self) -> dict[str, int]:
        """Return the devices of the nodes that are up, by type."""
        return {
            kind: sum((kind, node) not in self._down for node in range(group.nodes))
            * group.devices
            for kind, group in self._cluster.groups.items()
        }

    def used(self) -> dict[tuple[str, int], int]:
        """Return the devices in use by node, for checks."""
        used = {
            (kind, node): 0
            for kind, group in self._cluster.groups.items()
            for node in range(group.nodes)
        }
        for held in self._held.values():
            for kind, node, n in held:
                used[kind, node] += n
        return used


@dataclass(frozen=True, slots=True, kw_only=True)
class PerVirtualCluster:
    """A policy that plans each virtual cluster separately, in its private view.

    Attributes:
        inner: decides for each of them.
        pools: guarantee of each, by the tenant's number.
    """

    inner: Policy
    pools: Mapping[int, Pool]

    name: ClassVar[str] = "per-vc"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "one independent policy for each virtual cluster"
    needs: ClassVar[frozenset[Need]] = frozenset(Need)
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Merge the plans of all virtual clusters."""
        plans: list[Plan] = []
        states: dict[str, Any] = {}
        for tenant, pool in sorted(self.pools.items()):
            jobs = tuple(job for job in snapshot.jobs if job.terms.tenant == tenant)
            if not jobs:
                continue
            view = replace(snapshot, pool=pool, jobs=jobs)
            plan, states[str(tenant)] = self.inner.plan(view, state.get(str(tenant), {}))
            plans.append(plan)
        wakes = [plan.wake for plan in plans if plan.wake is not None]
        faults = [fault for plan in plans for fault in plan.notes.get("faults", ())]
        return Plan(
            allocs=_united([plan.allocs for plan in plans]),
            order=tuple(job_id for plan in plans for job_id in plan.order),
            strict=any(plan.strict for plan in plans),
            offer=any(plan.offer for plan in plans),
            reject=_united([plan.reject for plan in plans]),
            wake=min(wakes, default=None),
            why=_united([plan.why for plan in plans]),
            notes={"faults": faults} if faults else {},
        ), states


def split(policy: Policy, shares: Shares, cluster: SimCluster) -> Policy:
    """Wrap a policy to plan each virtual cluster separately; return it unchanged without any."""
    if not shares:
        return policy
    pools = {
        number: Pool(
            capacity=MappingProxyType(guarantee(shares[name], cluster)),
            types=MappingProxyType({kind: cluster.infos[kind] for kind in shares[name]}),
        )
        for number, name in enumerate(sorted(shares), start=1)
    }
    return PerVirtualCluster(inner=policy, pools=pools)


def _united(maps: list[Any]) -> Mapping[int, Any]:
    return MappingProxyType({key: value for one in maps for key, value in one.items()})


def _spec(cluster: SimCluster, shares: Shares) -> ClusterSpec:
    types: dict[str, CellType] = {}
    physical: list[PhysicalCell] = []
    for kind, group in cluster.groups.items():
        types[f"{kind}-node"] = CellType(child=kind, count=group.devices, node_level=True)
        types[f"{kind}-all"] = CellType(child=f"{kind}-node", count=group.nodes)
        nodes = tuple(PhysicalCell(address=_node(kind, node)) for node in range(group.nodes))
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


def _node(device_type: str, node: int) -> str:
    return f"{device_type}#{node}"
