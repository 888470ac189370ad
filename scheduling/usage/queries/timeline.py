"""Attempts on devices over a period, filtered by the viewer's rights."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from scheduling.clusters.models import Device, Node
from scheduling.common.timestamps import moment_of
from scheduling.core.lifecycle import end_reason
from scheduling.core.messages import sentence
from scheduling.enums import LeaseKind
from scheduling.runs.models import Attempt, Lease, Member
from tenants.errors import InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

MOST_RUNS: Final = 1000
"""Maximum number of runs per query; if there are more, those that ended last."""

LONGEST_SPAN: Final = timedelta(days=31)
SHORTEST_SPAN: Final = timedelta(seconds=10)
_COLUMNS: Final = (
    "node_id",
    "devices_text",
    "attempt_id",
    "begun_text",
    "ended_text",
    "attempt__outcome",
    "attempt__failure_class",
    "attempt__preemption__cause",
    "attempt__opportunistic",
    "attempt__job_id",
    "attempt__job__name",
    "attempt__job__state",
    "attempt__job__tenant_id",
    "attempt__job__owner__username",
    "attempt__job__virtual_cluster__name",
)
_AHEAD: Final = ("attempt__job__started_at", "attempt__job__max_duration_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineNode:
    """A node of the timeline.

    Attributes:
        devices: indices of its devices in ascending order.
    """

    id: int
    name: str
    state: str
    device_type: str
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRun:
    """One attempt of a job on one node.

    Attributes:
        devices: indices of the devices on the node.
        job_id: None if the viewer may not see the job; name, user and VC are then empty.
        tenant: name of the tenant, or "another tenant".
        state: state of the job during the run; after it, the ``EndReason``.
        opportunistic: whether the job ran outside the guarantee of its virtual cluster.
        reserved: whether the devices are only reserved, since their current jobs are leaving.
        end: None for a live run.
        latest_end: end of the maximum duration of a live run; None if unlimited.
    """

    node_id: int
    devices: tuple[int, ...]
    job_id: int | None
    name: str
    user: str
    tenant: str
    virtual_cluster: str
    state: str
    opportunistic: bool
    reserved: bool
    start: datetime
    end: datetime | None
    latest_end: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Runs on nodes between ``since`` and ``until``.

    Attributes:
        runs: runs by node, oldest first.
        complete_since: time before which runs are omitted; None if the timeline is complete.
    """

    since: datetime
    until: datetime
    nodes: tuple[TimelineNode, ...]
    runs: tuple[TimelineRun, ...]
    complete_since: datetime | None


def first_run_at() -> datetime | None:
    """Return the creation time of the oldest stored attempt, or None without attempts."""
    return Attempt.objects.order_by("id").values_list("created_at", flat=True).first()


def timeline(
    viewer: Viewer,
    *,
    since: datetime,
    until: datetime,
    node: int | None = None,
    most: int = MOST_RUNS,
) -> Timeline:
    """Return the runs that overlap a period, in a fixed number of queries.

    Args:
        viewer: the reader.
        since: start of the period.
        until: end of the period; it may be in the future.
        node: ID of the only node to include; None for all nodes.
        most: maximum number of runs.

    Raises:
        InvalidError: the period is empty or too long.
    """
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    _check_span(since, until)
    nodes = _nodes(node)
    members = Member.objects.filter(node_id__in=[each.id for each in nodes]).order_by()
    begun = members.filter(attempt__created_at__lt=until)
    # Thousands of equal values are read as text and parsed once.
    columns = begun.annotate(
        devices_text=Cast("devices", TextField()),
        begun_text=Cast("attempt__created_at", TextField()),
        ended_text=Cast("attempt__ended_at", TextField()),
    ).values_list(*_COLUMNS)
    going = list(columns.filter(attempt__ended_at=None).values_list(*_COLUMNS, *_AHEAD))
    ended = list(
        columns.filter(attempt__ended_at__gt=since).order_by("-attempt__ended_at", "-id")[
            : most + 1
        ]
    )
    reserved = set(
        Lease.objects.filter(released_at=None, kind=LeaseKind.RESERVED).values_list(
            "attempt_id", flat=True
        )
    )
    complete = moment_of(ended[-1][4]) if len(ended) > most else None
    sight = viewer.tenant_ids(Permission.VIEW_JOBS)
    over = {row[2] for row in ended}  # includes runs that ended after the first query
    runs = [_run(viewer, sight, row, reserved) for row in going if row[2] not in over]
    runs += [_run(viewer, sight, (*row, None, None), reserved) for row in ended[:most]]
    runs.sort(key=lambda run: (run.node_id, run.start, run.devices))
    return Timeline(
        since=since, until=until, nodes=nodes, runs=tuple(runs), complete_since=complete
    )


