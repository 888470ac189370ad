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
        VisiblePath(
            path=entry["path"],
            writable=bool(entry.get("writable")),
            checkpoints=bool(entry.get("checkpoints")),
        )
        for entry in stored
        if not entry.get("tenants") or tenant_id in entry["tenants"]
    ]


def hidden_from_jobs(stored: Sequence[Mapping[str, Any]]) -> list[str]:
    """The directories for checkpoints of a node: a job sees at most its own place in one.

    Args:
        stored: ``Node.visible_paths``.
    """
    return [entry["path"] for entry in stored if entry.get("checkpoints")]
