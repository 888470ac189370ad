"""Cells of a virtual cluster with their nodes and the gangs that fit, filtered by rights."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from scheduling.clusters.models import Device, VirtualCluster
from scheduling.clusters.queries.current_engine import EngineInForce, FitRow, engine_in_force
from scheduling.clusters.queries.virtual_clusters import AskedVc, asked_vc
from scheduling.core.cells.largest_gangs import LargestGang
from scheduling.core.cells.views import BoundLeaf, LeafUse, VirtualCell
from scheduling.core.round.gang_requests import job_of_group
from scheduling.enums import NodeState
from scheduling.jobs.models import Job
from scheduling.topology.current import CellView, TopologyNow
from tenants.roles import Permission
from tenants.viewers import Viewer

MOST_CELLS: Final = 128
MOST_NODES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VcLeaf:
    """A device of a bound cell.

    Attributes:
        tenant: tenant of the job on it; "another tenant" if the viewer may not see it.
        job_id: None without a job, or if the viewer may not see it.
        is_cordoned: whether the engine cannot use it only because its node is cordoned or drained.
    """

    address: str
    node: str
    device: int
    use: LeafUse
    tenant: str = ""
    job_id: int | None = None
    job: str = ""
    user: str = ""
    state: str = ""
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VcCell:
    """One cell of a virtual cluster.

    Attributes:
        address: virtual address.
        level: display name of its level; ``type`` is its cell type.
        physical: address of the bound physical cell; empty if unbound.
        doomed: whether it is bound only because the remaining machines are unhealthy.
    """

    number: int
    address: str
    chain: str
    device_type: str
    level: str
    type: str
    devices: int
    pinned: str
    physical: str
    doomed: bool
    leaves: tuple[VcLeaf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOwner:
    """The owner of a device: virtual cluster (empty if the viewer may not see it) and cell."""

    virtual_cluster: str
    number: int
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundNode:
    """A node with a bound cell of the virtual cluster.

    Attributes:
        owners: owner by device address; devices without an owner are omitted.
    """

    name: str
    tree: CellView
    owners: Mapping[str, CellOwner]


@dataclass(frozen=True, slots=True, kw_only=True)
class VcCells:
    """The cells of a virtual cluster, and the nodes on which they are bound.

    Attributes:
        cells: cells by number, at most ``MOST_CELLS``, bound ones first.
        nodes: nodes with bound cells by name, at most ``MOST_NODES``.
        bound: number of all bound cells.
        total: number of all cells.
        all_nodes: number of all nodes with bound cells.
    """

    cells: tuple[VcCell, ...] = ()
    nodes: tuple[BoundNode, ...] = ()
    bound: int = 0
    total: int = 0
    all_nodes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    tenant_id: int
    name: str
    user: str
    state: str


def vc_cells(viewer: Viewer, topology: TopologyNow, engine: EngineInForce, name: str) -> VcCells:
    """Return the cells of a virtual cluster in the current engine, in two or three queries."""
    own = engine.cells(name)
    shown = sorted(own, key=lambda cell: (not cell.physical, cell.number))[:MOST_CELLS]
    jobs = _jobs({leaf.group for cell in shown for leaf in cell.leaves if leaf.group})
    bad = {leaf.node for cell in shown for leaf in cell.leaves if leaf.use is LeafUse.BAD}
    cordoned = _cordoned(bad) if bad else frozenset()
    nodes = sorted({leaf.node for cell in own for leaf in cell.leaves})
    owners = _owners(viewer, engine, name)
    return VcCells(
        cells=tuple(_cell(viewer, topology, cell, jobs, cordoned) for cell in shown),
        nodes=tuple(
            BoundNode(name=node, tree=topology.tree_of(node), owners=owners.get(node, {}))
            for node in nodes[:MOST_NODES]
        ),
        bound=sum(bool(cell.physical) for cell in own),
        total=len(own),
        all_nodes=len(nodes),
    )


def _jobs(groups: set[str]) -> Mapping[int, _Job]:
    rows = Job.objects.unscoped().filter(pk__in={job_of_group(group) for group in groups})
    return {
        pk: _Job(tenant_id=tenant_id, name=name, user=user, state=state)
        for pk, tenant_id, name, user, state in rows.values_list(
            "id", "tenant_id", "name", "owner__username", "state"
        )
    }


def _cordoned(nodes: set[str]) -> frozenset[tuple[str, int]]:
    """Return node and index of healthy devices on those nodes that are cordoned or drained."""
    rows = Device.objects.filter(
        node__name__in=nodes,
        node__state__in=(NodeState.CORDONED, NodeState.DRAINING),
        healthy=True,
        retired_at=None,
    )
    return frozenset(rows.values_list("node__name", "index"))


def _cell(
    viewer: Viewer,
    topology: TopologyNow,
    cell: VirtualCell,
    jobs: Mapping[int, _Job],
    cordoned: frozenset[tuple[str, int]],
) -> VcCell:
    chain = topology.chains[cell.chain]
    level = chain.level_of_type(cell.level)
    return VcCell(
        number=cell.number,
        address=cell.address,
        chain=cell.chain,
        device_type=chain.device_type,
        level=level.level if level is not None else cell.level,
        type=cell.level,
        devices=cell.devices,
        pinned=cell.pinned,
        physical=cell.physical,
        doomed=cell.doomed,
        leaves=tuple(_leaf(viewer, leaf, jobs, cordoned) for leaf in cell.leaves),
    )


def _leaf(
    viewer: Viewer,
    leaf: BoundLeaf,
    jobs: Mapping[int, _Job],
    cordoned: frozenset[tuple[str, int]],
) -> VcLeaf:
    job_id = job_of_group(leaf.group) if leaf.group else 0
    job = jobs.get(job_id)
    if job is None:
        return VcLeaf(
            address=leaf.address,
            node=leaf.node,
            device=leaf.device,
            use=leaf.use,
            is_cordoned=leaf.use is LeafUse.BAD and (leaf.node, leaf.device) in cordoned,
        )
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    is_visible = visible is None or job.tenant_id in visible
    return VcLeaf(
        address=leaf.address,
        node=leaf.node,
        device=leaf.device,
        use=leaf.use,
        tenant=viewer.name_of(job.tenant_id),
        job_id=job_id if is_visible else None,
        job=job.name if is_visible else "",
        user=job.user if is_visible else "",
        state=job.state if is_visible else "",
    )


def _owners(
    viewer: Viewer, engine: EngineInForce, own: str
) -> Mapping[str, Mapping[str, CellOwner]]:
    """Return the owner of each device by node and address."""
    visible = VirtualCluster.objects.visible_to(viewer, Permission.VIEW_TENANT)
    names = set(visible.values_list("name", flat=True))
    found: dict[str, dict[str, CellOwner]] = {}
    for vc in engine.spec.virtual_clusters:
        for cell in engine.cells(vc):
            owner = CellOwner(
                virtual_cluster=vc if vc in names else "", number=cell.number, is_own=vc == own
            )
            for leaf in cell.leaves:
                found.setdefault(leaf.node, {})[leaf.address] = owner
    return found


class VcRoom:
    """Values that need the cell engine, computed on access; empty for an archived virtual cluster.

    Attributes:
        tenant: tenant of the virtual cluster, as far as the viewer may see it.
    """

    def __init__(self, asked: AskedVc) -> None:
        self._asked = asked
        self.tenant = asked.viewer.name_of(asked.vc.tenant_id)

    @cached_property
    def fits(self) -> tuple[FitRow, ...]:
        asked, engine = self._asked, self._engine
        return () if engine is None else engine.fits(asked.topology, asked.vc.name)

    @cached_property
    def largest(self) -> tuple[LargestGang, ...]:
        """Return the largest gangs that start now, by device type and instance size."""
        engine = self._engine
        return () if engine is None else engine.largest(self._asked.vc.name)

    @cached_property
    def cells(self) -> VcCells:
        """Return the cells and their bindings."""
        asked, engine = self._asked, self._engine
        if engine is None:
            return VcCells()
        return vc_cells(asked.viewer, asked.topology, engine, asked.vc.name)

    @cached_property
    def _engine(self) -> EngineInForce | None:
        spec = self._asked.spec
        return engine_in_force(spec) if self._asked.vc.name in spec.virtual_clusters else None


def virtual_cluster_room(viewer: Viewer, key: int | str) -> VcRoom:
    """Return the gangs that fit one virtual cluster, and its cells.

    Raises:
        NotFoundError: the virtual cluster is unknown, or the viewer may not see it.
    """
    return VcRoom(asked_vc(viewer, key))
