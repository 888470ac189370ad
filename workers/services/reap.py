"""Members on lost nodes: released only when it is proved that nothing of them runs."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from scheduling.core.messages import sentence
from scheduling.enums import NodeState
from scheduling.runs.models import Member
from scheduling.runs.services.attempts import BEFORE_GO
from workers.conf import WorkerSettings
from workers.services.dispatch import OPEN
from workers.services.node_reports import Lost, NeverBegan, NodeReport


def find_gone(
    *, node_ids: Collection[int], settings: WorkerSettings, now: datetime
) -> list[NodeReport]:
    """Return reports about members from which no report can come any more.

    These are all members on a node that an admin declared dead; and, on a node that is down, those
    never started, and those that must have ended: since the last contact with the control plane,
    lease, grace and a margin have passed on the node too.

    Args:
        node_ids: the nodes that this service manages.
        settings: of the workers.
        now: the instant.
    """
    members = (
        Member.objects.filter(node_id__in=list(node_ids), step__in=OPEN, removed_at=None)
        .filter(Q(node__declared_dead_at__isnull=False) | Q(node__contact=NodeState.DOWN))
        .select_related("node", "attempt__job")
    )
    return list(_news(members, settings, now))


def _news(
    members: QuerySet[Member], settings: WorkerSettings, now: datetime
) -> Iterator[NodeReport]:
    for member in members:
        # Tenants read this: the error of the transport may contain addresses and paths.
        message = f"{member.node.name} is gone: it does not answer"
        dead = _declared_dead(member)
        if member.step in BEFORE_GO and (dead or member.node.contact == NodeState.DOWN):
            yield NeverBegan(node_id=member.node_id, member_id=member.pk, message=message)
        elif member.step not in BEFORE_GO and (dead or fence(member, settings) < now):
            if dead:
                message = sentence("declared-dead", name=member.node.name)
            yield Lost(node_id=member.node_id, member_id=member.pk, message=message)


def fence(member: Member, settings: WorkerSettings) -> datetime:
    """Return when no process of the member can run any more, for any state of its node."""
    last = max(
        moment
        for moment in (
            member.lease_renewed_at,
            member.step_since,
            member.node.last_contact_at,
        )
        if moment is not None
    )
    grace = float(member.attempt.job.spec.get("grace_seconds", 30))
    return last + timedelta(seconds=settings.run_lease + grace + settings.fence_margin)


def _declared_dead(member: Member) -> bool:
    dead_at = member.node.declared_dead_at
    return dead_at is not None and member.attempt.created_at <= dead_at
