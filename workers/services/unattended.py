"""Detection of nodes without a node service, by other processes."""

import logging
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F, Q, QuerySet

from scheduling.clusters.models import Node
from scheduling.clusters.services.node_contact import contact_lost
from scheduling.core.messages import sentence
from scheduling.enums import NodeState
from tenants.clock import MOST_SKEW
from workers.conf import NODE_LEASE_SECONDS
from workers.models import NodeLease

log = logging.getLogger(__name__)

LAPSE_SECONDS: Final = 10.0
"""Minimum time in seconds since the expiry of a lease: a slow service may still renew it."""
REASON: Final = sentence("no-node-service")

_LEASE: Final = timedelta(seconds=NODE_LEASE_SECONDS)
_Lease = tuple[int, datetime | None]


def uncarried(now: datetime) -> QuerySet[Node]:
    """Return nodes without a lease that is in force."""
    in_force = Q(carrier__expires_at__gt=now, carrier__expires_at__lte=now + _LEASE + MOST_SKEW)
    return Node.objects.exclude(host="").filter(removed_at=None).exclude(in_force)


class UnattendedWatch:
    """Tracks expired leases, and marks nodes as suspect after some seconds.

    It measures from its first read of the expired lease, by the monotonic clock of this process,
    and restarts after a pause. So an outage of the database or of this process does not mark nodes
    as suspect.
    """

    def __init__(self) -> None:
        self._lapsed: dict[int, tuple[_Lease, float]] = {}
        self._looked_at = float("-inf")

    def look(self, *, now: datetime, ticks: float) -> list[int]:
        """Mark ready nodes that have had no lease for some seconds.

        Args:
            now: the database's time.
            ticks: this process's monotonic clock in seconds.

        Returns:
            The nodes that became suspect.
        """
        seen = {
            node_id: (epoch or 0, expires_at)
            for node_id, epoch, expires_at in uncarried(now)
            .filter(contact=NodeState.READY)
            .values_list("id", "carrier__epoch", "carrier__expires_at")
        }
        if ticks - self._looked_at > LAPSE_SECONDS:
            self._lapsed = {}
        self._looked_at = ticks
        before = self._lapsed
        self._lapsed = {
            node_id: before[node_id]
            if node_id in before and before[node_id][0] == lease
            else (lease, ticks)
            for node_id, lease in seen.items()
        }
        due = {
            node_id: lease
            for node_id, (lease, since) in self._lapsed.items()
            if ticks - since >= LAPSE_SECONDS
        }
        return [node_id for node_id, lease in sorted(due.items()) if _mark(node_id, lease, now)]


@transaction.atomic
def _mark(node_id: int, lease: _Lease, now: datetime) -> bool:
    """Revoke the lease, since its service may return, and mark the node."""
    epoch, expires_at = lease
    NodeLease.objects.get_or_create(node_id=node_id, defaults={"expires_at": now})
    as_read = NodeLease.objects.filter(node_id=node_id, epoch=epoch)
    if expires_at is not None:
        as_read = as_read.filter(expires_at=expires_at)
    if not as_read.update(owner="", epoch=F("epoch") + 1, expires_at=now):
        return False
    contact_lost(node_id=node_id, reason=REASON, now=now)
    log.error("node %s is suspect: no node service manages it", node_id)
    return True
