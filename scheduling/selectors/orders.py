"""What the members of a node's attempts need from the node now."""

from enum import StrEnum

from scheduling.enums import MemberStep
from scheduling.models import Member


class Order(StrEnum):
    """The next thing that a node has to do for one member."""

    PREPARE = "prepare"
    GO = "go"
    CANCEL = "cancel"
    STOP = "stop"
    TUNE = "tune"
    NOTHING = "nothing"


def order_of(member: Member) -> Order:
    """What ``member`` needs, from its step and whether it has been asked to leave."""
    step = MemberStep(member.step)
    if member.stop_asked_at is not None:
        before_go = (MemberStep.WAITING, MemberStep.PREPARING, MemberStep.PREPARED)
        return Order.CANCEL if step in before_go else Order.STOP
    if step in (MemberStep.WAITING, MemberStep.PREPARING):
        return Order.PREPARE
    if step is MemberStep.RUNNING and member.settings_told < member.settings_version:
        return Order.TUNE
    return Order.GO if step is MemberStep.STARTING else Order.NOTHING
