"""Directives: orders to a node about one member, derived from the member's row."""

from enum import StrEnum

from scheduling.enums import MemberStep
from scheduling.runs.models import Member


class DirectiveKind(StrEnum):
    """The next thing that a node has to do for one member."""

    PREPARE = "prepare"
    GO = "go"
    CANCEL = "cancel"
    STOP = "stop"
    TUNE = "tune"
    NOTHING = "nothing"


def directive_of(member: Member) -> DirectiveKind:
    """The directive for ``member``, from its step, its stop request and its settings."""
    step = MemberStep(member.step)
    if member.stop_asked_at is not None:
        before_go = (MemberStep.WAITING, MemberStep.PREPARING, MemberStep.PREPARED)
        return DirectiveKind.CANCEL if step in before_go else DirectiveKind.STOP
    if step in (MemberStep.WAITING, MemberStep.PREPARING):
        return DirectiveKind.PREPARE
    if step is MemberStep.RUNNING and member.settings_told < member.settings_version:
        return DirectiveKind.TUNE
    return DirectiveKind.GO if step is MemberStep.STARTING else DirectiveKind.NOTHING
