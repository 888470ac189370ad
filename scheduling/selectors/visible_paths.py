"""Paths of a node that jobs of a tenant may see besides their own directories."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.isolation import VisiblePath


def visible_to(stored: Sequence[Mapping[str, Any]], tenant_id: int) -> list[VisiblePath]:
    """The paths of a node that jobs of a tenant see, in the order in which admins wrote them.

    Args:
        stored: ``Node.visible_paths``; an entry without tenants is for all.
        tenant_id: of the job.
    """
    return [
        VisiblePath(path=entry["path"], writable=bool(entry.get("writable")))
        for entry in stored
        if not entry.get("tenants") or tenant_id in entry["tenants"]
    ]
