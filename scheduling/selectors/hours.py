"""Device hours of jobs: GPU-hours and slot-hours, counted apart, from what was really held."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Q, Sum, Value
from django.db.models.functions import Coalesce

from scheduling.enums import LeaseKind
from scheduling.models import Attempt, Lease

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
    return ExpressionWrapper(
        Coalesce(F("released_at"), Value(now, output_field=DateTimeField())) - F("taken_at"),
        output_field=DurationField(),
    )


def runs_since(until: datetime) -> Any:
    """Ids of the attempts that have not ended, or later than ``until``; a subquery.

    Leases end with their attempts, whose ends have an index.
    """
    return Attempt.objects.filter(Q(ended_at=None) | Q(ended_at__gt=until)).values("id")
