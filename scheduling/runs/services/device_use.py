"""Device use of running attempts, summed up for policies that read it."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from scheduling.clusters.models import VirtualCluster
from scheduling.core.round.policy_answers import PLAIN
from scheduling.runs.models import Attempt, AttemptUse, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A running attempt with its measured use so far.

    Attributes:
        since: minutes before it do not count, or are counted already.
        members: node and device indices of each of its members.
        minutes: that were counted.
        busy: busy share of its devices, their mean; None: no reports.
        memory_peak: the most bytes in use on one device; None: no reports.
    """

    attempt_id: int
    since: datetime
    members: tuple[tuple[int, tuple[int, ...]], ...] = ()
    minutes: int = 0
    busy: float | None = None
    memory_peak: int | None = None


def followed_attempts() -> list[Used]:
    """Running attempts whose policy or shadow reads job facts; at most three queries."""
    rows = VirtualCluster.objects.unscoped().filter(archived_at=None)
    curious = [
        pk
        for pk, policy, args, shadows in rows.values_list("pk", "policy", "policy_args", "shadows")
        if policy != PLAIN or args.get("wrap") or shadows
    ]
    if not curious:
        return []
    running = Attempt.objects.filter(
        job__virtual_cluster__in=curious, ended_at=None, running_at__isnull=False
    )
    members: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for attempt_id, node_id, devices in (
        Member.objects.filter(attempt__in=running.values("pk"))
        .order_by("attempt_id", "node_rank")
        .values_list("attempt_id", "node_id", "devices")
    ):
        if devices:
            members[attempt_id].append((node_id, tuple(devices)))
    columns = ("pk", "running_at", "use__until", "use__minutes", "use__busy", "use__memory_peak")
    return [
        Used(
            attempt_id=pk,
            since=until or running_at,
            members=tuple(members[pk]),
            minutes=minutes or 0,
            busy=busy,
            memory_peak=peak,
        )
        for pk, running_at, until, minutes, busy, peak in running.order_by("pk").values_list(
            *columns
        )
        if running_at is not None and pk in members
    ]


def keep_uses(uses: Iterable[Used]) -> None:
    """Store the sums; ``since`` is the instant up to which they count."""
    AttemptUse.objects.bulk_create(
        (
            AttemptUse(
                attempt_id=one.attempt_id,
                until=one.since,
                minutes=one.minutes,
                busy=one.busy,
                memory_peak=one.memory_peak,
            )
            for one in uses
        ),
        update_conflicts=True,
        unique_fields=["attempt"],
        update_fields=["until", "minutes", "busy", "memory_peak"],
    )
