"""What is refused of an imported configuration before anything is written."""

from collections.abc import Mapping, Sequence
from typing import Final

from scheduling.clusters.models import VirtualCluster
from scheduling.core.cells import ClusterSpec, VcSpec
from scheduling.core.messages import sentence
from scheduling.topology.current import TopologyNow
from tenants.errors import FieldError, InvalidError

PHYSICAL: Final = "physicalCluster"
VIRTUAL: Final = "virtualClusters"
_LONGEST_ADDRESS: Final = 200
_LONGEST_NAME: Final = 63
_LONGEST_TYPE: Final = 100


def length_faults(topology: TopologyNow, spec: ClusterSpec) -> list[FieldError]:
    """Names that are too long to be stored, the first of each kind."""
    pins = [name for share in spec.virtual_clusters.values() for name in share.pinned]
    kinds = (
        (f"{PHYSICAL}.cellTypes", [*spec.cell_types, *topology.cells.leaf_types], _LONGEST_TYPE),
        (f"{PHYSICAL}.physicalCells", topology.cells.leaves, _LONGEST_ADDRESS),
        (f"{PHYSICAL}.physicalCells.pinnedCellId", pins, _LONGEST_NAME),
    )
    return [
        FieldError(
            field=where,
            value=name,
            message=f"This name has more than {longest} characters.",
            remedy="Use a shorter one.",
        )
        for where, names, longest in kinds
        for name in [name for name in names if len(name) > longest][:1]
    ]


def quota_faults(topology: TopologyNow, spec: ClusterSpec) -> list[FieldError]:
    """Quotas of chains or levels that are not there."""
    faults = []
    for name, share in spec.virtual_clusters.items():
        for position, quota in enumerate(share.quotas):
            chain = topology.chains.get(quota.chain)
            if chain is None or chain.level_of_type(quota.level) is None:
                known = [level.type for level in chain.levels] if chain else topology.chains
                faults.append(
                    FieldError(
                        field=f"{VIRTUAL}.{name}.virtualCells[{position}].cellType",
                        value=f"{quota.chain}.{quota.level}",
                        message="The physical cluster has no such cells.",
                        remedy=sentence(
                            "choices", names=", ".join(known) or "none, it has no cells"
                        ),
                    )
                )
    return faults


def refuse_archived(rows: Mapping[str, VirtualCluster], shares: Mapping[str, VcSpec]) -> None:
    """Refuse the name of a virtual cluster that was put away: its history belongs to it."""
    for name in shares:
        if name in rows and rows[name].archived_at is not None:
            raise InvalidError(
                sentence("cluster-archived", name=name),
                field=f"{VIRTUAL}.{name}",
                value=name,
                remedy="Use another name; its history belongs to the old one.",
            )


def refuse_names(names: Sequence[str]) -> None:
    """Refuse names that no node can have."""
    for name in names:
        if len(name) > _LONGEST_NAME or not name.isprintable() or "~" in name:
            raise InvalidError(
                f"A node cannot be named {name[:80]!r}.",
                field=f"{PHYSICAL}.physicalCells",
                value=name,
                remedy=f"Use up to {_LONGEST_NAME} printable characters without '~'.",
            )
