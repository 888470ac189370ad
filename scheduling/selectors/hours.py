"""Device hours of jobs: GPU-hours and slot-hours, counted apart, from what was really held."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import (
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Q,
    QuerySet,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce, Greatest

from scheduling.enums import LeaseKind
from scheduling.models import Lease, UsageMark

EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHours:
    """What a job has held, in hours of one device; a declared CPU slot is no GPU."""

    gpu: float = 0.0
    slot: float = 0.0


def hours_of_jobs(job_ids: Iterable[int], *, now: datetime) -> Mapping[int, DeviceHours]:
    """Hours by job up to ``now``, in one query; the caller has checked that they may be seen."""
    found: dict[int, dict[bool, float]] = defaultdict(dict)
    for job_id, is_gpu, total in (
        Lease.objects.filter(job_id__in=list(job_ids), kind=LeaseKind.USING)
        .order_by()
        .values_list("job_id", "device__is_gpu")
        .annotate(total=Sum(held_until(now)))
    ):
        found[job_id][is_gpu] = max(total.total_seconds(), 0.0) / 3600 if total else 0.0
    return {
        job_id: DeviceHours(gpu=hours.get(True, 0.0), slot=hours.get(False, 0.0))
        for job_id, hours in found.items()
    }


def held_until(now: datetime) -> Any:
    """How long a lease has lasted, up to ``now`` if it is not released."""
    return ExpressionWrapper(_end(now) - F("taken_at"), output_field=DurationField())


def summed_until() -> datetime:
    """Up to when the rows of days hold what was used; what is later is in the leases alone."""
    return UsageMark.objects.values_list("summed_until", flat=True).first() or EVER


def leases_since(instant: datetime, *, now: datetime) -> QuerySet[Lease]:
    """Leases that hold after an instant, each with how long (``held``) up to ``now``."""
    until = Value(now, output_field=DateTimeField())
    begun = Greatest(F("taken_at"), Value(instant, output_field=DateTimeField()))
    held = ExpressionWrapper(_end(now) - begun, output_field=DurationField())
    return (
        # Almost every lease was taken before now: as an expression, no index by that is walked,
        # but the one of ends.
        Lease.objects.alias(begun=Coalesce(F("taken_at"), until))
        .filter(
            Q(released_at=None) | Q(released_at__gt=instant), kind=LeaseKind.USING, begun__lt=until
        )
        .annotate(held=held)
        .order_by()
    )


def _end(now: datetime) -> Any:
    return Coalesce(F("released_at"), Value(now, output_field=DateTimeField()))
