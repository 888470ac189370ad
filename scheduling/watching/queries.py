"""Idle jobs and log rules for pages and REST."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, QuerySet

from scheduling.clusters.models import VirtualCluster
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from scheduling.watching.models import IdleRule, IdleSpell, LogRule
from tenants.errors import NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Idling:
    """An idle warning of a running job.

    Attributes:
        since: time at which its devices became idle.
        stop_at: time at which it is stopped if they stay idle; None if it is not stopped.
        devices: number of idle devices; None for all devices of the job.
    """

    since: datetime
    stop_at: datetime | None
    devices: int | None = None


def idling_of(job_id: int) -> Idling | None:
    """Return the idle warning of a job, or None; the caller has checked the rights."""
    spell = IdleSpell.objects.filter(job=job_id, warned_at__isnull=False).first()
    if spell is None:
        return None
    return Idling(since=spell.since, stop_at=spell.stop_at, devices=spell.idle_devices)


def idle_rule_of(viewer: Viewer, virtual_cluster_id: int) -> tuple[VirtualCluster, dict[str, Any]]:
    """Return a virtual cluster and its idle policy; the policy is empty if none is set.

    Raises:
        NotFoundError: the viewer may not see the virtual cluster.
    """
    found = VirtualCluster.objects.visible_to(viewer, Permission.VIEW_TENANT)
    vc = found.filter(pk=virtual_cluster_id, archived_at=None).first()
    if vc is None:
        raise NotFoundError(sentence("no-such-cluster"), field="id")
    rows = IdleRule.objects.filter(virtual_cluster=vc)
    names = ("below", "warn_after", "stop_after", "exempt_priorities", "binding", "devices")
    return vc, dict(rows.values(*names).first() or {})


def log_rules_for(viewer: Viewer) -> "QuerySet[LogRule]":
    """Return the log rules for all jobs, which every user may see."""
    viewer.require(Permission.VIEW_CLUSTER, what="log rules")
    return LogRule.objects.order_by("name")


def log_rule_for(viewer: Viewer, rule_id: int) -> LogRule:
    """Return a log rule.

    Raises:
        NotFoundError: the rule is unknown.
    """
    row = log_rules_for(viewer).filter(pk=rule_id).first()
    if row is None:
        raise NotFoundError(sentence("no-such-rule"), field="id", value=rule_id)
    return row


def idling_counts(viewer: Viewer) -> Mapping[int, int]:
    """Return the number of visible jobs with an idle warning, by virtual cluster ID."""
    visible = Job.objects.visible_to(viewer).filter(idle_spell__warned_at__isnull=False)
    rows = visible.order_by().values_list("virtual_cluster_id")
    return dict(rows.annotate(number=Count("id")))
