"""Validation of an imported configuration, and owners of its virtual clusters."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduling.clusters.models import VirtualCluster
from scheduling.clusters.services.vc_values import NAME_PATTERN
from scheduling.core.cells import ClusterSpec, VcSpec
from scheduling.core.messages import sentence
from scheduling.topology.current import TopologyNow
from tenants.errors import FieldError, InvalidError
from tenants.models import Tenant
from tenants.services import create_tenant
from tenants.viewers import Viewer

PHYSICAL: Final = "physicalCluster"
VIRTUAL: Final = "virtualClusters"
_LONGEST_ADDRESS: Final = 200
_LONGEST_NAME: Final = 63
_LONGEST_TYPE: Final = 100


def length_faults(topology: TopologyNow, spec: ClusterSpec) -> list[FieldError]:
    """Return faults of names that are too long to be stored, the first of each kind."""
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
            message=sentence("name-too-long", longest=longest),
            remedy=sentence("use-shorter-name"),
        )
        for where, names, longest in kinds
        for name in [name for name in names if len(name) > longest][:1]
    ]


def quota_faults(topology: TopologyNow, spec: ClusterSpec) -> list[FieldError]:
    """Return faults of quotas with unknown chains or levels."""
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
                        message=sentence("no-such-cells"),
                        remedy=sentence(
                            "choices", names=", ".join(known) or sentence("none-without-cells")
                        ),
                    )
                )
    return faults


def refuse_archived(rows: Mapping[str, VirtualCluster], shares: Mapping[str, VcSpec]) -> None:
    """Reject the name of an archived virtual cluster, to which its history belongs."""
    for name in shares:
        if name in rows and rows[name].archived_at is not None:
            raise InvalidError(
                sentence("cluster-archived", name=name),
                field=f"{VIRTUAL}.{name}",
                value=name,
                remedy=sentence("name-has-history"),
            )


def refuse_names(names: Sequence[str]) -> None:
    """Reject names that are not valid for nodes."""
    for name in names:
        if len(name) > _LONGEST_NAME or not name.isprintable() or "~" in name:
            raise InvalidError(
                sentence("not-possible-node-name", name=repr(name[:80])),
                field=f"{PHYSICAL}.physicalCells",
                value=name,
                remedy=sentence("use-node-name-characters", most=_LONGEST_NAME),
            )


@dataclass(slots=True, kw_only=True)
class Owners:
    """Tenants of new virtual clusters.

    Attributes:
        tenant_of: ID of the tenant by name of the virtual cluster.
        missing: name of the tenant to create by name of the virtual cluster.
    """

    tenant_of: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def find_owners(
    *, viewer: Viewer, virtual_clusters: Collection[str], wanted: Mapping[str, str]
) -> Owners:
    """Return the owners of the virtual clusters that do not exist yet.

    Raises:
        InvalidError: a name is not valid, an owner is given for a virtual cluster that is unknown
            or belongs to another tenant, or the owner does not exist.
    """
    existing = dict(VirtualCluster.objects.unscoped().values_list("name", "tenant__name"))
    tenants = dict(
        Tenant.objects.visible_to(viewer).filter(archived_at=None).values_list("name", "id")
    )
    owners, faults = Owners(), []
    for name in virtual_clusters:
        if not re.fullmatch(NAME_PATTERN, name):
            faults.append(
                _fault(f"virtualClusters.{name}", name, sentence("use-cluster-name-characters"))
            )
            continue
        owner = wanted.get(name) or slug_of(name)
        if name in existing:
            if name in wanted and existing[name] != owner:
                faults.append(
                    _fault(
                        f"owners.{name}",
                        owner,
                        sentence("belongs-to-tenant", tenant=existing[name]),
                    )
                )
        elif owner in tenants:
            owners.tenant_of[name] = tenants[owner]
        elif name in wanted:
            faults.append(_fault(f"owners.{name}", owner, sentence("name-tenant")))
        else:
            owners.missing[name] = owner
    faults += [
        _fault(f"owners.{name}", wanted[name], sentence("only-clusters-of-document"))
        for name in wanted
        if name not in virtual_clusters
    ]
    InvalidError.raise_if(faults)
    return owners


def make_owners(*, viewer: Viewer, owners: Owners) -> tuple[str, ...]:
    """Create the missing tenants, and return their names."""
    made: dict[str, int] = {}
    for name, owner in owners.missing.items():
        if owner not in made:
            made[owner] = create_tenant(viewer=viewer, name=owner).pk
        owners.tenant_of[name] = made[owner]
    return tuple(made)


def slug_of(name: str) -> str:
    """Return the tenant name that corresponds to the name of a virtual cluster."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return slug if slug[:1].isalpha() else f"t-{slug}"[:40].strip("-")


def _fault(where: str, value: object, remedy: str) -> FieldError:
    return FieldError(field=where, value=value, message=sentence("not-importable"), remedy=remedy)
