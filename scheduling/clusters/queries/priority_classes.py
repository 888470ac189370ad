"""Priority classes for pages and REST."""

from dataclasses import dataclass

from scheduling.clusters.models import PriorityClass
from tenants.roles import Permission
from tenants.viewers import Viewer


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
