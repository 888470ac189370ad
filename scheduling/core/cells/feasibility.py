"""Checking that the quotas of a specification fit its physical cells, with a witness."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.core.cells.build import build_ledgers
from scheduling.core.cells.errors import SpecError
from scheduling.core.cells.spec import ClusterSpec
from scheduling.core.cells.topology import ClusterTopology


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
    """The guaranteed job sizes: device type -> devices per instance -> number of instances.

    Only sizes of complete cells at or below node level are listed. Use by other virtual clusters
    does not matter.

    Args:
        spec: the cluster with its shares.
        vc: name of the virtual cluster.
        topology: of ``spec``, if the caller has it.
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
