"""Notifications of quotas at 80 and 100 percent; they repeat only after the use has fallen."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import F, Sum

from scheduling.clusters.queries.cluster import VcUse, vc_uses
from scheduling.core.messages import sentence
from scheduling.core.notices import NoticeEvent
from scheduling.notices.models import GpuHourBudget, QuotaMark
from scheduling.notices.services.outbox import put
from scheduling.usage.models import UsageDay
from scheduling.usage.queries.device_hours import leases_since, summed_until
from tenants.audit import record
from tenants.errors import InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

STEPS: Final = (80, 100)
SLACK: Final = 10
"""Points below a step at which its mark falls, so that a fluctuating share notifies once."""
MOST_HOURS: Final = 1e9


def level_of(percent: float, last_level: int) -> int:
    """Return the level that counts as notified.

    Args:
        percent: current use of the quota.
        last_level: last notified level: 0, 80 or 100.
    """
    reached = max((step for step in STEPS if percent >= step), default=0)
    retained = [step for step in STEPS if step <= last_level and percent >= step - SLACK]
    return max([reached, *retained])


def look_at_quotas(*, now: datetime) -> int:
    """Record quotas that have newly reached 80 or 100 percent, and return their number."""
    uses = [use for use in vc_uses(Viewer.system("quotas")) if use.guarantee]
    return _check_guarantees(uses, now) + _check_budgets(now)


@transaction.atomic
def set_budget(*, viewer: Viewer, tenant_id: int, hours: float | None) -> None:
    """Set the GPU-hours that a tenant expects to use in a month; None removes the budget.

    Raises:
        ForbiddenError, NotFoundError: the viewer is not a cluster admin.
        InvalidError: the number of hours is not valid.
    """
    viewer.require(Permission.MANAGE_TENANTS, what="the tenant")
    if hours is not None and not 0 < hours <= MOST_HOURS:
        raise InvalidError(
            sentence("not-gpu-hours"),
            field="gpu_hours_per_month",
            value=hours,
            remedy=sentence("give-budget"),
        )
    there = GpuHourBudget.objects.unscoped().filter(tenant=tenant_id)
    before = there.values_list("hours", flat=True).first()
    if before == hours:
        return
    if hours is None:
        there.delete()
    else:
        GpuHourBudget.objects.unscoped().update_or_create(
            tenant_id=tenant_id, defaults={"hours": hours}
        )
    record(
        actor=viewer,
        action="tenant.budget",
        object_type="tenant",
        object_id=tenant_id,
        object_name=viewer.name_of(tenant_id),
        before={"gpu_hours_per_month": before},
        after={"gpu_hours_per_month": hours},
        tenant=tenant_id,
    )


def gpu_hours_since(
    start: datetime, *, now: datetime, tenant_ids: set[int]
) -> Mapping[int, float]:
    """Return the GPU-hours of tenants since the start of a day, in three queries."""
    seconds: dict[int, float] = defaultdict(float)
    summed = max(summed_until(), start)
    days = UsageDay.objects.unscoped().filter(
        day__gte=start.date(), is_gpu=True, tenant__in=tenant_ids
    )
    held = Sum(F("guaranteed") + F("borrowed"))
    for tenant, total in days.order_by().values_list("tenant_id").annotate(total=held):
        seconds[tenant] += total
    newer = leases_since(summed, now=now).filter(device__is_gpu=True, job__tenant__in=tenant_ids)
    for tenant, lasted in newer.values_list("job__tenant_id").annotate(total=Sum("charged")):
        seconds[tenant] += max(lasted.total_seconds(), 0.0) if lasted else 0.0
    return {tenant: total / 3600 for tenant, total in seconds.items()}


def month_start(now: datetime) -> datetime:
    """Return the start of the calendar month of a time, in UTC."""
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


@transaction.atomic
def _check_guarantees(uses: list[VcUse], now: datetime) -> int:
    marks = {
        mark.virtual_cluster_id: mark
        for mark in QuotaMark.objects.unscoped().filter(virtual_cluster__isnull=False)
    }
    notified = 0
    for use in uses:
        mark = marks.get(use.id) or _new_mark(use.tenant_id, use.id)
        percent = 100 * use.used / use.guarantee
        facts = {
            "virtual_cluster": use.name,
            "used_devices": use.used,
            "guaranteed_devices": use.guarantee,
        }
        path = f"/virtual-clusters/{use.id}/"
        notified += _mark(
            mark,
            percent=percent,
            event=NoticeEvent.QUOTA_GUARANTEE,
            facts=facts,
            path=path,
            now=now,
        )
    return notified


@transaction.atomic
def _check_budgets(now: datetime) -> int:
    budgets = dict(GpuHourBudget.objects.unscoped().values_list("tenant_id", "hours"))
    if not budgets:
        return 0
    used = gpu_hours_since(month_start(now), now=now, tenant_ids=set(budgets))
    rows = QuotaMark.objects.unscoped().filter(virtual_cluster=None, tenant__in=list(budgets))
    marks = {mark.tenant_id: mark for mark in rows}
    notified = 0
    for tenant_id, hours in budgets.items():
        mark = marks.get(tenant_id) or _new_mark(tenant_id)
        period = f"{now:%Y-%m}"
        spent = used.get(tenant_id, 0.0)
        facts = {"used_gpu_hours": round(spent, 1), "gpu_hours_per_month": hours, "month": period}
        path = f"/tenants/{tenant_id}/"
        notified += _mark(
            mark,
            percent=100 * spent / hours,
            event=NoticeEvent.QUOTA_GPU_HOURS,
            facts=facts,
            path=path,
            now=now,
            period=period,
        )
    return notified


def _mark(
    mark: QuotaMark,
    *,
    percent: float,
    event: NoticeEvent,
    facts: dict[str, object],
    path: str,
    now: datetime,
    period: str = "",
) -> int:
    """Store the level, and a notice if it rises; return the number of notices.

    Of two concurrent calls, only the one that updates the row writes the notice.
    """
    last_level = mark.level if mark.period == period else 0
    level = level_of(percent, last_level)
    if level == mark.level and mark.period == period:
        return 0
    as_read = QuotaMark.objects.unscoped().filter(pk=mark.pk, level=mark.level, period=mark.period)
    if not as_read.update(level=level, period=period) or level <= last_level:
        return 0
    quota = {"percent": level, **facts}
    put(event=event, facts={"quota": quota, "path": path}, now=now, tenant_id=mark.tenant_id)
    return 1


def _new_mark(tenant_id: int, virtual_cluster_id: int | None = None) -> QuotaMark:
    mark, _ = QuotaMark.objects.unscoped().get_or_create(
        tenant_id=tenant_id, virtual_cluster_id=virtual_cluster_id
    )
    return mark
