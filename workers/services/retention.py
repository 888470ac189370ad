"""Retention of logs, goodput and telemetry after the end of a job."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet

from scheduling.jobs.models import Job
from scheduling.storage.base import FileStorage
from workers.models import GoodputSample, LogStream, MetricSeries, TrackedRun
from workers.services import heartbeats, telemetry

BATCH: Final = 500
DEAD_AFTER: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRetention:
    """Retention, counted from the job's end; None means no limit.

    Attributes:
        logs: files and text; the rows remain and mark the text as dropped.
        goodput: samples, and metrics.
    """

    logs: timedelta | None = timedelta(days=30)
    goodput: timedelta | None = timedelta(days=180)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Numbers of deleted rows and files."""

    logs: int = 0
    folders: int = 0
    goodput: int = 0
    metrics: int = 0
    telemetry: int = 0


def prune(*, retention: WorkerRetention, storage: FileStorage, now: datetime) -> Forgotten:
    """Delete data older than ``retention``; data of live jobs remains.

    Args:
        retention: the limits.
        storage: has the logs.
        now: current time.
    """
    heartbeats.forget_processes(now=now, after=DEAD_AFTER)
    return Forgotten(
        logs=_prune_logs(retention.logs, storage, now),
        folders=_prune_folders(storage),
        goodput=_prune_jobs_rows(GoodputSample, retention.goodput, now),
        metrics=_prune_jobs_rows(MetricSeries, retention.goodput, now)
        + _prune_jobs_rows(TrackedRun, retention.goodput, now),
        telemetry=telemetry.prune(now=now),
    )


def _prune_logs(age: timedelta | None, storage: FileStorage, now: datetime) -> int:
    if age is None:
        return 0
    old = LogStream.objects.filter(job__finished_at__lt=now - age, pruned_at=None)
    count = 0
    # Files first: a crash in between leaves a row that is pruned again, never a file without one.
    while streams := list(old.order_by("id")[:BATCH]):
        for stream in streams:
            storage.logs.delete(stream.path)
        ids = [stream.pk for stream in streams]
        count += LogStream.objects.filter(pk__in=ids).update(pruned_at=now)
    return count


def _prune_folders(storage: FileStorage) -> int:
    """Delete the folders of jobs without a row."""
    numbers = storage.logs.job_ids()
    count = 0
    for first in range(0, len(numbers), BATCH):
        some = sorted(numbers)[first : first + BATCH]
        there = set(Job.objects.unscoped().filter(pk__in=some).values_list("pk", flat=True))
        for number in set(some) - there:
            storage.logs.delete_job(number)
            count += 1
    return count


def _prune_jobs_rows(
    kind: type[GoodputSample] | type[MetricSeries] | type[TrackedRun],
    age: timedelta | None,
    now: datetime,
) -> int:
    if age is None:
        return 0
    return _delete(kind.objects.filter(job__finished_at__lt=now - age))


def _delete(rows: "QuerySet[Any]") -> int:
    """Delete in batches, so that database locks are short."""
    count = 0
    while ids := list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH]):
        rows.model._base_manager.filter(pk__in=ids).delete()
        count += len(ids)
    return count
