"""Removing guests from devices, and the switches of device sharing."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Q

from scheduling.clusters.models import ClusterRules
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.lifecycle import PreemptionRule
from scheduling.core.messages import sentence
from scheduling.enums import LeaseKind
from scheduling.jobs.models import Job
from scheduling.jobs.services.ownership import require_own
from scheduling.runs.models import Lease
from scheduling.runs.services.gang_outcomes import tell_coordinators
from scheduling.runs.services.stopping import preempt_job
from tenants.audit import record
from tenants.edits import require_version
from tenants.roles import Permission
from tenants.viewers import Viewer

GUEST_GRACE_SECONDS: Final = 5.0
"""Time between the notice to a guest to leave its device and SIGKILL."""


def send_guests_away(jobs: Iterable[int], *, rule: str, now: datetime) -> tuple[int, ...]:
    """Order guests to leave their devices; returns those that were running.

    They have ``GUEST_GRACE_SECONDS`` to save their work, and are queued again.
    """
    return tuple(
        job
        for job in jobs
        if preempt_job(
            job_id=job, for_job=0, rule=rule, now=now, cause=PreemptionRule.OPPORTUNISTIC
        )
    )


@transaction.atomic
def set_sharing(
    *, viewer: Viewer, enabled: bool, now: datetime, expected_version: int | None = None
) -> ClusterRules:
    """Turn device sharing of the whole cluster on or off; off orders all guests to leave.

    Raises:
        ForbiddenError: the viewer is not a cluster admin.
        StaleEditError: the rules were set since ``expected_version``.
    """
    viewer.require(Permission.MANAGE_NODES, what="device sharing")
    ClusterRules.objects.get_or_create(id=1, defaults={"version": 0})
    rules = ClusterRules.objects.select_for_update().get(id=1)
    require_version(rules.version, expected_version, kind="cluster rules")
    if rules.sharing != enabled:
        rules.sharing, rules.version = enabled, rules.version + 1
        rules.save(update_fields=["sharing", "version"])
        record(
            actor=viewer,
            action="cluster.sharing",
            obj=rules,
            before={"sharing": not enabled},
            after={"sharing": enabled},
        )
        request_round_on_commit("sharing")
    if not enabled:
        clear_guests(Q(), rule=sentence("guest-leaves-switch"), now=now)
    return rules


@transaction.atomic
def stop_sharing(*, job: Job, viewer: Viewer, now: datetime) -> int:
    """Stop device sharing of a job: its guests leave, and its devices take no others.

    Returns:
        The number of guests that have to leave.

    Raises:
        ForbiddenError: the viewer may see the job but not change it.
    """
    require_own(job=job, viewer=viewer)
    if job.sharing_stopped_at is None:
        job.sharing_stopped_at = now
        job.save(update_fields=["sharing_stopped_at"])
        record(actor=viewer, action="job.stop_sharing", obj=job, tenant=job.tenant_id)
    beside = Q(beside__attempt__job=job)
    return len(clear_guests(beside, rule=sentence("guest-leaves-holder"), now=now))


def clear_guests(which: Q, *, rule: str, now: datetime) -> tuple[int, ...]:
    """Order the guests with matching leases to leave; returns those that were running."""
    leases = Lease.objects.filter(which, released_at=None, kind=LeaseKind.GUEST)
    found = list(leases.order_by("job_id").values_list("job_id", "beside_id"))
    tell_coordinators([holder for _, holder in found if holder is not None])
    return send_guests_away((job for job, _ in found), rule=rule, now=now)
