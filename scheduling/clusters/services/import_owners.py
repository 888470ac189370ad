"""Which tenant owns each virtual cluster of an imported configuration."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from scheduling.clusters.models import VirtualCluster
from scheduling.clusters.services.vc_values import NAME_PATTERN
from scheduling.core.messages import sentence
from tenants.errors import FieldError, InvalidError
from tenants.models import Tenant
from tenants.services import create_tenant
from tenants.viewers import Viewer


@dataclass(slots=True, kw_only=True)
class Owners:
    """Tenants by new virtual cluster.

    Attributes:
        tenant_of: id of the tenant by name of the virtual cluster.
        missing: name of the tenant to make by name of the virtual cluster.
    """

    tenant_of: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def find_owners(
    *, viewer: Viewer, virtual_clusters: Collection[str], wanted: Mapping[str, str]
) -> Owners:
    """The owners of the virtual clusters that do not exist yet.

    Raises:
        InvalidError: a name is none, an owner is named for a virtual cluster that is not there or
            belongs to another tenant, or the owner does not exist.
    """
    existing = dict(VirtualCluster.objects.unscoped().values_list("name", "tenant__name"))
    tenants = dict(
        Tenant.objects.visible_to(viewer).filter(archived_at=None).values_list("name", "id")
    )
    owners, faults = Owners(), []
    for name in virtual_clusters:
        if not re.fullmatch(NAME_PATTERN, name):
            faults.append(
                _fault(f"virtualClusters.{name}", name, "Use 1 to 63 of A-Z a-z 0-9 . _ -.")
            )
            continue
        owner = wanted.get(name) or slug_of(name)
        if name in existing:
            if name in wanted and existing[name] != owner:
                faults.append(_fault(f"owners.{name}", owner, f"It belongs to {existing[name]}."))
        elif owner in tenants:
            owners.tenant_of[name] = tenants[owner]
        elif name in wanted:
            faults.append(_fault(f"owners.{name}", owner, sentence("name-tenant")))
        else:
            owners.missing[name] = owner
    faults += [
        _fault(f"owners.{name}", wanted[name], "Name only virtual clusters of the document.")
        for name in wanted
        if name not in virtual_clusters
    ]
    InvalidError.raise_if(faults)
    return owners


def make_owners(*, viewer: Viewer, owners: Owners) -> tuple[str, ...]:
    """Make the tenants that are missing; returns their names."""
    made: dict[str, int] = {}
    for name, owner in owners.missing.items():
        if owner not in made:
            made[owner] = create_tenant(viewer=viewer, name=owner).pk
        owners.tenant_of[name] = made[owner]
    return tuple(made)


def slug_of(name: str) -> str:
    """The name of a tenant that is named after a virtual cluster."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return slug if slug[:1].isalpha() else f"t-{slug}"[:40].strip("-")


def _fault(where: str, value: object, remedy: str) -> FieldError:
    return FieldError(field=where, value=value, message="This cannot be imported.", remedy=remedy)
