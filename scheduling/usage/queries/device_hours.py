"""Charged device hours: GPU-hours and slot-hours, counted apart, from when processes ran.

A device is charged from the start of its process to its end, both by the node (see
``scheduling.core.charging``); while it is only leased, for preparation or until its gang has left
as a whole, it is free.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import (
    Case,
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Greatest

from scheduling.enums import LeaseKind, MemberStep
from scheduling.runs.models import Lease
from scheduling.usage.models import UsageMark

EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHours:
    """Use of a job in hours of one device; a declared CPU slot is not a GPU."""

    gpu: float = 0.0
    slot: float = 0.0


def hours_of_jobs(job_ids: Iterable[int], *, now: datetime) -> Mapping[int, DeviceHours]:
    """Hours by job up to ``now``, in one query; the caller has checked that they may be seen."""
    found: dict[int, dict[bool, float]] = defaultdict(dict)
    for job_id, is_gpu, total in (
        Lease.objects.filter(job_id__in=list(job_ids), kind=LeaseKind.USING)
        .order_by()
        .values_list("job_id", "device__is_gpu")
        .annotate(total=Sum(charged_until(now)))
    ):
        found[job_id][is_gpu] = max(total.total_seconds(), 0.0) / 3600 if total else 0.0
    return {
        job_id: DeviceHours(gpu=hours.get(True, 0.0), slot=hours.get(False, 0.0))
        for job_id, hours in found.items()
    }


def charged_until(now: datetime, *, since: datetime = EVER) -> Any:
    """End of the charge of a lease after ``since``; up to ``now`` if in use."""
    at = DateTimeField()
    begun = Greatest(F("member__started_at"), Value(since, output_field=at))
    ended = Coalesce(F("member__exited_at"), F("released_at"), Value(now, output_field=at))
    span = ExpressionWrapper(ended - begun, output_field=DurationField())
    # GREATEST ignores NULL in PostgreSQL: a process that has not started must not count.
    return Case(
        When(member__started_at__isnull=False, member__started_at__lt=now, then=span),
        default=Value(timedelta(), output_field=DurationField()),
        output_field=DurationField(),
    )


def summed_until() -> datetime:
    """The end of the use in the rows of days; later use is in the leases alone."""
    return UsageMark.objects.values_list("summed_until", flat=True).first() or EVER


def leases_since(instant: datetime, *, now: datetime) -> QuerySet[Lease]:
    """Leases that hold after an instant, each with its charge (``charged``) since then.

    The charge is negative if earlier sums charged a process beyond its end, which was observed
    only later. An end known to the sums adds nothing, even while the rest of the gang runs.
    """
    until = Value(now, output_field=DateTimeField())
    was_known = Q(member__step_since__lte=instant) | Q(member__step=MemberStep.RELEASED)
    charged = Case(
        When(Q(member__exited_at__lte=instant) & was_known, then=Value(timedelta())),
        default=charged_until(now, since=instant),
        output_field=DurationField(),
    )
    return (
        # Almost every lease was taken before now: as an expression, no index by that is walked,
        # but the one of ends.
        Lease.objects.alias(begun=Coalesce(F("taken_at"), until))
        .filter(
            Q(released_at=None) | Q(released_at__gt=instant), kind=LeaseKind.USING, begun__lt=until
        )
        .annotate(charged=charged)
        .order_by()
    )
