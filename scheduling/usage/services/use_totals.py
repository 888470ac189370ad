"""Adds up the days of closed months, so that who sums up the past reads only what is newer."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Final

from django.db.models import F, Sum

from scheduling.usage.models import UsageDay
from tenants.models import UsedSoFar

Whose = tuple[int, int, bool]
"""Tenant, person, and whether it is of GPUs."""

_HELD: Final = F("guaranteed") + F("borrowed")


def add_days_before(day: date) -> None:
    """Add the rows of days before ``day`` that have not been added yet; call it in a transaction.

    Args:
        day: the first after a month that is being closed with all months before it: rows of
            closed months do not change.
    """
    known = {(row.tenant_id, row.user_id, row.is_gpu): row for row in UsedSoFar.objects.unscoped()}
    since = next((row.until for row in known.values()), None)
    until = datetime.combine(day, time(), UTC)
    if since is not None and since >= until:
        return
    grown = _days(since.date() if since else date.min, day)
    UsedSoFar.objects.unscoped().update(until=until)
    for key, seconds in grown.items():
        if key in known:
            row = UsedSoFar.objects.unscoped().filter(pk=known[key].pk)
            row.update(seconds=known[key].seconds + seconds)
            continue
        tenant_id, user_id, is_gpu = key
        UsedSoFar.objects.create(
            tenant_id=tenant_id, user_id=user_id, is_gpu=is_gpu, seconds=seconds, until=until
        )


def _days(first: date, end: date) -> Mapping[Whose, float]:
    rows = (
        UsageDay.objects.unscoped()
        .filter(day__gte=first, day__lt=end)
        .order_by()
        .values_list("tenant_id", "owner_id", "is_gpu")
        .annotate(total=Sum(_HELD))
    )
    return {(tenant, owner, is_gpu): total for tenant, owner, is_gpu, total in rows}
