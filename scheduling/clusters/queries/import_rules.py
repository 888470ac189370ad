"""Import rules and priority classes for pages, REST and importers."""

from dataclasses import dataclass

from django.db.models import Q

from scheduling.clusters.models import ImportRule, PriorityClass, VirtualCluster
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRuleRow:
    """The names of Tessera for a name of another system; empty or None if not set."""

    id: int
    kind: str
    name: str
    virtual_cluster: str
    tenant: str
    tenant_id: int | None
    priority: str
    opportunistic: bool


def list_import_rules(viewer: Viewer) -> tuple[ImportRuleRow, ...]:
    """Return the rules without names of tenants that the viewer does not see, in one query."""
    viewer.require(Permission.VIEW_CLUSTER, what="the import rules")
    rows = ImportRule.objects.unscoped().select_related(
        "virtual_cluster", "tenant", "priority_class"
    )
    if not viewer.can(Permission.EDIT_VC):
        seen = VirtualCluster.objects.visible_to(viewer)
        rows = rows.filter(
            Q(virtual_cluster=None) | Q(virtual_cluster__in=seen),
            Q(tenant=None) | Q(tenant__in=seen.values("tenant_id")),
        )
    return tuple(
        ImportRuleRow(
            id=row.pk,
            kind=row.kind,
            name=row.name,
            virtual_cluster=row.virtual_cluster.name if row.virtual_cluster else "",
            tenant=row.tenant.name if row.tenant else "",
            tenant_id=row.tenant_id,
            priority=row.priority_class.name if row.priority_class else "",
            opportunistic=row.is_opportunistic,
        )
        for row in rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClassRow:
    id: int
    name: str
    value: int
    note: str
    is_default: bool
    version: int


def list_priority_classes(viewer: Viewer) -> tuple[PriorityClassRow, ...]:
    """Return all priority classes, the highest first, in one query."""
    viewer.require(Permission.VIEW_CLUSTER, what="the priority classes")
    return tuple(
        PriorityClassRow(
            id=row.pk,
            name=row.name,
            value=row.value,
            note=row.note,
            is_default=row.is_default,
            version=row.version,
        )
        for row in PriorityClass.objects.order_by("-value", "name")
    )
