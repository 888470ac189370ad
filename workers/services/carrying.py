"""Which node service carries which node: leases with an epoch that fences off the one before."""

import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F, QuerySet

from scheduling.models import Node
from tenants.clock import MOST_SKEW
from workers.models import Heartbeat, NodeLease
from workers.services.identity import has_ended

SERVICE_KIND: Final = "nodes"
CLOCK_SKEW: Final = "clock-skew"
"""Why a service carries no nodes: its host's clock is too far off the database's."""


def claim_nodes(
    *, owner: str, carried: Collection[int], now: datetime, lease: timedelta, fresh: timedelta
) -> dict[int, int]:
    """Take nodes that nobody carries, up to a fair share of all nodes.

    A lease that ends later than any clock allows is broken: nobody carries its node.

    Args:
        owner: names this service.
        carried: nodes that it carries already.
        now: the instant of the decision.
        lease: how long a claim holds without renewal.
        fresh: a service whose heartbeat is older does not count.

    Returns:
        Epochs of the nodes that were taken.
    """
    nodes = list(_nodes().values_list("id", flat=True))
    room = fair_share(len(nodes), owner=owner, now=now, fresh=fresh) - len(carried)
    leases = NodeLease.objects.filter(
        expires_at__gt=now, expires_at__lte=now + lease + MOST_SKEW
    ).exclude(owner=owner)
    held = {
        node_id
        for node_id, other in leases.values_list("node_id", "owner")
        if not has_ended(other)
    }
    taken: dict[int, int] = {}
    for node_id in nodes:
        if len(taken) >= room:
            break
        if node_id not in held and node_id not in carried:
            epoch = _claim(node_id, owner, now, lease)
            if epoch is not None:
                taken[node_id] = epoch
    return taken


def fair_share(nodes: int, *, owner: str, now: datetime, fresh: timedelta) -> int:
    """How many nodes each living service that carries nodes should have."""
    fellows = Heartbeat.objects.filter(
        kind=SERVICE_KIND, at__gt=now - fresh, at__lte=now + MOST_SKEW, refusal=""
    ).exclude(process=owner)
    living = [name for name in fellows.values_list("process", flat=True) if not has_ended(name)]
    return math.ceil(nodes / (len(living) + 1))


def surplus(*, owner: str, carried: Collection[int], now: datetime, fresh: timedelta) -> list[int]:
    """Nodes to give up, because another service has come that carries fewer."""
    share = fair_share(_nodes().count(), owner=owner, now=now, fresh=fresh)
    return sorted(carried)[share:]


def hold(
    *, owner: str, epochs: Mapping[int, int], now: datetime, lease: timedelta
) -> frozenset[int]:
    """Renew the claims on these nodes; to be the first statement of a transaction that writes.

    Returns:
        The nodes that are still carried by ``owner`` in the epoch it knows.
    """
    mine = NodeLease.objects.filter(owner=owner, node_id__in=list(epochs))
    # The update takes the rows' locks, so that nobody can take a node over before the commit.
    if not mine.update(expires_at=now + lease):
        return frozenset()
    return frozenset(
        node_id
        for node_id, epoch in mine.values_list("node_id", "epoch")
        if epochs[node_id] == epoch
    )


def release(*, owner: str, node_ids: Collection[int], now: datetime) -> None:
    """Let others take these nodes at once."""
    NodeLease.objects.filter(owner=owner, node_id__in=list(node_ids)).update(
        expires_at=now, owner=""
    )


def _nodes() -> QuerySet[Node]:
    return Node.objects.exclude(host="").order_by("id")


@transaction.atomic
def _claim(node_id: int, owner: str, now: datetime, lease: timedelta) -> int | None:
    NodeLease.objects.get_or_create(node_id=node_id, defaults={"expires_at": now})
    found = NodeLease.objects.get(node_id=node_id)
    in_force = now < found.expires_at <= now + lease + MOST_SKEW
    if in_force and found.owner != owner and not has_ended(found.owner):
        return None
    # The row must still be as read: a lease renewed meanwhile is not taken.
    taken = NodeLease.objects.filter(
        pk=found.pk, epoch=found.epoch, owner=found.owner, expires_at=found.expires_at
    ).update(owner=owner, epoch=F("epoch") + 1, expires_at=now + lease)
    return found.epoch + 1 if taken else None
