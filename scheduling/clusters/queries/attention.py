"""Problems that need a cluster admin, from the present state: each exists as long as its cause."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, Min, Q, Sum

from scheduling.clusters.models import Device
from scheduling.clusters.queries.cluster import ClusterView, NodeView, VcUse
from scheduling.core.lifecycle import JobState
from scheduling.enums import JobClass, NodeState
from scheduling.jobs.models import Job
from scheduling.notices.models import Delivery, DeliveryState
from scheduling.watching.models import IdleSpell
from tenants.viewers import Viewer

STUCK_AFTER: Final = timedelta(minutes=10)
IDLE_AFTER: Final = timedelta(minutes=30)
STARVED_AFTER: Final = timedelta(minutes=10)
FAILING_SINCE: Final = timedelta(days=1)
FAILING_TRIES: Final = 3
MOST_JOBS: Final = 20
MOST_PROBLEMS: Final = 100
BAD: Final = "bad"
WARN: Final = "warn"
GREY: Final = "grey"
_TONES: Final = (BAD, WARN, GREY)
_PASSING: Final = (
    JobState.ADMITTED,
    JobState.STARTING,
    JobState.PREEMPTING,
    JobState.STOPPING,
)
"""States that a job leaves within minutes."""
_INSIDE_GUARANTEE: Final = ("no-cell-of-level", "cells-unhealthy", "waiting-victim-checkpoint")
"""Reasons of a job that its virtual cluster's guarantee should have served."""
_OF_NODES: Final[Mapping[str, str]] = {
    NodeState.DOWN: BAD,
    NodeState.SUSPECT: WARN,
    NodeState.DRAINING: GREY,
    NodeState.CORDONED: GREY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProblem:
    """A problem with its numbers.

    Attributes:
        kind: ``node-down`` and other states of nodes, ``devices-unhealthy``, ``start-stuck``,
            ``device-suspect``, ``held-idle``, ``guarantee-short`` or ``hook-failing``.
        subject: primary key of the node, job, virtual cluster or webhook; 0 for the cluster.
        tone: urgency: ``bad``, ``warn`` or ``grey``.
        since: start of the problem; None if unknown.
        detail: number of the device of a node, if the problem concerns only one.
        facts: names and numbers for the text.
    """

    kind: str
    subject: int
    tone: str
    since: datetime | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    detail: int | None = None

    @property
    def key(self) -> str:
        """Return the key of the problem, which does not change with its numbers."""
        key = f"{self.kind}:{self.subject}"
        return key if self.detail is None else f"{key}:{self.detail}"


def problems(viewer: Viewer, cluster: ClusterView, *, now: datetime) -> tuple[ClusterProblem, ...]:
    """Return the problems of the cluster, most urgent first, in five queries.

    Only an unbound cluster admin gets any; at most ``MOST_PROBLEMS``.
    """
    if not viewer.is_cluster_admin or viewer.bound_tenant_id is not None:
        return ()
    found = [
        *_of_nodes(cluster.nodes),
        *_suspect_devices(),
        *_stuck(viewer, now),
        *_idle(now),
        *_starved(viewer, cluster.virtual_clusters, now),
        *_failing_hooks(now),
    ]
    return tuple(sorted(found, key=lambda one: _urgency(one, now))[:MOST_PROBLEMS])


def _urgency(one: ClusterProblem, now: datetime) -> tuple[int, datetime, str]:
    return _TONES.index(one.tone), one.since or now, one.key


def _of_nodes(nodes: Iterable[NodeView]) -> Iterator[ClusterProblem]:
    for node in nodes:
        tone = _OF_NODES.get(node.state)
        if tone:
            held = sum(
                device.occupant is not None and not device.occupant.reserved
                for device in node.devices
            )
            yield ClusterProblem(
                kind=f"node-{node.state}",
                subject=node.id,
                tone=tone,
                since=node.state_since,
                facts={"node": node.name, "reason": node.state_reason, "held": held},
            )
        ill = [device for device in node.devices if not device.healthy]
        if ill and node.state != NodeState.DOWN:
            yield ClusterProblem(
                kind="devices-unhealthy",
                subject=node.id,
                tone=BAD,
                since=None,
                facts={
                    "node": node.name,
                    "devices": [device.index for device in ill],
                    "reason": ill[0].health_reason,
                },
            )


def _suspect_devices() -> Iterator[ClusterProblem]:
    """Yield the devices in use on which unusually many jobs failed."""
    rows = Device.objects.filter(
        suspect_since__isnull=False, healthy=True, retired_at=None, node__removed_at=None
    )
    for node_id, node, index, since in rows.order_by("suspect_since", "pk").values_list(
        "node_id", "node__name", "index", "suspect_since"
    )[:MOST_PROBLEMS]:
        yield ClusterProblem(
            kind="device-suspect",
            subject=node_id,
            detail=index,
            tone=WARN,
            since=since,
            facts={"node": node, "device": index},
        )


def _stuck(viewer: Viewer, now: datetime) -> Iterator[ClusterProblem]:
    rows = Job.objects.visible_to(viewer).filter(
        state__in=_PASSING, state_since__lte=now - STUCK_AFTER
    )
    for pk, name, state, since in rows.order_by("state_since").values_list(
        "pk", "name", "state", "state_since"
    )[:MOST_JOBS]:
        facts = {"job": pk, "name": name, "state": state}
        yield ClusterProblem(kind="start-stuck", subject=pk, tone=WARN, since=since, facts=facts)


def _idle(now: datetime) -> Iterator[ClusterProblem]:
    spells = IdleSpell.objects.filter(
        since__lte=now - IDLE_AFTER, job__state=JobState.RUNNING, idle_devices=None
    )
    found = spells.aggregate(jobs=Count("pk"), devices=Sum("job__devices"), since=Min("since"))
    if found["jobs"]:
        since = found.pop("since")
        yield ClusterProblem(kind="held-idle", subject=0, tone=GREY, since=since, facts=found)


def _starved(viewer: Viewer, uses: Iterable[VcUse], now: datetime) -> Iterator[ClusterProblem]:
    queued = Job.objects.visible_to(viewer).filter(state=JobState.QUEUED)
    waiting = queued.filter(
        job_class=JobClass.GUARANTEED,
        held=False,
        reason_code__in=_INSIDE_GUARANTEE,
        state_since__lte=now - STARVED_AFTER,
    )
    rows = waiting.order_by().values_list("virtual_cluster_id")
    oldest = {
        pk: (since, jobs)
        for pk, since, jobs in rows.annotate(since=Min("state_since"), jobs=Count("id"))
    }
    for use in uses:
        if use.id in oldest and use.used < use.guarantee:
            since, jobs = oldest[use.id]
            facts = {
                "virtual_cluster": use.name,
                "jobs": jobs,
                "used": use.used,
                "healthy": use.healthy,
                "guarantee": use.guarantee,
            }
            yield ClusterProblem(
                kind="guarantee-short", subject=use.id, tone=WARN, since=since, facts=facts
            )


def _failing_hooks(now: datetime) -> Iterator[ClusterProblem]:
    gone = Q(state=DeliveryState.DEAD)
    late = Q(state=DeliveryState.WAITING, tries__gte=FAILING_TRIES)
    rows = (
        Delivery.objects.filter(
            gone | late, hook__enabled=True, created_at__gte=now - FAILING_SINCE
        )
        .order_by()
        .values_list("hook_id", "hook__name")
        .annotate(failed=Count("id"), since=Min("created_at"))
    )
    for pk, name, failed, since in rows:
        facts = {"hook": name, "failed": failed}
        yield ClusterProblem(
            kind="hook-failing", subject=pk or 0, tone=BAD, since=since, facts=facts
        )
