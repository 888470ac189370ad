"""Charged hours of GPUs or CPU slots by day and tenant, with the tenants' monthly budgets."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from django.db.models import F, Sum

from scheduling.notices.models import GpuHourBudget
from scheduling.usage.models import UsageDay
from scheduling.usage.queries.usage import seen_whole, visible_use
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyUse:
    """Use in a month.

    Attributes:
        hours: by name of the tenant and day, as far as the viewer may see them.
        budgets: GPU-hours of the month by name of the tenant, of tenants whose use is complete.
        has_hidden_budgets: other tenants of the viewer have budgets, too.
    """

    hours: Mapping[str, Mapping[date, float]]
    budgets: Mapping[str, float]
    has_hidden_budgets: bool = False


def daily_use(viewer: Viewer, *, since: date, until: date, is_gpu: bool = True) -> DailyUse:
    """Return the hours of each day from ``since`` to ``until``, in two queries.

    Args:
        viewer: sees own use, or that of whole tenants.
        since: first day.
        until: last day.
        is_gpu: hours of GPUs; otherwise of CPU slots.
    """
    found: dict[int, dict[date, float]] = {}
    for tenant, day, seconds in (
        UsageDay.objects.visible_to(viewer)
        .filter(visible_use(viewer), day__gte=since, day__lte=until, is_gpu=is_gpu)
        .order_by()
        .values_list("tenant_id", "day")
        .annotate(held=Sum(F("guaranteed") + F("borrowed")))
    ):
        found.setdefault(tenant, {})[day] = seconds / 3600
    whole = seen_whole(viewer)
    budgets = dict(
        GpuHourBudget.objects.visible_to(viewer, Permission.VIEW_TENANT)
        .order_by("tenant_id")
        .values_list("tenant_id", "hours")
    )
    shown = {pk: hours for pk, hours in budgets.items() if whole is None or pk in whole}
    return DailyUse(
        hours={viewer.name_of(pk): days for pk, days in sorted(found.items())},
        budgets={viewer.name_of(pk): hours for pk, hours in shown.items()},
        has_hidden_budgets=len(shown) < len(budgets),
    )


def first_day_of_use(viewer: Viewer) -> date | None:
    """Return the first day (UTC) with use in a tenant of the viewer, or None."""
    days = UsageDay.objects.visible_to(viewer).order_by("day")
    return days.values_list("day", flat=True).first()
