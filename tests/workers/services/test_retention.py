"""What is forgotten, and what is not."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.runs.models import Member
from scheduling.storage.directory import DirectoryStorage
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from workers.models import GoodputSample, Heartbeat, LogStream, MetricBlock
from workers.services import heartbeats
from workers.services.dispatch import MemberRef, rank_of
from workers.services.goodput import add_progress
from workers.services.logs import keep_log, path_of
from workers.services.metrics import add_points
from workers.services.points import PointBatch, Sample, SeriesKey
from workers.services.reports import RankProgress
from workers.services.retention import WorkerRetention, prune

pytestmark = pytest.mark.django_db


@pytest.fixture
def rank(now: datetime, tmp_path: Path) -> MemberRef:
    """A rank with a log and a sample."""
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)
    make_job()
    run_round(now)
    rank = rank_of(Member.objects.select_related("attempt__job").get())
    DirectoryStorage(tmp_path).logs.write(
        path_of(rank), offset=0, data=b"words", cap_bytes=1 << 20
    )
    keep_log(rank, first=0, end=5, closed=True)
    progress = RankProgress(
        seconds=1.0, step=1, steps=1, samples=1.0, step_seconds=None, loss=None, reports_end=9
    )
    add_progress(rank=rank, progress=progress, at=now)
    return rank


def end(rank: MemberRef, at: datetime) -> None:
    Job.objects.unscoped().filter(pk=rank.job_id).update(state=JobState.SUCCEEDED, finished_at=at)


def test_a_job_that_has_not_ended_loses_nothing(
    rank: MemberRef, now: datetime, tmp_path: Path
) -> None:
    prune(
        retention=WorkerRetention(),
        storage=DirectoryStorage(tmp_path),
        now=now + timedelta(days=1000),
    )

    assert (tmp_path / "logs" / path_of(rank)).is_dir()
    assert GoodputSample.objects.exists()


def test_retention_counts_from_the_end_of_the_job(
    rank: MemberRef, now: datetime, tmp_path: Path
) -> None:
    end(rank, now + timedelta(days=100))

    kept = prune(
        retention=WorkerRetention(),
        storage=DirectoryStorage(tmp_path),
        now=now + timedelta(days=129),
    )
    gone = prune(
        retention=WorkerRetention(),
        storage=DirectoryStorage(tmp_path),
        now=now + timedelta(days=131),
    )

    assert (kept.logs, gone.logs) == (0, 1)
    assert not (tmp_path / "logs" / path_of(rank)).exists()
    assert LogStream.objects.get().pruned_at is not None
    assert GoodputSample.objects.exists()


def test_goodput_is_forgotten_later_than_the_log(
    rank: MemberRef, now: datetime, tmp_path: Path
) -> None:
    end(rank, now)

    gone = prune(
        retention=WorkerRetention(),
        storage=DirectoryStorage(tmp_path),
        now=now + timedelta(days=181),
    )

    assert gone.goodput == 1
    assert not GoodputSample.objects.exists()


def test_what_is_kept_for_ever_is_not_forgotten(
    rank: MemberRef, now: datetime, tmp_path: Path
) -> None:
    end(rank, now)
    for_ever = WorkerRetention(logs=None, goodput=None)

    gone = prune(
        retention=for_ever, storage=DirectoryStorage(tmp_path), now=now + timedelta(days=9999)
    )

    assert (gone.logs, gone.goodput) == (0, 0)


def test_folders_of_jobs_without_a_row_go(rank: MemberRef, now: datetime, tmp_path: Path) -> None:
    (tmp_path / "logs" / "987654" / "1").mkdir(parents=True)
    (tmp_path / "logs" / "not-a-job").mkdir()

    gone = prune(retention=WorkerRetention(), storage=DirectoryStorage(tmp_path), now=now)

    assert gone.folders == 1
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == [str(rank.job_id), "not-a-job"]


def test_silent_processes_are_forgotten(now: datetime, tmp_path: Path) -> None:
    heartbeats.beat(process="web@a:1", kind="web", now=now)
    heartbeats.beat(process="beat@a:2", kind="beat", now=now)
    heartbeats.beat(process="web@a:1", kind="web", now=now + timedelta(seconds=50))

    prune(
        retention=WorkerRetention(),
        storage=DirectoryStorage(tmp_path),
        now=now + timedelta(days=2),
    )

    assert not Heartbeat.objects.exists()


def test_metrics_go_with_the_goodput(rank: MemberRef, now: datetime, tmp_path: Path) -> None:
    batch = PointBatch(series={SeriesKey(0, "loss"): [Sample(1, 0.0, 0.0, 0.5)]})
    add_points(rank=rank, batch=batch, at=now)
    end(rank, now)

    kept = prune(
        retention=WorkerRetention(),
        storage=DirectoryStorage(tmp_path),
        now=now + timedelta(days=179),
    )
    gone = prune(
        retention=WorkerRetention(),
        storage=DirectoryStorage(tmp_path),
        now=now + timedelta(days=181),
    )

    assert (kept.metrics, gone.metrics) == (0, 1)
    assert not MetricBlock.objects.exists()
