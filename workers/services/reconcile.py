"""Comparison of rows and run directories: adopt running, finish ended, fence other runs."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduling.enums import MemberStep
from scheduling.runs.models import Member
from tessera import protocol
from tessera.protocol import RunStatus
from workers.models import LogStream
from workers.services.dispatch import OPEN, MemberRef, rank_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMember:
    """State of a member from its row.

    Attributes:
        log_first, reports_end: how far its streams have been fetched.
    """

    rank: MemberRef
    step: MemberStep
    log_first: int = 0
    reports_end: int = 0


class RunVerdict(StrEnum):
    """The action for one run or one member."""

    FOLLOW = "follow"
    FINISH = "finish"
    FENCE = "fence"
    FENCE_STRAY = "fence-stray"
    LOST = "lost"
    FORGET = "forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference between rows and directories, or one agreement that needs a follower."""

    verdict: RunVerdict
    run_id: str
    known: KnownMember | None = None
    status: RunStatus | None = None


def expected_members(*, node_id: int) -> list[KnownMember]:
    """Return members with runs on the node, or with directories not removed yet."""
    members = Member.objects.filter(
        node_id=node_id, removed_at=None, step__in=(MemberStep.RUNNING, MemberStep.EXITED)
    )
    return _known(members.select_related("attempt__job"))


def members_of_runs(*, node_id: int, run_ids: Collection[str]) -> dict[str, KnownMember]:
    """Return the members of these runs, by run id."""
    uids = {protocol.parse_run_id(run_id)[0] for run_id in run_ids}
    members = Member.objects.filter(node_id=node_id, attempt__uid__in=uids)
    found = _known(members.select_related("attempt__job"))
    return {known.rank.run_id: known for known in found if known.rank.run_id in run_ids}


def compare(
    *,
    runs: Iterable[RunStatus],
    expected: Iterable[KnownMember],
    rows: Mapping[str, KnownMember],
    installation: str,
) -> list[Finding]:
    """Return the action for every run and every member.

    Args:
        runs: runs on the node.
        expected: members by the rows before the node was asked.
        rows: members of these runs, read after the node was asked. A run is created
            after its row, so one without a row here has no owner.
        installation: ours; runs of another one are left alone.
    """
    findings: list[Finding] = []
    seen: set[str] = set()
    for status in runs:
        seen.add(status.run_id)
        known = rows.get(status.run_id)
        verdict = _judge(status, known, installation)
        if verdict is not None:
            findings.append(
                Finding(verdict=verdict, run_id=status.run_id, known=known, status=status)
            )
    for known in expected:
        if known.rank.run_id not in seen:
            gone = RunVerdict.FORGET if known.step == MemberStep.EXITED else RunVerdict.LOST
            findings.append(Finding(verdict=gone, run_id=known.rank.run_id, known=known))
    return findings


def _judge(status: RunStatus, known: KnownMember | None, installation: str) -> RunVerdict | None:
    if known is None:
        ours = bool(installation) and status.installation == installation
        return RunVerdict.FENCE_STRAY if ours else None
    if known.step in OPEN:
        return RunVerdict.FOLLOW
    # The member is over for us. Its directory goes, and whatever still runs in it ends first.
    return RunVerdict.FINISH if status.phase == protocol.EXITED else RunVerdict.FENCE


def _known(members: Iterable[Member]) -> list[KnownMember]:
    found = list(members)
    logs = {
        log.member_id: log
        for log in LogStream.objects.filter(member_id__in=[member.pk for member in found])
    }
    return [
        KnownMember(
            rank=rank_of(member),
            step=MemberStep(member.step),
            log_first=logs[member.pk].first if member.pk in logs else 0,
            reports_end=logs[member.pk].reports_end if member.pk in logs else 0,
        )
        for member in found
    ]
