"""What a virtual cluster's cells have room for, as the engine of the next round would say."""

from dataclasses import dataclass, field

from scheduling.core.cells.fragmentation import LargestGang
from scheduling.selectors.fits import FitRow
from scheduling.selectors.in_force import engine_in_force
from scheduling.selectors.topology import current_topology
from scheduling.selectors.vc_cells import VcCells, vc_cells
from scheduling.selectors.virtual_clusters import spec_in_force, virtual_cluster_for
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class VcRoom:
    """What only the cell engine knows; all empty for one that is put away.

    Attributes:
        tenant: of the virtual cluster, as far as the viewer may know it.
        fits: which job sizes fit, by device type.
        largest: the largest gangs that start now, by device type and size of an instance.
        cells: its cells and where they are now.
    """

    tenant: str
    fits: tuple[FitRow, ...] = ()
    largest: tuple[LargestGang, ...] = ()
    cells: VcCells = field(default_factory=VcCells)


def virtual_cluster_room(viewer: Viewer, key: int | str) -> VcRoom:
    """What fits one virtual cluster, and its cells.

    Raises:
        NotFoundError: there is none, or the viewer may not see it.
    """
    vc = virtual_cluster_for(viewer, key)
    topology = current_topology()
    spec = spec_in_force(topology)
    tenant = viewer.name_of(vc.tenant_id)
    if vc.name not in spec.virtual_clusters:
        return VcRoom(tenant=tenant)
    engine = engine_in_force(spec)
    return VcRoom(
        tenant=tenant,
        fits=engine.fits(topology, vc.name),
        largest=engine.largest(vc.name),
        cells=vc_cells(viewer, topology, engine, vc.name),
    )
