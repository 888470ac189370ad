"""What the members of a node's attempts need from the node now."""

from collections.abc import Collection
from datetime import datetime
from enum import StrEnum

from scheduling.enums import MemberStep
from scheduling.models import JobSecret, Member
from scheduling.secrets import unseal


class Order(StrEnum):
    """The next thing that a node has to do for one member."""

    PREPARE = "prepare"
    GO = "go"
    CANCEL = "cancel"
    STOP = "stop"
    NOTHING = "nothing"


def open_members(*, node_ids: Collection[int]) -> list[Member]:
    """Members on these nodes that are not known to be gone, with attempt, job and node."""
    return list(
        Member.objects.filter(node_id__in=list(node_ids))
        .exclude(step__in=(MemberStep.EXITED, MemberStep.RELEASED))
        .select_related("attempt", "attempt__job", "node")
        .order_by("id")
    )


def members_with_orders(*, node_ids: Collection[int]) -> list[tuple[Member, Order]]:
    """The open members of these nodes for which something is to be done."""
    pairs = [(member, order_of(member)) for member in open_members(node_ids=node_ids)]
    return [(member, order) for member, order in pairs if order is not Order.NOTHING]


def order_of(member: Member) -> Order:
    """What ``member`` needs, from its step and whether it has been asked to leave."""
    step = MemberStep(member.step)
    if member.stop_asked_at is not None:
        before_go = (MemberStep.WAITING, MemberStep.PREPARING, MemberStep.PREPARED)
        return Order.CANCEL if step in before_go else Order.STOP
    if step in (MemberStep.WAITING, MemberStep.PREPARING):
        return Order.PREPARE
    return Order.GO if step is MemberStep.STARTING else Order.NOTHING


def removable_members(*, node_id: int) -> list[Member]:
    """Members of a node that have ended and whose run directories may still be there."""
    return list(
        Member.objects.filter(node_id=node_id, step=MemberStep.EXITED, removed_at=None)
        .select_related("attempt", "attempt__job")
        .order_by("id")
    )


def secrets_of(*, job_id: int, role: str) -> dict[str, str]:
    """The secrets of one role in the clear, for the node and nobody else."""
    rows = JobSecret.objects.filter(job_id=job_id, role=role)
    return {row.name: unseal(bytes(row.sealed)) for row in rows}


def silent_since(*, node_id: int, moment: datetime) -> list[Member]:
    """Open members of a node whose last confirmed renewal lies before ``moment``."""
    return [
        member
        for member in open_members(node_ids=[node_id])
        if (member.lease_renewed_at or member.step_since) < moment
    ]
