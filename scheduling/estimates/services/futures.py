"""When a job that nobody has sent would start: the policies run forward with it at the end."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from scheduling.common.time_limits import time_limit
from scheduling.core.forecast.durations import lineage_of
from scheduling.core.forecast.forward import ForecastCourse
from scheduling.core.forecast.futures import Past, jobs_without_limit, try_futures
from scheduling.core.values import ClusterSnapshot, QueuedJob
from scheduling.estimates.services.run_times import pasts_of_live_jobs, recent_run_times

FUTURES: Final = 10
COURSE: Final = ForecastCourse(coarse=0.04, most_waiting=200)
POLICY_SECONDS: Final = 2.0


class DraftWait(NamedTuple):
    """Seconds until a draft starts at 10, 50 and 90 %, and whose running jobs have no limit."""

    quantiles: tuple[float, float, float]
    unlimited: tuple[int, ...]


def wait_of_draft(
    snapshot: ClusterSnapshot, job: QueuedJob, *, seconds: float
) -> DraftWait | None:
    """When a draft starts, found in limited time; None: not known.

    Args:
        snapshot: how things stand, without the job; what is known of the job is in it.
        job: at the end of the queue.
        seconds: how long futures may be tried.
    """
    deadline = time.monotonic() + seconds
    now = datetime.fromtimestamp(snapshot.now, tz=UTC)
    known = snapshot.known.get(job.id)
    lineage = lineage_of(
        vc=job.vc,
        owner=job.owner,
        application=known.terms.application if known is not None else None,
        name="",
        devices=job.demand.devices,
    )
    pasts = pasts_of_live_jobs(now=now)
    found = try_futures(
        replace(snapshot, queued=(*snapshot.queued, job)),
        recent_run_times(now=now),
        {**pasts, job.id: Past(lineage=lineage)},
        futures=FUTURES,
        seed=snapshot.round_number,
        course=COURSE,
        wanted={job.id},
        go_on=lambda: time.monotonic() < deadline,
        limit=time_limit(POLICY_SECONDS),
    )
    raw = found.quantiles(job.id)
    if raw is None or max(raw) > COURSE.horizon:
        return None
    return DraftWait(raw, jobs_without_limit(snapshot, job, pasts))
