"""Reconciliation of the rows of members with run directories on nodes.

Running runs are adopted, ended runs finished, and unknown runs fenced. Members on lost nodes are
released only when their processes have certainly ended.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import Q, QuerySet

from scheduling.core.messages import sentence
from scheduling.enums import MemberStep, NodeState
from scheduling.runs.models import Member
from scheduling.runs.services.attempts import BEFORE_GO
from tessera import protocol
from tessera.protocol import RunStatus
from workers.conf import WorkerSettings
from workers.models import LogStream
from workers.services.dispatch import OPEN, MemberRef, rank_of
from workers.services.node_reports import Lost, NeverBegan, NodeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMember:
    """State of a member from its row.

    Attributes:
        log_first, reports_end: fetched bounds of the member's streams.
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
    """The action for one run, with its run or member."""

    verdict: RunVerdict
    run_id: str
    known: KnownMember | None = None
    status: RunStatus | None = None


def expected_members(*, node_id: int) -> list[KnownMember]:
    """Return members with a run or a run directory on the node."""
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
        expected: members by the rows, read before the query to the node.
        rows: members of these runs, read after the query to the node. A run is created after its
            row, so a run without a row here has no owner.
        installation: this installation; runs of another installation remain untouched.
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
    # The member has ended in the rows. The node ends its remaining processes and deletes its
    # directory.
    return RunVerdict.FINISH if status.phase == protocol.EXITED else RunVerdict.FENCE


def _known(members: Iterable[Member]) -> list[KnownMember]:
    found = list(members)
    if not found:
        return []
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


def find_gone(
    *, node_ids: Collection[int], settings: WorkerSettings, now: datetime
) -> list[NodeReport]:
    """Return reports about members that cannot report any more.

    These are all members on nodes that an admin declared dead. On nodes that are down, these are
    members that never started, and members whose lease, grace period and margin have passed since
    the last contact.

    Args:
        node_ids: the nodes that this service manages.
        settings: settings of the workers.
        now: the current time.
    """
    members = (
        Member.objects.filter(node_id__in=list(node_ids), step__in=OPEN, removed_at=None)
        .filter(Q(node__declared_dead_at__isnull=False) | Q(node__contact=NodeState.DOWN))
        .select_related("node", "attempt__job")
    )
    return list(_reports_of_gone(members, settings, now))


def _reports_of_gone(
    members: QuerySet[Member], settings: WorkerSettings, now: datetime
) -> Iterator[NodeReport]:
    for member in members:
        # Tenants read this: the error of the transport may contain addresses and paths.
        message = f"{member.node.name} is lost: it does not respond"
        dead = _declared_dead(member)
        if member.step in BEFORE_GO and (dead or member.node.contact == NodeState.DOWN):
            yield NeverBegan(node_id=member.node_id, member_id=member.pk, message=message)
        elif member.step not in BEFORE_GO and (dead or fence(member, settings) < now):
            if dead:
                message = sentence("declared-dead", name=member.node.name)
            yield Lost(node_id=member.node_id, member_id=member.pk, message=message)


def fence(member: Member, settings: WorkerSettings) -> datetime:
    """Return the time after which no process of the member can run, in any state of its node."""
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
