"""Gang outcome: success or failure of a gang, derived from the ends of its members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduling.core.jobspec import Completion
from scheduling.core.lifecycle import FailureClass

NEVER: Final = -1


class MemberEnd(StrEnum):
    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFate:
    """The end of one member, as far as reported.

    Attributes:
        order: rank through the gang; of several failures the one that ended first counts, then
            the lowest order.
        ended: seconds since the epoch.
    """

    role: str
    order: int
    end: MemberEnd
    ended: float = 0.0
    exit_code: int | None = None
    failure: FailureClass | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOutcome:
    """The end of a gang: success, or the decisive failure."""

    succeeded: bool
    exit_code: int | None = None
    failure: FailureClass | None = None
    message: str = ""


def judge(members: Sequence[MemberFate], rules: Mapping[str, Completion]) -> GangOutcome | None:
    """Return the outcome of the gang by its members' ends, or None while it is open.

    A role fails the gang with its ``min_failed``-th failure, and completes it with its
    ``min_succeeded``-th success (OpenPAI protocol v2, ``completion``). When all members have ended
    without either, the gang has succeeded unless the last rule that was not met counted failures.

    Args:
        members: every member of the gang.
        rules: completion by role.
    """
    failure = _deciding_failure(members, rules)
    if failure is not None:
        return GangOutcome(
            succeeded=False,
            exit_code=failure.exit_code,
            failure=failure.failure,
            message=failure.message,
        )
    if _a_role_completed(members, rules) or _all_are_done(members):
        return GangOutcome(succeeded=True, exit_code=0)
    return None


def _deciding_failure(
    members: Sequence[MemberFate], rules: Mapping[str, Completion]
) -> MemberFate | None:
    decided: list[MemberFate] = []
    for role, rule in rules.items():
        failed = sorted(
            (m for m in members if m.role == role and m.end is MemberEnd.FAILED),
            key=lambda m: (m.ended, m.order),
        )
        if rule.min_failed != NEVER and len(failed) >= rule.min_failed:
            decided.append(failed[rule.min_failed - 1])
    return min(decided, key=lambda m: (m.ended, m.order), default=None)


def _a_role_completed(members: Sequence[MemberFate], rules: Mapping[str, Completion]) -> bool:
    return any(
        rule.min_succeeded != NEVER
        and rule.min_succeeded
        <= sum(m.role == role and m.end is MemberEnd.SUCCEEDED for m in members)
        for role, rule in rules.items()
    )


def _all_are_done(members: Sequence[MemberFate]) -> bool:
    return all(m.end in (MemberEnd.SUCCEEDED, MemberEnd.FAILED) for m in members)
