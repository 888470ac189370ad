"""What earlier estimates of a virtual cluster teach about the next ones."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final

from django.db.models import Q

from scheduling.core.forecast.calibration import Lessons, Told, learn
from scheduling.models import EstimateRecord

MOST_CLOSED: Final = 250
MOST_OPEN: Final = 150


def lessons_of(virtual_clusters: Iterable[int], *, now: datetime) -> Mapping[int, Lessons]:
    """What past estimates of each virtual cluster teach."""
    return {vc: learn(_told(vc, now), now=now.timestamp()) for vc in virtual_clusters}


def _told(vc: int, now: datetime) -> list[Told]:
    rows = [
        row
        for kept, most in (
            (Q(wait__isnull=False), MOST_CLOSED),
            (Q(wait__isnull=True, closed_at__isnull=True), MOST_OPEN),
        )
        for row in EstimateRecord.objects.filter(kept, virtual_cluster=vc)
        .order_by("-made_at")
        .values_list(
            "made_at", "job", "job__devices", "waited", "raw_p10", "raw_p50", "raw_p90", "wait"
        )[:most]
    ]
    found: list[Told] = []
    seen: set[int] = set()
    for made_at, job_id, devices, waited, p10, p50, p90, wait in sorted(
        rows, key=itemgetter(0, 1)
    ):
        found.append(
            Told(
                quantiles=(p10, p50, p90),
                wait=max(0.0, (now - made_at).total_seconds()) if wait is None else wait,
                started=wait is not None,
                made=made_at.timestamp(),
                waited=waited,
                first=job_id not in seen,
                devices=devices,
                job=job_id,
            )
        )
        seen.add(job_id)
    return found


def forget_estimates(*, now: datetime, kept: timedelta = timedelta(days=90)) -> int:
    """Drop estimates of old."""
    gone, _ = EstimateRecord.objects.filter(made_at__lt=now - kept).delete()
    return gone
