"""Failures of jobs by device, for cluster admins."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Count, Q

from scheduling.core.device_failures import DeviceFailures, JobOnDevice, failures_of, fleet_rate
from scheduling.core.lifecycle import FailureClass
from scheduling.runs.models import Member

WINDOW: Final = timedelta(days=30)
MOST_MEMBERS: Final = 2000
"""Newest members that are read of a node."""
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

    A member counts for its own devices if it failed itself, not if the gang was stopped.
    """
    ended = Member.objects.filter(exited_at__gte=now - WINDOW)
    fleet = ended.aggregate(
        jobs=Count("attempt__job", distinct=True),
        failed=Count("attempt__job", distinct=True, filter=Q(failure_class__in=_COUNTED)),
    )
    rows = ended.filter(node=node_id).order_by("-exited_at")[:MOST_MEMBERS]
    seen: dict[int, list[JobOnDevice]] = defaultdict(list)
    for devices, job, tenant, failure in rows.values_list(
        "devices", "attempt__job_id", "attempt__job__tenant_id", "failure_class"
    ):
        one = JobOnDevice(job=job, tenant=tenant, failed=failure in _COUNTED)
        for index in devices:
            seen[index].append(one)
    rate = fleet_rate(fleet["jobs"], fleet["failed"])
    judged = {index: failures_of(jobs, rate) for index, jobs in sorted(seen.items())}
    return NodeFailures(
        devices={index: found for index, found in judged.items() if found.failed},
        fleet_jobs=fleet["jobs"],
        fleet_failed=fleet["failed"],
    )
