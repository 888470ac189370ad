"""Running gangs and unhealthy cells, as input of the cell engine."""

import json
from collections import defaultdict
from functools import lru_cache
from typing import Any, Final

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from scheduling.clusters.models import Device, Node
from scheduling.core.cells.reconfiguration import ClusterHealth, RunningGang
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import HOLDING
from scheduling.core.round.engine_setup import running_gangs
from scheduling.core.values import HeldLeaf, HoldingJob
from scheduling.enums import LeaseKind, NodeState
from scheduling.jobs.models import Job
from scheduling.rounds.snapshot.live_jobs import Remembered
from scheduling.runs.models import Lease
from tenants.compiled_sql import CompiledQuery

_LeaseRow = tuple[int, int, str, str, str | None]
_JobRow = tuple[int, int, str, int, str, str]
_LeaseRows = tuple[_LeaseRow, ...]
_JobRows = tuple[_JobRow, ...]
_HeldRows = tuple[_JobRow, _LeaseRows]


def _held_leases(_: int) -> "QuerySet[Lease, Any]":
    rows = Lease.objects.filter(released_at=None).exclude(kind=LeaseKind.GUEST)
    rows = rows.order_by("job_id", "member_id", "id")
    return rows.annotate(size_text=Cast("attempt__demand", TextField())).values_list(
        "job_id", "member_id", "device__address", "virtual_cell", "size_text"
    )


def _holding_jobs(_: int) -> "QuerySet[Job, Any]":
    rows = Job.objects.unscoped().filter(state__in=HOLDING).order_by("id")
    return rows.annotate(demand_text=Cast("demand", TextField())).values_list(
        "id", "virtual_cluster_id", "virtual_cluster__name", "priority", "job_class", "demand_text"
    )


_LEASES: Final = CompiledQuery(_held_leases)
_JOBS: Final = CompiledQuery(_holding_jobs)


def health_now() -> ClusterHealth:
    """Return nodes that are down and unhealthy devices, as rounds use them; two queries."""
    return _health(Node.objects.filter(contact=NodeState.DOWN))


def placeable_now() -> ClusterHealth:
    """Return nodes that accept no new work and unhealthy devices; two queries."""
    return _health(Node.objects.exclude(state=NodeState.READY))


def running_now() -> tuple[RunningGang, ...]:
    """Return all gangs that hold devices, in the order in which rounds restore them; two queries.

    Unchanged rows return the same object.
    """
    return _running(tuple(_LEASES.rows()), tuple(_JOBS.rows()))


@lru_cache(maxsize=1)
def _running(leases: _LeaseRows, jobs: _JobRows) -> tuple[RunningGang, ...]:
    held: dict[int, list[_LeaseRow]] = defaultdict(list)
    for lease in leases:
        held[lease[0]].append(lease)
    rows = [(job, tuple(held[job[0]])) for job in jobs if job[0] in held]
    return tuple(gang for gangs in _GANGS.of(rows) for gang in gangs)


def _gangs(key: _HeldRows) -> tuple[RunningGang, ...]:
    """Return the gangs of one job."""
    (job_id, vc_id, vc, priority, job_class, demand), leases = key
    members: dict[int, list[HeldLeaf]] = defaultdict(list)
    for _, member_id, address, virtual, size in leases:
        # Each lease of a resized job contains the current demand.
        demand = demand if size is None else size
        members[member_id].append(HeldLeaf(address=address, virtual=virtual))
    job = HoldingJob(
        id=job_id,
        vc=vc_id,
        tenant=0,
        owner=0,
        priority=priority,
        job_class=JobClass(job_class),
        demand=_demand(demand),
        submitted=0.0,
        since=0.0,
        leaving=False,
        members=tuple(tuple(leaves) for leaves in members.values()),
    )
    return tuple(running_gangs([job], {vc_id: vc}, 0.0))


_GANGS: Final = Remembered(_gangs)


@lru_cache(maxsize=4096)
def _demand(stored: str) -> Demand:
    return Demand.from_json(json.loads(stored))


def _health(nodes: "QuerySet[Node]") -> ClusterHealth:
    return ClusterHealth(
        nodes=frozenset(nodes.filter(removed_at=None).values_list("name", flat=True)),
        devices=frozenset(
            Device.objects.filter(retired_at=None, healthy=False).values_list(
                "node__name", "index"
            )
        ),
    )
