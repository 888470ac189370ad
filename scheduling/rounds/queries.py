"""Committed rounds for pages and REST, and the ticker on every page."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from scheduling.common.paging import DEFAULT_ROWS, Page, cut, page_limit, read_cursor
from scheduling.core.messages import sentence
from scheduling.rounds.models import Round
from tenants.errors import NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer

TICKER_ROUNDS: Final = 12
LATE_INTERVALS: Final = 2
STOPPED_INTERVALS: Final = 3


class RoundHealth(StrEnum):
    ON_TIME = "on-time"
    LATE = "late"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """A committed round.

    Attributes:
        fallbacks: policies that failed and their replacement; only for editors of virtual
            clusters, since the text contains names.
        timings_ms: duration of reading, decision and commit.
        has_snapshot: whether the round can be replayed.
    """

    number: int
    started_at: datetime
    committed_at: datetime
    duration_ms: float
    cause: str
    policies: tuple[str, ...]
    topology_version: int
    queued: int
    running: int
    started: int
    preempted: int
    dropped: int
    fallbacks: tuple[str, ...]
    timings_ms: dict[str, float]
    has_snapshot: bool
    snapshot_sha256: str
    snapshot_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTick:
    """A committed round: its number, its duration in seconds, and the policy or policies."""

    number: int
    seconds: float
    policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticker:
    """The last rounds, the newest at the end.

    Attributes:
        age_seconds: time since the newest round; None before the first.
        health: late after 2 intervals, stopped after 3 intervals.
    """

    ticks: tuple[RoundTick, ...]
    age_seconds: float | None
    health: RoundHealth


def recent_rounds(
    viewer: Viewer, *, cursor: str | None = None, limit: int = DEFAULT_ROWS
) -> Page[RoundRow]:
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-rounds"))
    limit = page_limit(limit)
    key = read_cursor(cursor)
    rounds = Round.objects.order_by("-number")
    if key:
        rounds = rounds.filter(number__lt=key[0])
    rows = [_row(viewer, stored) for stored in rounds[: limit + 1]]
    return cut(rows, limit, lambda row: row.number)


def round_detail(viewer: Viewer, number: int) -> RoundRow:
    """Return a round by its number.

    Raises:
        NotFoundError: the round is unknown, or its row has been pruned.
    """
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-rounds"))
    stored = Round.objects.filter(number=number).first()
    if stored is None:
        raise NotFoundError(sentence("no-such-round"), field="number", value=number)
    return _row(viewer, stored)


def ticker(viewer: Viewer, *, now: datetime, round_seconds: float) -> Ticker:
    """Return the last rounds and whether rounds run on time, in one query."""
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-rounds"))
    newest = list(
        Round.objects.order_by("-number").values_list(
            "number", "duration_ms", "policies", "committed_at"
        )[:TICKER_ROUNDS]
    )
    ticks = tuple(
        RoundTick(number=number, seconds=duration / 1000, policy=policy_words(policies))
        for number, duration, policies, _ in reversed(newest)
    )
    at = newest[0][3] if newest else None
    age = max((now - at).total_seconds(), 0.0) if at else None
    return Ticker(
        ticks=ticks,
        age_seconds=age,
        health=round_health(age, round_seconds),
    )


def round_health(age_seconds: float | None, round_seconds: float) -> RoundHealth:
    """Return the health of rounds by the age of the newest one; no round counts as stopped."""
    if age_seconds is None or age_seconds > STOPPED_INTERVALS * round_seconds:
        return RoundHealth.STOPPED
    return (
        RoundHealth.LATE if age_seconds > LATE_INTERVALS * round_seconds else RoundHealth.ON_TIME
    )


def newest_round() -> tuple[int, datetime | None]:
    """Return number and commit time of the newest round; 0 and None before the first."""
    row = Round.objects.order_by("-number").values_list("number", "committed_at").first()
    return row or (0, None)


def policy_words(policies: list[Any]) -> str:
    """Return the name of a single policy, or the number of several."""
    return str(policies[0]) if len(policies) == 1 else sentence("policies", policies=len(policies))


def _row(viewer: Viewer, stored: Round) -> RoundRow:
    names_vcs = viewer.can(Permission.EDIT_VC)
    return RoundRow(
        number=stored.number,
        started_at=stored.started_at,
        committed_at=stored.committed_at,
        duration_ms=stored.duration_ms,
        cause=stored.cause,
        policies=tuple(stored.policies),
        topology_version=stored.topology_version,
        queued=stored.queued,
        running=stored.running,
        started=stored.started,
        preempted=stored.preempted,
        dropped=stored.dropped,
        fallbacks=tuple(stored.fallbacks) if names_vcs else (),
        timings_ms=dict(stored.timings_ms),
        has_snapshot=bool(stored.snapshot_path),
        snapshot_sha256=stored.snapshot_sha256,
        snapshot_bytes=stored.snapshot_bytes,
    )
