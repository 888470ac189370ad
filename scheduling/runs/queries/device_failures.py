"""Failures of jobs by device, for cluster admins."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Count, Q, QuerySet

from scheduling.core.device_failures import (
    LEAST_JOBS,
    LEAST_TENANTS,
    DeviceFailures,
    JobOnDevice,
    failures_of,
    fleet_rate,
    judged,
)
from scheduling.core.lifecycle import FailureClass
from scheduling.enums import LeaseKind
from scheduling.runs.models import Lease, Member

WINDOW: Final = timedelta(days=30)
MOST_LEASES: Final = 16_000
"""Newest leases that are read of a node."""
_COUNTED: Final = (FailureClass.USER.value, FailureClass.NODE.value)
"""Failures in which a device may have a part; time, memory limits and images have other causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailures:
    """Failures on the devices of a node.

    Attributes:
        devices: by index, those on which a job failed.
        fleet_jobs, fleet_failed: distinct jobs of the fleet, and those of which a member failed.
    """

    devices: Mapping[int, DeviceFailures]
    fleet_jobs: int
    fleet_failed: int


def failures_of_node(node_id: int, *, now: datetime) -> NodeFailures:
    """Return the failures of the last 30 days, in two queries; the caller has checked the rights.

    A member counts for its own devices if it failed itself, not if the gang was stopped. A device
    that replaced another one does not inherit its failures.
    """
    jobs, failed = _fleet(now)
    rows = _ended(now).filter(device__node=node_id).order_by("-member__exited_at")[:MOST_LEASES]
    seen: dict[int, list[JobOnDevice]] = defaultdict(list)
    for index, job, tenant, failure in rows.values_list(
        "device__index", "job_id", "job__tenant_id", "member__failure_class"
    ):
        seen[index].append(JobOnDevice(job=job, tenant=tenant, failed=failure in _COUNTED))
    rate = fleet_rate(jobs, failed)
    found = {index: failures_of(jobs, rate) for index, jobs in sorted(seen.items())}
    return NodeFailures(
        devices={index: one for index, one in found.items() if one.failed},
        fleet_jobs=jobs,
        fleet_failed=failed,
    )


def suspect_devices(*, now: datetime) -> frozenset[int]:
    """Return the primary keys of the devices that are suspect, in at most three queries."""
    counted = (
        _ended(now)
        .filter(member__failure_class__in=_COUNTED)
        .order_by()
        .values("device")
        .annotate(failed=Count("job", distinct=True), tenants=Count("job__tenant", distinct=True))
        .filter(failed__gte=LEAST_JOBS, tenants__gte=LEAST_TENANTS)
    )
    failures = {row["device"]: (row["failed"], row["tenants"]) for row in counted}
    if not failures:
        return frozenset()
    fleet = fleet_rate(*_fleet(now))
    totals = _ended(now).filter(device__in=failures).order_by().values("device")
    jobs = dict(totals.annotate(jobs=Count("job", distinct=True)).values_list("device", "jobs"))
    return frozenset(
        device
        for device, (failed, tenants) in failures.items()
        if judged(jobs=jobs[device], failed=failed, tenants=tenants, fleet=fleet).is_suspect
    )


def _fleet(now: datetime) -> tuple[int, int]:
    fleet = Member.objects.filter(exited_at__gte=now - WINDOW).aggregate(
        jobs=Count("attempt__job", distinct=True),
        failed=Count("attempt__job", distinct=True, filter=Q(failure_class__in=_COUNTED)),
    )
    return fleet["jobs"], fleet["failed"]


def _ended(now: datetime) -> QuerySet[Lease]:
    """Return the leases of present devices whose members have ended in the window."""
    return Lease.objects.filter(
        device__retired_at=None, member__exited_at__gte=now - WINDOW
    ).exclude(kind=LeaseKind.RESERVED)
