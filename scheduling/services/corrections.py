"""What earlier estimates of a virtual cluster teach about the next ones."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from scheduling.core.forecast.calibration import Correction, Told, learn
from scheduling.models import EstimateRecord

MOST_TOLD: Final = 200


def corrections_of(virtual_clusters: Iterable[int], *, now: datetime) -> Mapping[int, Correction]:
    """What past estimates of each virtual cluster teach."""
    return {vc: learn(_told(vc, now)) for vc in virtual_clusters}


def _told(vc: int, now: datetime) -> list[Told]:
    rows = (
        EstimateRecord.objects.filter(virtual_cluster=vc)
        .exclude(wait__isnull=True, closed_at__isnull=False)
        .order_by("-made_at")
        .values_list("raw_p10", "raw_p50", "raw_p90", "wait", "made_at")[:MOST_TOLD]
    )
    return [
        Told(
            quantiles=(p10, p50, p90),
            wait=(now - made_at).total_seconds() if wait is None else wait,
            started=wait is not None,
        )
        for p10, p50, p90, wait, made_at in reversed(rows)
    ]


def forget_estimates(*, now: datetime, kept: timedelta = timedelta(days=90)) -> int:
    """Drop estimates of old."""
    gone, _ = EstimateRecord.objects.filter(made_at__lt=now - kept).delete()
    return gone
