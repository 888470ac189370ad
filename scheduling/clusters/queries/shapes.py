"""Dry run of a guarantee: whether it fits with all others, remaining cells, and a certificate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from scheduling.clusters.queries.current_engine import proof_of
from scheduling.clusters.queries.reconfiguration import Effect, effect_of
from scheduling.clusters.queries.virtual_clusters import QuotaRow, shape_rows, spec_in_force
from scheduling.core.cells import ClusterSpec, Quota, VcSpec, feasible
from scheduling.core.cells.feasibility import AssignedCell
from scheduling.topology.current import TopologyNow, current_topology
from tenants.roles import Permission
from tenants.viewers import Viewer

NEW: Final = "(new)"
"""Placeholder for a virtual cluster that does not exist yet; not a valid name."""

Counts = Mapping[tuple[str, str], int]
"""Cells by chain and cell type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooMany:
    """A level with more requested cells than available.

    Attributes:
        asked: number of requested cells.
        most: number of cells that fit, with the other levels unchanged.
    """

    device_type: str
    level: str
    asked: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAnswer:
    """The result of a dry run of a guarantee.

    Attributes:
        rows: every level of every chain, with the remaining cells.
        devices: number of devices in the guarantee.
        witness: reason of the cell engine; empty if the guarantee fits.
        too_many: levels with too many cells; may be empty even if the guarantee does not fit.
        assignment: an assignment as certificate; empty if the guarantee does not fit.
        effect: effect on jobs; None without a change, or if the guarantee does not fit.
    """

    fits: bool
    rows: tuple[QuotaRow, ...]
    devices: int
    witness: str = ""
    too_many: tuple[TooMany, ...] = ()
    assignment: tuple[AssignedCell, ...] = ()
    effect: Effect | None = None


def try_shape(
    viewer: Viewer, counts: Counts, *, name: str = NEW, topology: TopologyNow | None = None
) -> ShapeAnswer:
    """Check whether ``counts`` can be guaranteed to ``name``; nothing is written.

    Args:
        viewer: a user who may edit virtual clusters, since the result covers all of them.
        counts: cells by chain and cell type; unknown levels are ignored.
        name: the virtual cluster; ``NEW`` for one that does not exist yet.
        topology: existing cells; by default the current topology.

    Raises:
        ForbiddenError: the viewer may not edit virtual clusters.
    """
    viewer.require(Permission.EDIT_VC, what="virtual clusters")
    topology = topology or current_topology()
    spec = spec_in_force(topology)
    wanted = _with(spec, name, counts, topology)
    answer = feasible(wanted)
    rows = shape_rows(topology, wanted, name)
    devices = sum(row.devices * row.count for row in rows)
    if not answer.ok:
        return ShapeAnswer(
            fits=False,
            rows=rows,
            devices=devices,
            witness=answer.witness,
            too_many=_too_many(spec, name, rows, topology),
        )
    effect = effect_of(viewer, spec, wanted)
    if not effect.change.fits:
        return ShapeAnswer(
            fits=False, rows=rows, devices=devices, witness=effect.change.witnesses[0]
        )
    return ShapeAnswer(
        fits=True,
        rows=rows,
        devices=devices,
        assignment=proof_of(wanted),
        effect=None if effect.is_empty else effect,
    )


def shape_in_force(topology: TopologyNow) -> tuple[AssignedCell, ...]:
    """Return one assignment of cells to the current guarantees, or empty if none exists."""
    return proof_of(spec_in_force(topology))


def _with(spec: ClusterSpec, name: str, counts: Counts, topology: TopologyNow) -> ClusterSpec:
    pinned = spec.virtual_clusters[name].pinned if name in spec.virtual_clusters else {}
    quotas = tuple(
        Quota(chain=chain, level=level, count=count)
        for (chain, level), count in sorted(counts.items())
        if count > 0
        and chain in topology.chains
        and topology.chains[chain].level_of_type(level) is not None
    )
    share = VcSpec(quotas=quotas, pinned=dict(pinned))
    return replace(spec, virtual_clusters={**spec.virtual_clusters, name: share})


def _too_many(
    spec: ClusterSpec, name: str, rows: tuple[QuotaRow, ...], topology: TopologyNow
) -> tuple[TooMany, ...]:
    counts = {(row.chain, row.type): row.count for row in rows}
    found = []
    for row in rows:
        if not row.count:
            continue
        # Each chain is checked alone, so that a fault in another chain does not hide a fault here.
        without = {
            (chain, level): count
            for (chain, level), count in counts.items()
            if chain == row.chain and level != row.type
        }
        lower = _with(spec, name, without, topology)
        if not feasible(lower).ok:
            continue
        most = next(
            other.left
            for other in shape_rows(topology, lower, name)
            if (other.chain, other.type) == (row.chain, row.type)
        )
        if most < row.count:
            found.append(
                TooMany(device_type=row.device_type, level=row.level, asked=row.count, most=most)
            )
    return tuple(found)
