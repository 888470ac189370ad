"""Checking that the quotas of a specification fit its physical cells, with an assignment as proof.

The engine binds cells only when jobs start, so the real assignment may differ. The algorithm goes
from the top level down and splits a cell only if no cell of the level is left (HiveD, OSDI '20,
section 3.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.core.cells.books import build_ledgers
from scheduling.core.cells.buddy import BuddyAllocator
from scheduling.core.cells.errors import InfeasibleSpecError, SpecError
from scheduling.core.cells.spec import ClusterSpec
from scheduling.core.cells.topology import ChainTopology, ClusterTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """The result of :func:`feasible`.

    Attributes:
        ok: whether every virtual cluster can always get all of its quota.
        witness: the chain and level with too few cells; empty if all quotas fit.
        field: the field to change.
        spare: (chain, level type) -> cells that no quota claims, counted from the top.
    """

    ok: bool
    witness: str = ""
    field: str = ""
    spare: Mapping[tuple[str, str], int] | None = None


def feasible(spec: ClusterSpec) -> Feasibility:
    """Check that the quotas fit the physical cells.

    The check goes from the top level down: cells left after the quotas of a level are split into
    the next level. Pinned cells have fixed places, so they are allocated first.
    """
    try:
        ledgers = build_ledgers(spec, ClusterTopology(spec))
    except SpecError as error:
        return Feasibility(ok=False, witness=str(error), field=error.field)
    spare = {}
    for name, ledger in ledgers.items():
        left = ledger.buddy.splittable()
        for level in range(1, ledger.topology.levels + 1):
            spare[name, ledger.topology.types[level]] = left[level]
    return Feasibility(ok=True, spare=spare)


def fitting_sizes(
    spec: ClusterSpec, vc: str, topology: ClusterTopology | None = None
) -> dict[str, dict[int, int]]:
    """Return the guaranteed job sizes: device type -> devices per instance -> number of instances.

    Only sizes of complete cells at or below node level are listed. Use by other virtual
    clusters is ignored.

    Args:
        spec: the cluster with its shares.
        vc: name of the virtual cluster.
        topology: topology of ``spec``, if the caller has it.
    """
    topology = topology or ClusterTopology(spec)
    sizes: dict[str, dict[int, int]] = {}
    for quota in spec.virtual_clusters[vc].quotas:
        chain = topology.chains[quota.chain]
        level = chain.level_named(quota.level)
        if level is None:
            continue
        by_size = sizes.setdefault(chain.leaf_type, {})
        for low in range(1, min(level, chain.node_level) + 1):
            size = chain.sizes[low][1]
            by_size[size] = by_size.get(size, 0) + quota.count * chain.sizes[level][low]
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedCell:
    """A physical cell assigned to one cell of a virtual cluster's guarantee.

    Attributes:
        vc: name of the virtual cluster.
        address: address of the cell.
        leaves: addresses of its devices.
        pinned: whether it is a pinned cell.
    """

    vc: str
    address: str
    leaves: tuple[str, ...]
    pinned: bool


def assign(spec: ClusterSpec) -> tuple[AssignedCell, ...]:
    """Assign a physical cell to each cell of each guarantee, without overlap.

    Raises:
        InfeasibleSpecError: the guarantees do not fit together.
        SpecError: the specification is invalid.
    """
    answer = feasible(spec)
    if not answer.ok:
        raise InfeasibleSpecError(
            answer.witness,
            field=answer.field,
            value=answer.witness,
            remedy="lower a quota at or above that level, or add cells",
        )
    topology = ClusterTopology(spec)
    taken: list[AssignedCell] = []
    for name, chain in topology.chains.items():
        buddy = BuddyAllocator(chain)
        places = {address: cell for cell, address in enumerate(chain.address)}
        for vc, shares in sorted(spec.virtual_clusters.items()):
            here = [places[address] for address in shares.pinned.values() if address in places]
            taken.extend(_take(buddy, vc, cell, pinned=True) for cell in sorted(here))
        for level, vc, count in _wanted(spec, chain, name):
            taken.extend(
                _take(buddy, vc, _free_cell(buddy, level), pinned=False) for _ in range(count)
            )
    return tuple(taken)


def _wanted(spec: ClusterSpec, chain: ChainTopology, name: str) -> list[tuple[int, str, int]]:
    """Return quotas in one chain as (level, virtual cluster, cells), largest cells first."""
    found = [
        (level, vc, quota.count)
        for vc, shares in spec.virtual_clusters.items()
        for quota in shares.quotas
        if quota.chain == name and (level := chain.level_named(quota.level)) is not None
    ]
    return sorted(found, key=lambda want: (-want[0], want[1]))


def _free_cell(buddy: BuddyAllocator, level: int) -> int:
    """Return the first free cell of the level, otherwise the first inside the smallest larger one.

    Such a cell exists, since all quotas fit and larger cells were assigned before smaller ones.
    """
    topology = buddy.topology
    higher = next(n for n in range(level, topology.levels + 1) if buddy.free_cells(n))
    cell = buddy.free_cells(higher)[0]
    while topology.level[cell] > level:
        cell = topology.child_lo[cell]
    return cell


def _take(buddy: BuddyAllocator, vc: str, cell: int, *, pinned: bool) -> AssignedCell:
    topology = buddy.topology
    low, high = topology.leaf_lo[cell], topology.leaf_hi[cell]
    # If a pinned cell lacks devices, the complete cells inside it are allocated instead.
    whole = [cell] if topology.complete[cell] else topology.roots
    for part in whole:
        if low <= topology.leaf_lo[part] and topology.leaf_hi[part] <= high:
            buddy.allocate(part)
    return AssignedCell(
        vc=vc,
        address=topology.address[cell],
        leaves=tuple(topology.address[topology.base[1] + leaf] for leaf in range(low, high)),
        pinned=pinned,
    )
