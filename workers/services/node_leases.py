"""Node leases of node services, with an epoch that fences off the previous service."""

import math
from collections.abc import Collection, Iterable, Mapping, Set, Sized
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db import transaction
from django.db.models import F, Min, Q, QuerySet

from scheduling.clusters.models import Node
from scheduling.enums import NodeState
from tenants.clock import MOST_SKEW
from workers.models import Heartbeat, NodeBackoff, NodeLease
from workers.services import reach
from workers.services.heartbeats import has_ended
from workers.services.reach import Silence

SERVICE_KIND: Final = "nodes"
CLOCK_SKEW: Final = "clock-skew"
"""Code of a service that gets no nodes, since its host's clock differs too much from the
database's."""


class NodeClaim(NamedTuple):
    """The claim of a service on a node.

    Attributes:
        epoch: epoch of the lease.
        silent: seconds since a service recorded the loss of contact; None without a valid record.
    """

    epoch: int
    silent: float | None


def claim_nodes(
    *, owner: str, carried: Collection[int], now: datetime, lease: timedelta, fresh: timedelta
) -> dict[int, NodeClaim]:
    """Claim nodes without a lease, up to a fair share of all nodes.

    An implausibly late lease is not in force.

    Args:
        owner: name of this service.
        carried: nodes that it manages already.
        now: the instant of the decision.
        lease: lifetime of a claim without renewal.
        fresh: maximum age of the heartbeat of a live service.

    Returns:
        New claims, by node.
    """
    nodes = list(_nodes().values_list("id", flat=True))
    living = fellows(owner=owner, now=now, fresh=fresh)
    backing_off, impaired = _backing_off(now), _impaired(now)
    able = living - impaired
    room = _share(nodes, able, backing_off) - len(set(carried) - backing_off.keys())
    if owner in impaired and able:
        room = 0
    leases = NodeLease.objects.filter(
        expires_at__gt=now, expires_at__lte=now + lease + MOST_SKEW
    ).exclude(owner=owner)
    held = {
        node_id
        for node_id, other in leases.values_list("node_id", "owner")
        if not has_ended(other)
    }
    held |= set(carried)
    may_claim = [
        node_id
        for node_id in nodes
        if node_id not in held
        and reach.may_claim(
            owner, living=living, backing_off=backing_off.get(node_id, frozenset())
        )
    ]
    # A node that other services cannot reach does not count towards the share.
    epochs = _claim([one for one in may_claim if one in backing_off], owner, now, lease)
    others = [one for one in may_claim if one not in backing_off]
    while others and room > 0:
        wanted, others = others[:room], others[room:]
        taken = _claim(wanted, owner, now, lease)
        epochs |= taken
        room -= len(taken)
    # Read before the rows of this service are deleted, since they also record silences.
    silences = _noted_silences(epochs, now=now) if backing_off else {}
    if epochs and backing_off:
        end_backoffs(owner=owner, node_ids=epochs)
    return {node_id: NodeClaim(epoch, silences.get(node_id)) for node_id, epoch in epochs.items()}


def fellows(*, owner: str, now: datetime, fresh: timedelta) -> frozenset[str]:
    """Return the other live services that manage nodes."""
    found = Heartbeat.objects.filter(
        kind=SERVICE_KIND, at__gt=now - fresh, at__lte=now + MOST_SKEW, refusal=""
    ).exclude(process=owner)
    return frozenset(
        name for name in found.values_list("process", flat=True) if not has_ended(name)
    )


def surplus(*, owner: str, carried: Collection[int], now: datetime, fresh: timedelta) -> list[int]:
    """Return the nodes to release for services that manage fewer nodes."""
    able = fellows(owner=owner, now=now, fresh=fresh) - _impaired(now)
    backing_off = _backing_off(now)
    share = _share(_nodes().values_list("id", flat=True), able, backing_off)
    return sorted(set(carried) - backing_off.keys())[share:]


def _share(nodes: Iterable[int], able: Sized, backing_off: Mapping[int, Set[str]]) -> int:
    """Return the fair share of this service, with ``able`` other services."""
    return math.ceil(len(set(nodes) - backing_off.keys()) / (len(able) + 1))


# -- nodes that a service cannot reach -----------------------------------------------------------


def unreached(
    *,
    owner: str,
    silences: Mapping[int, Silence],
    living: Set[str],
    now: datetime,
) -> dict[int, Silence]:
    """Return the nodes to release for another service that may reach them.

    Args:
        owner: this service.
        silences: silences of the nodes that the service manages.
        living: the other services, see ``fellows``.
        now: the instant of the decision.
    """
    backing_off = _backing_off(now)
    return {
        node_id: silence
        for node_id, silence in silences.items()
        if reach.is_given_up(
            silence,
            others=reach.others_to_try(
                owner, living=living, backing_off=backing_off.get(node_id, frozenset())
            ),
        )
    }


