"""Retention of the audit: the only function that deletes old rows, with a record of it."""

from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from tenants.audit import Actor, record
from tenants.clock import database_now
from tenants.models import AuditAnchor, AuditEntry, AuditLink

_BATCH: Final = 2_000
LEAST_AGE: Final = timedelta(days=1)
"""Minimum age of removed rows; the database refuses to remove younger ones, too."""


def prune_audit(*, actor: Actor, before: datetime, batch: int = _BATCH) -> int:
    """Delete audit rows from before a time, in short transactions.

    Rows are deleted from the beginning of the chain up to the first that is too young. Each
    transaction writes an anchor, from which the chain can be verified, and a row ``audit.prune``.

    Args:
        actor: such as ``Actor.system("beat")``.
        before: rows older than this are deleted, unless younger than ``LEAST_AGE``.
        batch: rows per transaction.

    Returns:
        The number of deleted rows.
    """
    before = min(before, database_now() - LEAST_AGE)
    removed = 0
    while True:
        now_removed = _prune(actor, before, batch)
        removed += now_removed
        if now_removed < batch:
            return removed


@transaction.atomic
def _prune(actor: Actor, before: datetime, batch: int) -> int:
    # The manager of the model refuses deletions; only this function bypasses it.
    rows = AuditEntry._base_manager
    links = list(AuditLink.objects.order_by("position")[:batch])
    keys = [link.entry_id for link in links]
    old = set(rows.filter(pk__in=keys, at__lt=before).values_list("pk", flat=True))
    count = next((i for i, link in enumerate(links) if link.entry_id not in old), len(links))
    if count == 0:
        return 0
    last = links[count - 1]
    AuditAnchor.objects.create(position=last.position, hash=last.hash, before=before)
    AuditLink.objects.filter(position__lte=last.position).delete()
    rows.filter(pk__in=keys[:count]).delete()
    record(
        actor=actor,
        action="audit.prune",
        object_type="auditentry",
        after={
            "removed": count,
            "before": before,
            "position": last.position,
            "hash": last.hash,
        },
    )
    return count