def _check_span(since: datetime, until: datetime) -> None:
    if not SHORTEST_SPAN <= until - since <= LONGEST_SPAN:
        raise InvalidError(
            sentence("span-days-long", seconds=SHORTEST_SPAN.seconds, days=LONGEST_SPAN.days),
            field="since",
            value=since.isoformat(),
            remedy=sentence("give-shorter-span"),
        )


def _nodes(only: int | None) -> tuple[TimelineNode, ...]:
    rows: QuerySet[Node] = Node.objects.filter(removed_at=None)
    devices: QuerySet[Device] = Device.objects.filter(retired_at=None)
    if only is not None:
        rows, devices = rows.filter(pk=only), devices.filter(node_id=only)
    by_node: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for node_id, index, kind in devices.order_by("node_id", "index").values_list(
        "node_id", "index", "device_type"
    ):
        by_node[node_id].append((index, kind))
    found = [
        TimelineNode(
            id=pk,
            name=name,
            state=state,
            device_type=by_node[pk][0][1],
            devices=tuple(index for index, _ in by_node[pk]),
        )
        for pk, name, state in rows.values_list("id", "name", "state")
        if pk in by_node
    ]
    return tuple(sorted(found, key=lambda each: _by_number(each.name)))


def _by_number(name: str) -> list[tuple[str, int]]:
    """Return a sort key that orders node 2 before node 10."""
    return [
        (text, int(number or 0)) for text, number in re.findall(r"([^0-9]*)([0-9]{0,9})", name)
    ]


def _run(
    viewer: Viewer, sight: frozenset[int] | None, row: tuple[Any, ...], reserved: set[int]
) -> TimelineRun:
    (
        node_id, devices, attempt_id, begun, ended, outcome, failure, cause, opportunistic,
        job_id, name, state, tenant_id, user, vc, started, longest,
    ) = row  # fmt: skip
    start, end = moment_of(begun), None if ended is None else moment_of(ended)
    is_visible = sight is None or tenant_id in sight
    ends_by = None
    if is_visible and end is None and longest is not None and started is not None:
        ends_by = started + timedelta(seconds=longest)
    return TimelineRun(
        node_id=node_id,
        devices=_indices(devices),
        job_id=job_id if is_visible else None,
        name=name if is_visible else "",
        user=user if is_visible else "",
        tenant=viewer.name_of(tenant_id),
        virtual_cluster=vc if is_visible else "",
        state=state if end is None else _how_it_ended(outcome, failure, cause),
        opportunistic=opportunistic,
        reserved=end is None and attempt_id in reserved,
        start=start,
        end=end,
        latest_end=ends_by,
    )


def _how_it_ended(outcome: str, failure: str, cause: str | None) -> str:
    return end_reason(outcome=outcome, failure_class=failure, evicted_by=cause).value


@lru_cache(maxsize=4096)
def _indices(stored: str) -> tuple[int, ...]:
    return tuple(sorted(json.loads(stored)))


def runs_by_node(runs: Iterable[TimelineRun]) -> Mapping[int, tuple[TimelineRun, ...]]:
    """Return the runs of each node in their order."""
    found: dict[int, list[TimelineRun]] = defaultdict(list)
    for run in runs:
        found[run.node_id].append(run)
    return {node_id: tuple(rows) for node_id, rows in found.items()}
