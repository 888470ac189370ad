"""History of the fleet by interval, filtered by the viewer's rights."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Self

from scheduling.clusters.models import Node, VirtualCluster
from scheduling.core.fleet_history import FleetTotals, FreeTotals, added, wait_quantile
from scheduling.core.messages import sentence
from scheduling.usage.models import FleetInterval
from tenants.errors import NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer

WAIT_LEVELS: Final = (0.5, 0.9, 0.99)
OTHERS: Final = -1
"""Stands for the virtual clusters that the viewer may not see."""


class FleetRange(StrEnum):
    """A period before now."""

    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"
    QUARTER = "90d"


class FleetPart(StrEnum):
    """A column of the history."""

    NODES = "nodes"
    VIRTUAL_CLUSTERS = "virtual_clusters"
    WAITS = "waits"
    PREEMPTIONS = "preemptions"
    FREE = "free"


SPANS: Final[Mapping[FleetRange, tuple[timedelta, int]]] = {
    FleetRange.DAY: (timedelta(days=1), 900),
    FleetRange.WEEK: (timedelta(days=7), 7200),
    FleetRange.MONTH: (timedelta(days=30), 28_800),
    FleetRange.QUARTER: (timedelta(days=90), 86_400),
}
"""Length of each range, and seconds of its intervals: at most 97 intervals."""

_CLUSTER_PARTS: Final = frozenset({FleetPart.NODES, FleetPart.FREE})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpan:
    """One interval with its ``samples``; totals contain only what the viewer may see."""

    at: datetime
    samples: int
    totals: FleetTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHistory:
    """Intervals of a range, oldest first; intervals without samples are missing.

    Attributes:
        names: virtual clusters whose jobs the viewer may see, by ID.
        until: end of the range.
    """

    since: datetime
    until: datetime
    span_seconds: int
    intervals: tuple[FleetSpan, ...]
    names: Mapping[int, str]

    def between(self, since: datetime | None, until: datetime | None) -> Self:
        """Return the history with only the intervals that begin in a part of the range."""
        return replace(
            self,
            intervals=tuple(
                one
                for one in self.intervals
                if (since is None or one.at >= since) and (until is None or one.at < until)
            ),
        )


def fleet_history(
    viewer: Viewer,
    wanted: FleetRange,
    parts: Collection[FleetPart],
    *,
    now: datetime,
    virtual_cluster: str = "",
    newest: bool = False,
) -> FleetHistory:
    """Return some parts of the history, in two queries.

    Nodes and idle devices need the right to see the cluster. The other parts contain the virtual
    clusters whose jobs the viewer may see; in preemptions, all others are ``OTHERS``. With
    ``newest``, only the newest interval is read.

    Raises:
        ForbiddenError: the viewer may not see the cluster.
        NotFoundError: the viewer may not see ``virtual_cluster``.
    """
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    names = dict(
        VirtualCluster.objects.visible_to(viewer, Permission.VIEW_JOBS)
        .order_by("name")
        .values_list("id", "name")
    )
    if virtual_cluster:
        names = {pk: name for pk, name in names.items() if name == virtual_cluster}
        if not names:
            raise NotFoundError(
                sentence("no-such-virtual-cluster"),
                field="virtual_cluster",
                value=virtual_cluster,
            )
    length, span = SPANS[wanted]
    since = now - length
    columns = [part.value for part in FleetPart if part in parts]
    rows = (
        FleetInterval.objects.filter(
            span_seconds=span, at__gt=since - timedelta(seconds=span), at__lte=now
        )
        .order_by("-at")
        .values_list("at", "samples", *columns)
    )
    return FleetHistory(
        since=since,
        until=now,
        span_seconds=span,
        intervals=tuple(
            FleetSpan(
                at=at,
                samples=samples,
                totals=_seen(
                    FleetTotals.from_columns(dict(zip(columns, values, strict=True))), names
                ),
            )
            for at, samples, *values in reversed(rows[:1] if newest else rows)
        ),
        names=names,
    )


def _seen(totals: FleetTotals, names: Mapping[int, str]) -> FleetTotals:
    preemptions: dict[tuple[int, int, str], int] = {}
    for (victim, winner, cause), count in totals.preemptions.items():
        if victim in names or winner in names:
            key = (
                victim if victim in names else OTHERS,
                winner if winner in names or not winner else OTHERS,
                cause,
            )
            preemptions = added(preemptions, {key: count})
    return replace(
        totals,
        virtual_clusters={pk: one for pk, one in totals.virtual_clusters.items() if pk in names},
        waits={pk: bins for pk, bins in totals.waits.items() if pk in names},
        preemptions=preemptions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPoint:
    """Waits of the jobs that started in an interval, and the mean queue; seconds.

    Attributes:
        started: number of jobs first started.
        quantiles: of their waits, at ``WAIT_LEVELS``; None without starts.
        queued: mean number of waiting jobs.
        queued_devices: mean number of devices that they request.
    """

    at: datetime
    started: int
    quantiles: tuple[float | None, ...]
    queued: float
    queued_devices: float


def wait_points(history: FleetHistory) -> tuple[WaitPoint, ...]:
    """Return waits and queue depth over all virtual clusters of the history."""
    found = []
    for one in history.intervals:
        bins: dict[int, int] = {}
        for each in one.totals.waits.values():
            bins = added(bins, each)
        clusters = one.totals.virtual_clusters.values()
        samples = max(one.samples, 1)
        found.append(
            WaitPoint(
                at=one.at,
                started=sum(bins.values()),
                quantiles=tuple(wait_quantile(bins, level) for level in WAIT_LEVELS),
                queued=sum(vc.queued for vc in clusters) / samples,
                queued_devices=sum(vc.queued_devices for vc in clusters) / samples,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePoint:
    """Mean devices of virtual clusters in an interval; ``lent`` is a part of the guarantee."""

    at: datetime
    guarantee: float
    used: float
    borrowed: float
    lent: float


def share_points(
    history: FleetHistory, virtual_cluster: int | None = None
) -> tuple[SharePoint, ...]:
    """Return guarantee and use of one virtual cluster, or of all of the history together."""
    found = []
    for one in history.intervals:
        samples = max(one.samples, 1)
        rows = [
            vc for pk, vc in one.totals.virtual_clusters.items() if virtual_cluster in (None, pk)
        ]
        found.append(
            SharePoint(
                at=one.at,
                guarantee=sum(vc.guarantee for vc in rows) / samples,
                used=sum(vc.used for vc in rows) / samples,
                borrowed=sum(vc.borrowed for vc in rows) / samples,
                lent=sum(vc.lent for vc in rows) / samples,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreePoint:
    """Mean idle devices in an interval, and stranded ones by gang size; None if unknown."""

    at: datetime
    idle: float | None
    stranded: Mapping[int, float]


def free_points(history: FleetHistory) -> tuple[FreePoint, ...]:
    """Return idle and stranded devices over time."""
    return tuple(_free_point(one.at, one.totals.free) for one in history.intervals)


def _free_point(at: datetime, free: FreeTotals) -> FreePoint:
    if not free.samples:
        return FreePoint(at=at, idle=None, stranded={})
    return FreePoint(
        at=at,
        idle=free.idle / free.samples,
        stranded={size: value / free.samples for size, value in free.stranded.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """State of a node now, and its begin."""

    name: str
    state: str
    since: datetime


def nodes_now(viewer: Viewer) -> tuple[NodeNow, ...]:
    """Return the nodes of the cluster by name, in one query.

    Raises:
        ForbiddenError: the viewer may not see the cluster.
    """
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    rows = Node.objects.filter(removed_at=None).order_by("name")
    return tuple(
        NodeNow(name=name, state=state, since=since)
        for name, state, since in rows.values_list("name", "state", "state_since")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpell:
    """A time in which a node was not ready; its bounds are those of intervals."""

    node: str
    state: int
    since: datetime
    until: datetime


def node_spells(history: FleetHistory) -> tuple[NodeSpell, ...]:
    """Return the spells of nodes that were not ready, by node; ``state`` is in ``STATES``."""
    length = timedelta(seconds=history.span_seconds)
    open_: dict[str, NodeSpell] = {}
    found: list[NodeSpell] = []
    for one in history.intervals:
        end = min(one.at + length, history.until)
        for name, node in one.totals.nodes.items():
            last = open_.get(name)
            if last and last.state == node.worst and last.until >= one.at:
                open_[name] = replace(last, until=end)
                continue
            if last:
                found.append(open_.pop(name))
            if node.worst:
                open_[name] = NodeSpell(node=name, state=node.worst, since=one.at, until=end)
    return tuple(sorted([*found, *open_.values()], key=lambda one: (one.node, one.since)))


def preemption_counts(history: FleetHistory) -> Mapping[tuple[int, int, str], int]:
    """Return preemptions by preempted virtual cluster, beneficiary and cause; see ``OTHERS``."""
    found: dict[tuple[int, int, str], int] = {}
    for one in history.intervals:
        found = added(found, one.totals.preemptions)
    return found
