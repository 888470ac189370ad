"""Calibration of start estimates from past estimates of a virtual cluster."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final

from django.db.models import Q

from scheduling.core.forecast import HORIZON
from scheduling.core.forecast.calibration import Calibration, PastEstimate, learn
from scheduling.core.lifecycle import TERMINAL, JobState
from scheduling.estimates.models import EstimateRecord
from scheduling.runs.models import Attempt

MOST_CLOSED: Final = 250
MOST_OPEN: Final = 150
MOST_PENDING: Final = 5_000
_CHUNK: Final = 500


def lessons_of(virtual_clusters: Iterable[int], *, now: datetime) -> Mapping[int, Calibration]:
    """Return the calibration of each virtual cluster, from its past estimates."""
    return {vc: learn(_told(vc, now), now=now.timestamp()) for vc in virtual_clusters}


def _told(vc: int, now: datetime) -> list[PastEstimate]:
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
    found: list[PastEstimate] = []
    seen: set[int] = set()
    for made_at, job_id, devices, waited, p10, p50, p90, wait in sorted(
        rows, key=itemgetter(0, 1)
    ):
        found.append(
            PastEstimate(
                quantiles=(p10, p50, p90) if p10 < HORIZON else None,
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


def close_records(*, now: datetime) -> None:
    """Close the records of estimates whose jobs have devices or have ended."""
    pending = list(
        EstimateRecord.objects.filter(closed_at=None)
        .exclude(job__state=JobState.QUEUED, job__attempts_made=0)
        .values_list("id", "job_id", "made_at", "job__state")[:MOST_PENDING]
    )
    if not pending:
        return
    jobs = sorted({job_id for _, job_id, _, _ in pending})
    starts: dict[int, list[datetime]] = {}
    for begin in range(0, len(jobs), _CHUNK):
        attempts = Attempt.objects.filter(job__in=jobs[begin : begin + _CHUNK])
        for job_id, at in attempts.values_list("job", "created_at"):
            starts.setdefault(job_id, []).append(at)
    over = {state.value for state in TERMINAL}
    closed: list[EstimateRecord] = []
    for pk, job_id, made_at, state in pending:
        later = [at for at in starts.get(job_id, ()) if at >= made_at]
        if later or state in over:
            wait = (min(later) - made_at).total_seconds() if later else None
            closed.append(EstimateRecord(pk=pk, wait=wait, closed_at=now))
    EstimateRecord.objects.bulk_update(closed, ["wait", "closed_at"], batch_size=_CHUNK)


def prune_estimates(*, now: datetime, kept: timedelta = timedelta(days=90)) -> int:
    """Delete estimate records older than ``kept``, and return their number."""
    gone, _ = EstimateRecord.objects.filter(made_at__lt=now - kept).delete()
    return gone
