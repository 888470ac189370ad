"""Retention of this installation: defaults of the rooms, unless a setting overrides them."""

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

from django.conf import settings

from scheduling.maintenance.retention import Retention
from workers.services.retention import WorkerRetention


def kept() -> Retention:
    """Ages of rounds, events, jobs and the audit log."""
    set_here: dict[str, Any] = _ages(Retention)
    if settings.TESSERA.keep_round_bytes is not None:
        set_here["round_bytes"] = settings.TESSERA.keep_round_bytes
    return replace(Retention(), **set_here)


def kept_of_nodes() -> WorkerRetention:
    """Return the retention of reports of nodes: logs and goodput."""
    return replace(WorkerRetention(), **_ages(WorkerRetention))


def age(days: float) -> timedelta | None:
    """Convert days to an age; None (for ever) for negative days."""
    return None if days < 0 else timedelta(days=days)


def _ages(values: type[Retention] | type[WorkerRetention]) -> dict[str, timedelta | None]:
    chosen: Mapping[str, float] = settings.TESSERA.keep_days
    names = {field.name for field in fields(values)}
    return {name: age(days) for name, days in chosen.items() if name in names}