@transaction.atomic
def back_off(
    *, owner: str, node_id: int, now: datetime, until: datetime, silent_since: datetime | None
) -> None:
    """Release a node that this service cannot reach, until ``until``."""
    NodeBackoff.objects.filter(until__lte=now).delete()
    NodeBackoff.objects.update_or_create(
        node_id=node_id,
        process=owner,
        defaults={"until": until},
        create_defaults={"until": until, "silent_since": silent_since},
    )
    release(owner=owner, node_ids=[node_id], now=now)


@transaction.atomic
def extend_backoff(*, owner: str, node_id: int, now: datetime, until: datetime) -> None:
    """Extend the back-off from a node, unless this service has claimed it again meanwhile."""
    if NodeLease.objects.filter(node_id=node_id, owner=owner, expires_at__gt=now).exists():
        return
    NodeBackoff.objects.update_or_create(node_id=node_id, process=owner, defaults={"until": until})


def end_backoffs(*, owner: str, node_ids: Collection[int] | None = None) -> None:
    """Delete the back-offs of ``owner`` from these nodes, or from all nodes."""
    rows = NodeBackoff.objects.filter(process=owner)
    (rows if node_ids is None else rows.filter(node_id__in=list(node_ids))).delete()


def _noted_silences(node_ids: Collection[int], *, now: datetime) -> dict[int, float]:
    """Return the recorded silence in seconds of nodes that other services could not reach."""
    found = NodeBackoff.objects.filter(
        node_id__in=list(node_ids), until__gt=now, silent_since__lte=now
    )
    since = dict(
        found.values("node_id").annotate(first=Min("silent_since")).values_list("node_id", "first")
    )
    return {node_id: (now - first).total_seconds() for node_id, first in since.items()}


def _backing_off(now: datetime) -> dict[int, frozenset[str]]:
    """Return the services that back off, by node."""
    found: dict[int, frozenset[str]] = {}
    rows = NodeBackoff.objects.filter(until__gt=now).values_list("node_id", "process")
    for node_id, process in rows:
        found[node_id] = found.get(node_id, frozenset()) | {process}
    return found


def hold(
    *, owner: str, epochs: Mapping[int, int], now: datetime, lease: timedelta
) -> frozenset[int]:
    """Renew the claims on these nodes; must be the first statement of a writing transaction.

    Returns:
        The nodes that ``owner`` still manages in the given epoch.
    """
    mine = NodeLease.objects.filter(owner=owner, node_id__in=list(epochs))
    # The update locks the rows, so that no service can take a node over before the commit.
    if not mine.update(expires_at=now + lease):
        return frozenset()
    return frozenset(
        node_id
        for node_id, epoch in mine.values_list("node_id", "epoch")
        if epochs[node_id] == epoch
    )


def release(*, owner: str, node_ids: Collection[int], now: datetime) -> None:
    """Release these nodes, so that other services can take them at once."""
    NodeLease.objects.filter(owner=owner, node_id__in=list(node_ids)).update(
        expires_at=now, owner=""
    )


def _nodes() -> QuerySet[Node]:
    return Node.objects.exclude(host="").order_by("id")


@transaction.atomic
def _claim(
    node_ids: Collection[int], owner: str, now: datetime, lease: timedelta
) -> dict[int, int]:
    """Take the leases of these nodes that are not in force; return the epochs by node.

    The number of statements does not depend on the number of nodes: after the loss of a host, one
    service takes hundreds.
    """
    if not node_ids:
        return {}
    rows = NodeLease.objects.filter(node_id__in=list(node_ids))
    missing = set(node_ids) - set(rows.values_list("node_id", flat=True))
    NodeLease.objects.bulk_create(
        (NodeLease(node_id=node_id, expires_at=now) for node_id in sorted(missing)),
        ignore_conflicts=True,
    )
    in_force = Q(expires_at__gt=now, expires_at__lte=now + lease + MOST_SKEW)
    owners = rows.filter(in_force).order_by().values_list("owner", flat=True).distinct()
    ended = [other for other in owners if other == owner or has_ended(other)]
    free = rows.filter(~in_force | Q(owner__in=ended))
    # In one order, so that two services that claim the same nodes do not wait for each other.
    locked = list(free.order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))
    # The condition holds for each row at its update: a lease renewed meanwhile is not taken.
    free.filter(pk__in=locked).update(owner=owner, epoch=F("epoch") + 1, expires_at=now + lease)
    return dict(rows.filter(pk__in=locked, owner=owner).values_list("node_id", "epoch"))


def _impaired(now: datetime) -> frozenset[str]:
    """Return the services that get no more nodes, since they cannot reach a node that may be
    healthy.

    They may have lost the network. Nodes in state *down* are not evidence.
    """
    rows = NodeBackoff.objects.filter(until__gt=now).exclude(node__contact=NodeState.DOWN)
    return frozenset(rows.values_list("process", flat=True))
