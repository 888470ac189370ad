"""Sorted lists of jobs, and look-ups by owner and name."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from django.db.models import F, Q, QuerySet

from scheduling.core.jobspec import Demand
from scheduling.jobs.models import Job
from tenants.viewers import Viewer

ORDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "name",
        "submitted": "id",
        "user": "owner__username",
        "virtual_cluster": "virtual_cluster__name",
        "attempts": "attempts_made",
        "devices": "devices",
        "finished": "finished_at",
    }
)
"""Sort keys of the list, and the column of each."""

_COLUMNS: Final = (
    "id",
    "name",
    "owner__username",
    "virtual_cluster__name",
    "state",
    "priority",
    "devices",
    "demand",
    "attempts_made",
    "failures",
    "exit_code",
    "submitted_at",
    "first_started_at",
    "finished_at",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedJobFilter:
    """Filters of the list; empty values do not filter.

    Attributes:
        users: names of owners.
        states: names of states; None for all.
        keyword: part of the name of the job, its owner or its virtual cluster.
    """

    users: frozenset[str] = frozenset()
    virtual_clusters: frozenset[str] = frozenset()
    states: frozenset[str] | None = None
    keyword: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedJob:
    """A job in a sorted list.

    Attributes:
        roles: number of roles.
        instances: number of instances over all roles.
        failures: number of failed attempts by class.
    """

    id: int
    name: str
    owner: str
    virtual_cluster: str
    state: str
    priority: int
    devices: int
    roles: int
    instances: int
    attempts: int
    failures: Mapping[str, int]
    exit_code: int | None
    submitted_at: datetime
    first_started_at: datetime | None
    finished_at: datetime | None


def list_named_jobs(
    viewer: Viewer,
    filters: NamedJobFilter,
    *,
    order: str = "submitted",
    descending: bool = True,
    offset: int = 0,
    limit: int,
) -> list[NamedJob]:
    """Return one page of the jobs that the viewer may see, in one query.

    Args:
        viewer: the reader.
        filters: filters of the list.
        order: one of ``ORDERS``; the job ID breaks ties.
        descending: whether the largest value is first.
        offset: number of jobs to skip.
        limit: maximum number of jobs.
    """
    column = F(ORDERS[order])
    # Jobs without a value, such as the end time of a running job, count as the largest.
    by = column.desc(nulls_first=True) if descending else column.asc(nulls_last=True)
    ties = "-id" if descending else "id"
    jobs = _filtered(viewer, filters).order_by(*(() if order == "submitted" else (by,)), ties)
    return [_row(values) for values in jobs.values_list(*_COLUMNS)[offset : offset + limit]]


def count_named_jobs(viewer: Viewer, filters: NamedJobFilter) -> int:
    return _filtered(viewer, filters).count()


def newest_job_named(viewer: Viewer, owner: str, name: str) -> int | None:
    """Return the ID of an owner's newest visible job with a name, or None."""
    if "\x00" in owner + name:
        return None
    jobs = Job.objects.visible_to(viewer).filter(owner__username=owner, name=name)
    return jobs.order_by("-id").values_list("id", flat=True).first()


def _filtered(viewer: Viewer, filters: NamedJobFilter) -> "QuerySet[Job]":
    jobs: QuerySet[Job] = Job.objects.visible_to(viewer)
    if filters.users:
        jobs = jobs.filter(owner__username__in=filters.users)
    if filters.virtual_clusters:
        jobs = jobs.filter(virtual_cluster__name__in=filters.virtual_clusters)
    if filters.states is not None:
        jobs = jobs.filter(state__in=filters.states)
    if filters.keyword:
        jobs = jobs.filter(
            Q(name__icontains=filters.keyword)
            | Q(owner__username__icontains=filters.keyword)
            | Q(virtual_cluster__name__icontains=filters.keyword)
        )
    return jobs


def _row(values: tuple[Any, ...]) -> NamedJob:
    facts = dict(zip(_COLUMNS, values, strict=True))
    demand = Demand.from_json(facts["demand"])
    return NamedJob(
        id=facts["id"],
        name=facts["name"],
        owner=facts["owner__username"],
        virtual_cluster=facts["virtual_cluster__name"],
        state=facts["state"],
        priority=facts["priority"],
        devices=facts["devices"],
        roles=len(demand.roles),
        instances=demand.instances,
        attempts=facts["attempts_made"],
        failures=facts["failures"],
        exit_code=facts["exit_code"],
        submitted_at=facts["submitted_at"],
        first_started_at=facts["first_started_at"],
        finished_at=facts["finished_at"],
    )
