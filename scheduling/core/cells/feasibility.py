"""Whether a specification can be promised: quotas against complete cells, with a witness."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.core.cells.build import build_ledgers
from scheduling.core.cells.errors import SpecError
from scheduling.core.cells.spec import ClusterSpec
from scheduling.core.cells.topology import ClusterTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """The answer of :func:`feasible`.

    Attributes:
        ok: whether every virtual cluster can always get all of its quota.
        witness: where it fails, in words; empty when it does not.
        field: the field to change.
        spare: (chain, level type) -> cells that no quota claims, counted from the top.
    """

    ok: bool
    witness: str = ""
    field: str = ""
    spare: Mapping[tuple[str, str], int] | None = None


def feasible(spec: ClusterSpec) -> Feasibility:
    """Check the quotas against the physical cells; pure, and the dry run of a quota move.

    Top-down: what is left of a level after its quotas is split into the next. Pinned cells are at
    certain places, so after them the free cells are counted as they lie.
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
    """Which job sizes fit a virtual cluster: device type -> devices per instance -> instances.

    Only sizes that are a complete cell at or below node level are listed; what fits is what the
    quota guarantees, whatever others do.

    Args:
        spec: the cluster with its shares.
        vc: name of the virtual cluster.
        topology: of ``spec``, where it is there already.
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
