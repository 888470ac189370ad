"""Old audit rows are removed by this one function, which leaves a row that says so."""

from datetime import datetime
from typing import Final

from django.db import transaction

from tenants.audit import Actor, record
from tenants.models import AuditEntry

_BATCH: Final = 2_000


def prune_audit(*, actor: Actor, before: datetime, batch: int = _BATCH) -> int:
    """Remove the audit rows from before a time, in short transactions.

    Args:
        actor: who asked (``Actor.system("beat")``).
        before: rows older than this go.
        batch: rows per transaction.

    Returns:
        How many rows were removed; if any were, a new row ``audit.prune`` tells it.
    """
    # The model's own manager refuses to delete; only this function goes round it.
    rows = AuditEntry._base_manager
    removed = 0
    while True:
        with transaction.atomic():
            old = rows.filter(at__lt=before).order_by("pk")
            keys = list(old.values_list("pk", flat=True)[:batch])
            if keys:
                removed += rows.filter(pk__in=keys).delete()[0]
        if len(keys) < batch:
            break
    if removed:
        record(
            actor=actor,
            action="audit.prune",
            object_type="auditentry",
            after={"removed": removed, "before": before},
        )
    return removed
