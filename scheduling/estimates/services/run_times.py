"""Run times of past attempts, and start estimates of jobs that are not submitted yet."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django.db import connection
from django.db.models import F

from scheduling.common.time_limits import time_limit
from scheduling.core.charging import charged_seconds
from scheduling.core.forecast import HORIZON
from scheduling.core.forecast.durations import RunTime, RunTimes, lineage_of
from scheduling.core.forecast.futures import Past, jobs_without_limit, try_futures
from scheduling.core.lifecycle import EVICTED, end_reason
from scheduling.core.round.declared_terms import APPLICATION_LABEL
from scheduling.core.simulation import SimulationSettings
from scheduling.core.values import ClusterSnapshot, QueuedJob
from scheduling.jobs.models import LIVE_STATES, Job
from scheduling.runs.models import Attempt

REMEMBERED: Final = timedelta(days=60)
MOST_RUNS: Final = 20_000
_COLUMNS: Final = (
    "job__virtual_cluster_id", "job__owner_id", "job__labels", "job__name", "job__devices",
    "running_at", "ended_at", "outcome", "preemption__cause",
)  # fmt: skip


def run_times(*, now: datetime) -> RunTimes:
    """Return the run times of all groups from the newest attempts.

    A running attempt counts with its elapsed time as a lower bound.
    """
    return RunTimes(_runs(now))


def recent_run_times(*, now: datetime) -> RunTimes:
    """Return the run times, cached for at most 1 min, for plans while a user edits a job."""
    return _at_minute(str(connection.settings_dict["NAME"]), int(now.timestamp() // 60))


@lru_cache(maxsize=1)
def _at_minute(_database: str, minute: int) -> RunTimes:
    return run_times(now=datetime.fromtimestamp(60 * minute, tz=UTC))


def pasts_of_live_jobs(*, now: datetime) -> Mapping[int, Past]:
    """Return the observed run times of each live job, by job ID."""
    elapsed: dict[int, float] = defaultdict(float)
    rates: dict[int, float] = {}
    steps: dict[int, int] = defaultdict(int)
    for job_id, begun, ended, seconds, made in (
        Attempt.objects.filter(job__state__in=LIVE_STATES)
        .order_by("job_id", "number")
        .values_list("job_id", "running_at", "ended_at", "progress__seconds", "progress__steps")
    ):
        elapsed[job_id] += charged_seconds(begun, ended, until=now)
        if seconds and made:
            rates[job_id] = seconds / made
            steps[job_id] += made
    found: dict[int, Past] = {}
    for job_id, vc, owner, labels, name, devices, most, spec in (
        Job.objects.unscoped()
        .filter(state__in=LIVE_STATES)
        .annotate(elastic=F("spec__elastic"))
        .values_list(
            "id", "virtual_cluster_id", "owner_id", "labels", "name", "devices",
            "max_duration_seconds", "elastic",
        )
    ):  # fmt: skip
        total = (spec or {}).get("total_steps")
        left = None
        if total and job_id in rates:
            left = max(0.0, (total - steps[job_id]) * rates[job_id])
        found[job_id] = Past(
            lineage=lineage_of_job(vc, owner, labels, name, devices),
            elapsed=elapsed.get(job_id, 0.0),
            most=float(most) if most else None,
            left=left,
        )
    return found


def _runs(now: datetime) -> Iterator[RunTime]:
    ran = Attempt.objects.filter(running_at__isnull=False)
    recent = ran.filter(ended_at__gt=now - REMEMBERED).order_by("-ended_at")
    running = ran.filter(ended_at=None)
    for rows in (recent.values_list(*_COLUMNS)[:MOST_RUNS], running.values_list(*_COLUMNS)):
        for vc, owner, labels, name, devices, begun, ended, outcome, cause in rows:
            yield RunTime(
                lineage=lineage_of_job(vc, owner, labels, name, devices),
                seconds=charged_seconds(begun, ended, until=now),
                ended=ended is not None and not _was_evicted(outcome, cause),
            )


def _was_evicted(outcome: str, cause: str | None) -> bool:
    """Return whether a run was evicted, so that its duration is only a lower bound."""
    return end_reason(outcome=outcome, failure_class="", evicted_by=cause) in EVICTED


def lineage_of_job(
    vc: int, owner: int, labels: Mapping[str, Any], name: str, devices: int
) -> tuple[str, ...]:
    """Return the groups of a stored job, widest first."""
    return lineage_of(
        vc=vc,
        owner=owner,
        application=labels.get(APPLICATION_LABEL),
        name=name,
        devices=devices,
    )


FUTURES: Final = 10
SETTINGS: Final = SimulationSettings(horizon=HORIZON, coarse=0.04, most_waiting=200)
POLICY_SECONDS: Final = 2.0


class DraftWait(NamedTuple):
    """A start estimate of a draft (p10, p50, p90 in s), and running jobs without a limit."""

    quantiles: tuple[float, float, float]
    unlimited: tuple[int, ...]


def wait_of_draft(
    snapshot: ClusterSnapshot, job: QueuedJob, *, seconds: float
) -> DraftWait | None:
    """Return the start estimate of a draft, or None if the time limit allows no estimate.

    Args:
        snapshot: the snapshot without the job, but with its job facts.
        job: the draft at the end of the queue.
        seconds: time limit for the simulated futures.
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
        replace(snapshot, queued=(*snapshot.queued, job))
        if job.demand.has_devices
        else replace(snapshot, cpu_queued=(*snapshot.cpu_queued, job)),
        recent_run_times(now=now),
        {**pasts, job.id: Past(lineage=lineage)},
        futures=FUTURES,
        seed=snapshot.round_number,
        settings=SETTINGS,
        wanted={job.id},
        go_on=lambda: time.monotonic() < deadline,
        limit=time_limit(POLICY_SECONDS),
    )
    raw = found.quantiles(job.id)
    if raw is None or max(raw) > SETTINGS.horizon:
        return None
    return DraftWait(raw, jobs_without_limit(snapshot, job, pasts))
