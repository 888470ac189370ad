"""Device hours of jobs: GPU-hours and slot-hours, counted apart, from what was really held."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Sum, Value
from django.db.models.functions import Coalesce

from scheduling.enums import LeaseKind
from scheduling.models import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHours:
    """What a job has held, in hours of one device; a declared CPU slot is no GPU."""

    gpu: float = 0.0
    slot: float = 0.0


def hours_of_jobs(job_ids: Iterable[int], *, now: datetime) -> Mapping[int, DeviceHours]:
    """Hours by job up to ``now``, in one query; the caller has checked that they may be seen."""
    held = ExpressionWrapper(
        Coalesce(F("released_at"), Value(now, output_field=DateTimeField())) - F("taken_at"),
        output_field=DurationField(),
    )
    found: dict[int, dict[bool, float]] = defaultdict(dict)
    for job_id, is_gpu, total in (
        Lease.objects.filter(job_id__in=list(job_ids), kind=LeaseKind.USING)
        .order_by()
        .values_list("job_id", "device__is_gpu")
        .annotate(total=Sum(held))
    ):
        found[job_id][is_gpu] = max(total.total_seconds(), 0.0) / 3600 if total else 0.0
    return {
        job_id: DeviceHours(gpu=hours.get(True, 0.0), slot=hours.get(False, 0.0))
        for job_id, hours in found.items()
    }
