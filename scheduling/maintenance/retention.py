"""Pruning of old rows and files in short transactions: ended jobs, events, rounds."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Exists, OuterRef

from scheduling.core.lifecycle import TERMINAL, JobState
from scheduling.jobs.models import Job, JobDependency, JobEvent
from scheduling.jobs.services.archives import prune_archives
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import prune_rounds
from scheduling.runs.models import SharedMinute
from scheduling.storage.base import FileStorage
from scheduling.usage.models import UsageJob, UsageMonth
from scheduling.usage.services.fleet import prune_fleet
from scheduling.usage.services.usage import sum_all_usage
from tenants.audit import Actor, record
from tenants.services import prune_audit

BATCH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention by kind; None means forever.

    Attributes:
        round_files: round snapshots, in addition to the limit in bytes.
        round_bytes: size of all snapshots together.
        rounds: round rows.
        events: events of jobs that have ended.
        jobs: jobs that have ended, with their dependent rows.
        usage_jobs: daily use of each job, in closed months; sums by person remain.
        shared_minutes: history of shared devices by minute, which has at most one day per device.
        fleet: history of the fleet in its longest spans; shorter spans have fixed ages.
        archives: uploaded archives, from the end of the last job that used them on.
        audit: the audit log.
    """

    round_files: timedelta | None = timedelta(days=14)
    round_bytes: int = 2 << 30
    rounds: timedelta | None = timedelta(days=90)
    events: timedelta | None = timedelta(days=90)
    jobs: timedelta | None = timedelta(days=365)
    usage_jobs: timedelta | None = timedelta(days=730)
    shared_minutes: timedelta | None = timedelta(days=2)
    fleet: timedelta | None = timedelta(days=400)
    archives: timedelta | None = timedelta(days=30)
    audit: timedelta | None = timedelta(days=730)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Numbers of pruned rows and files."""

    round_files: int = 0
    rounds: int = 0
    events: int = 0
    jobs: int = 0
    usage_jobs: int = 0
    shared_minutes: int = 0
    fleet: int = 0
    archives: int = 0
    audit: int = 0


def prune(*, retention: Retention, storage: FileStorage, now: datetime, actor: Actor) -> Pruned:
    """Prune rows and files older than ``retention``, but nothing of live jobs.

    Args:
        retention: retention by kind.
        storage: has the files of rounds.
        now: current time.
        actor: the requester, for the audit.
    """
    # Deleting a job deletes its leases.
    sum_all_usage(now=now)
    pruned = Pruned(
        round_files=_round_files(retention, storage, now),
        rounds=_rounds(retention.rounds, now),
        events=_events(retention.events, now),
        jobs=_jobs(retention.jobs, now),
        usage_jobs=_usage_jobs(retention.usage_jobs, now),
        shared_minutes=_shared_minutes(retention.shared_minutes, now),
        fleet=prune_fleet(age=retention.fleet, now=now),
        archives=_archives(retention.archives, storage, now),
        audit=_audit(retention.audit, now, actor),
    )
    if pruned != Pruned():
        record(
            actor=actor,
            action="history.prune",
            object_type="history",
            after=asdict(pruned),
        )
    return pruned


def _round_files(retention: Retention, storage: FileStorage, now: datetime) -> int:
    age = retention.round_files
    oldest = now - age if age is not None else datetime.min.replace(tzinfo=now.tzinfo)
    return prune_rounds(storage=storage, older_than=oldest, keep_bytes=retention.round_bytes)


def _rounds(age: timedelta | None, now: datetime) -> int:
    """Delete rows of old rounds without a file, except the newest: its number fences the next."""
    if age is None:
        return 0
    newest = Round.objects.order_by("-number").values_list("number", flat=True).first() or 0
    old = Round.objects.filter(committed_at__lt=now - age, snapshot_path="", number__lt=newest)
    return _delete(lambda: old)


def _events(age: timedelta | None, now: datetime) -> int:
    if age is None:
        return 0
    return _delete(lambda: JobEvent.objects.filter(job__finished_at__lt=now - age))


def _jobs(age: timedelta | None, now: datetime) -> int:
    """Delete ended jobs with their dependent rows, unless a queued job depends on them."""
    if age is None:
        return 0
    awaited = JobDependency.objects.filter(after=OuterRef("pk"), job__state=JobState.QUEUED)
    return _delete(
        lambda: Job.objects.unscoped().filter(
            ~Exists(awaited), state__in=TERMINAL, finished_at__lt=now - age
        )
    )


def _usage_jobs(age: timedelta | None, now: datetime) -> int:
    """Delete rows by job of closed months; those of open months are still rewritten."""
    if age is None:
        return 0
    oldest = (now - age).date().replace(day=1)
    gone = 0
    for month in UsageMonth.objects.filter(month__lt=oldest).values_list("month", flat=True):
        end = (month + timedelta(days=32)).replace(day=1)
        rows = UsageJob.objects.unscoped().filter(day__gte=month, day__lt=end)
        gone += _delete(rows.all)
    return gone


def _shared_minutes(age: timedelta | None, now: datetime) -> int:
    if age is None:
        return 0
    return _delete(lambda: SharedMinute.objects.filter(minute__lt=now - age))


def _archives(age: timedelta | None, storage: FileStorage, now: datetime) -> int:
    if age is None:
        return 0
    return prune_archives(storage=storage, older_than=now - age, now=now)


def _audit(age: timedelta | None, now: datetime, actor: Actor) -> int:
    return 0 if age is None else prune_audit(actor=actor, before=now - age)


def _delete(rows: Callable[[], Any]) -> int:
    """Delete in batches of one short transaction each; returns the number of rows themselves."""
    gone = 0
    while True:
        with transaction.atomic():
            found = rows()
            ids = list(found.order_by("pk").values_list("pk", flat=True)[:BATCH])
            if ids:
                found.model._base_manager.filter(pk__in=ids).delete()
        gone += len(ids)
        if len(ids) < BATCH:
            return gone
