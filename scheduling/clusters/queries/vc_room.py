"""What a virtual cluster's cells have room for, as the engine of the next round would say."""

from functools import cached_property

from scheduling.clusters.queries.current_engine import EngineInForce, engine_in_force
from scheduling.clusters.queries.fitting_sizes import FitRow
from scheduling.clusters.queries.vc_cells import VcCells, vc_cells
from scheduling.clusters.queries.virtual_clusters import AskedVc, asked_vc
from scheduling.core.cells.largest_gangs import LargestGang
from tenants.viewers import Viewer


class VcRoom:
    """What only the cell engine knows, asked when it is told; all empty for one that is put away.

    Attributes:
        tenant: of the virtual cluster, as far as the viewer may know it.
    """

    def __init__(self, asked: AskedVc) -> None:
        self._asked = asked
        self.tenant = asked.viewer.name_of(asked.vc.tenant_id)

    @cached_property
    def fits(self) -> tuple[FitRow, ...]:
        """Which job sizes fit, by device type."""
        asked, engine = self._asked, self._engine
        return () if engine is None else engine.fits(asked.topology, asked.vc.name)

    @cached_property
    def largest(self) -> tuple[LargestGang, ...]:
        """The largest gangs that start now, by device type and size of an instance."""
        engine = self._engine
        return () if engine is None else engine.largest(self._asked.vc.name)

    @cached_property
    def cells(self) -> VcCells:
        """Its cells and where they are now."""
        asked, engine = self._asked, self._engine
        if engine is None:
            return VcCells()
        return vc_cells(asked.viewer, asked.topology, engine, asked.vc.name)

    @cached_property
    def _engine(self) -> EngineInForce | None:
        spec = self._asked.spec
        return engine_in_force(spec) if self._asked.vc.name in spec.virtual_clusters else None


def virtual_cluster_room(viewer: Viewer, key: int | str) -> VcRoom:
    """What fits one virtual cluster, and its cells.

    Raises:
        NotFoundError: there is none, or the viewer may not see it.
    """
    return VcRoom(asked_vc(viewer, key))
