"""Sums up what people have used, so that readers need only what has ended since."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import Sum

from scheduling.enums import LeaseKind
from scheduling.models import Lease
from scheduling.selectors.hours import EVER, held_until
from tenants.models import UsedSoFar

MARGIN: Final = timedelta(minutes=10)
"""What ended this recently may not be committed yet."""

Whose = tuple[int, int, bool]
"""Tenant, person, and whether it is of GPUs."""


def roll_up_use(*, now: datetime) -> int:
    """Add the leases that have ended since the last time; returns how many sums have grown.

    The sums are made outside the transaction that writes them; where somebody else was faster,
    nothing is written.
    """
    known = {(row.tenant_id, row.user_id, row.is_gpu): row for row in UsedSoFar.objects.unscoped()}
    since = next((row.until for row in known.values()), EVER)
    until = now - MARGIN
    if until <= since:
        return 0
    grown = _ended(since, until)
    try:
        with transaction.atomic():
            _add(grown, known, since=since, until=until)
    except (IntegrityError, _OvertakenError):
        return 0
    return len(grown)


class _OvertakenError(Exception):
    """Somebody else has summed up meanwhile."""


def _add(
    grown: Mapping[Whose, float],
    known: Mapping[Whose, UsedSoFar],
    *,
    since: datetime,
    until: datetime,
) -> None:
    if UsedSoFar.objects.unscoped().filter(until=since).update(until=until) != len(known):
        raise _OvertakenError
    for key, seconds in grown.items():
        if key in known:
            row = UsedSoFar.objects.unscoped().filter(pk=known[key].pk)
            row.update(seconds=known[key].seconds + seconds)
            continue
        tenant_id, user_id, is_gpu = key
        UsedSoFar.objects.create(
            tenant_id=tenant_id, user_id=user_id, is_gpu=is_gpu, seconds=seconds, until=until
        )


def _ended(since: datetime, until: datetime) -> dict[Whose, float]:
    rows = (
        Lease.objects.filter(
            attempt__ended_at__gt=since, attempt__ended_at__lte=until, kind=LeaseKind.USING
        )
        .order_by()
        .values_list("job__tenant_id", "job__owner_id", "device__is_gpu")
        .annotate(total=Sum(held_until(until)))
    )
    return {
        (tenant_id, owner_id, is_gpu): max(total.total_seconds(), 0.0) if total else 0.0
        for tenant_id, owner_id, is_gpu, total in rows
    }
