"""Metrics of runs: server time of a job's page with a million points, and ingestion of points.

Run by hand: ``python -m benchmarks.metrics [--points N] [--requests N]``; prints JSON entries, one
a line. Times are of whole answers in this process with SQLite. Ingestion parses lines
as the library sends them and stores them as the node service does, for ``--ranks`` ranks.
"""

import argparse
import itertools
import json
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from benchmarks.entries import entry, p95
from benchmarks.rounds import installation

NAMES: Final = ("loss", "val_loss", "accuracy", "lr", "grad_norm")
BATCH: Final = 20_000
PER_SECOND: Final = 5_000
EVERY_SECONDS: Final = 5
RUNS: Final = 8
"""Runs side by side, the most that the page compares."""
STEPS_A_LINE: Final = 10


def measure(points: int, requests: int, seconds: int, ranks: int) -> Iterator[dict[str, Any]]:
    """Yield all entries as soon as they are known."""
    with installation() as folder:
        from tests.factories.cluster import make_job, make_shared_cluster
        from tests.factories.metric_points import member_of_job

        make_shared_cluster()
        job = make_job("alice")
        for name in NAMES:
            _fill(member_of_job(job), name, points // len(NAMES))
        context = f"{points:,} points of {len(NAMES)} metrics, SQLite, {requests} requests"
        yield from _pages(job.pk, requests, context)
        size = sum(path.stat().st_size for path in folder.glob("db.sqlite3*"))
        yield entry("metrics_database", size / 2**20, "MiB", "lower", context)
        one = make_job("alice")
        _fill(member_of_job(one), "loss", points)
        context = f"{points:,} points of one metric, SQLite, {requests} requests"
        yield from _pages(one.pk, requests, context, suffix="_of_one")
        jobs = [one.pk, *_copies(one.pk, RUNS - 1, lambda: make_job("alice").pk)]
        context = f"{RUNS} runs with {points:,} points each, SQLite, {requests} requests"
        yield from _comparison(jobs, requests, context)
        yield from _ingestion(make_job("alice"), seconds, ranks)


def _fill(rank: Any, name: str, count: int) -> None:
    from django.utils import timezone

    from workers.services.metrics import add_points
    from workers.services.points import PointBatch, Sample, SeriesKey

    rng, now = random.Random(7), timezone.now()
    begun = now.timestamp() - count
    for first in range(0, count, BATCH):
        samples = [
            Sample(step, begun + step, step / 1000, math.exp(-step / count) + rng.gauss(0, 0.05))
            for step in range(first, min(count, first + BATCH))
        ]
        add_points(rank=rank, batch=PointBatch(series={SeriesKey(0, name): samples}), at=now)


def _pages(
    job_id: int, requests: int, context: str, *, suffix: str = ""
) -> Iterator[dict[str, Any]]:
    addresses = {
        "job_page": f"/jobs/{job_id}/",
        "figure": f"/jobs/{job_id}/metrics.json?name=loss,val_loss,accuracy",
        "zoomed_figure": f"/jobs/{job_id}/metrics.json?name=loss&since=5000&until=6000",
        "figure_by_time": f"/jobs/{job_id}/metrics.json?name=loss&x=time",
        "api": f"/api/v1/jobs/{job_id}/metrics/?name=loss,val_loss&points=2000",
    }
    yield from _times(addresses, requests, context, suffix=suffix)


def _comparison(jobs: Sequence[int], requests: int, context: str) -> Iterator[dict[str, Any]]:
    query = f"jobs={','.join(map(str, jobs))}"
    addresses = {
        "comparison": f"/jobs/compare/?{query}",
        "comparison_curves": f"/jobs/compare/curves.json?{query}&name=loss",
    }
    yield from _times(addresses, requests, context)


def _copies(job_id: int, count: int, make: Callable[[], int]) -> Iterator[int]:
    """Copy the points of a job to new jobs, which is faster than to add them again."""
    from workers.models import MetricBlock, MetricSeries

    for _ in range(count):
        copy = make()
        for row in MetricSeries.objects.filter(job_id=job_id):
            blocks = list(MetricBlock.objects.filter(series_id=row.pk))
            row.pk, row.job_id = None, copy
            row.save()
            for block in blocks:
                block.pk, block.series, block.job_id = None, row, copy
            MetricBlock.objects.bulk_create(blocks, batch_size=100)
        yield copy


def _times(
    addresses: Mapping[str, str], requests: int, context: str, *, suffix: str = ""
) -> Iterator[dict[str, Any]]:
    from django.test import Client

    from tenants.models import User

    client = Client()
    client.force_login(User.objects.get(username="alice"))
    for name, address in addresses.items():
        client.get(address)
        times, used = [], time.process_time()
        for _ in range(requests):
            begun = time.perf_counter()
            answer = client.get(address)
            times.append(1e3 * (time.perf_counter() - begun))
            assert answer.status_code == 200, address
        cpu = 1e3 * (time.process_time() - used) / requests
        prefix = f"metrics_{name}{suffix}"
        yield entry(f"{prefix}_median", statistics.median(times), "ms", "lower", context)
        yield entry(f"{prefix}_p95", p95(times), "ms", "lower", context)
        yield entry(f"{prefix}_cpu", cpu, "ms", "lower", f"{context}, mean processor time")


def _ingestion(job: Any, seconds: int, ranks: int) -> Iterator[dict[str, Any]]:
    """Parse and store ``seconds`` of reports at the target rate; yield the share of a core."""
    from django.utils import timezone

    from tests.factories.metric_points import member_of_job
    from workers.services.metrics import add_points
    from workers.services.reports import ReportTally

    members = [member_of_job(job, rank=rank) for rank in range(ranks)]
    tallies = [ReportTally() for _ in members]
    steps = PER_SECOND // (ranks * len(NAMES))
    now, count = timezone.now(), 0
    wall = cpu = 0.0
    for turn in range(0, seconds, EVERY_SECONDS):
        pieces = [
            b"".join(_lines(turn * steps, EVERY_SECONDS * steps, now.timestamp() + turn))
            for _ in members
        ]
        begun, used = time.perf_counter(), time.process_time()
        for member, tally, piece in zip(members, tallies, pieces, strict=True):
            tally.take(piece)
            progress = tally.sum_up()
            assert progress is not None
            add_points(rank=member, batch=progress.points, at=now + timedelta(seconds=turn))
            count += sum(map(len, progress.points.series.values()))
        wall += time.perf_counter() - begun
        cpu += time.process_time() - used
    context = (
        f"{count:,} points in {seconds} s of reports: {ranks} ranks, {len(NAMES)} metrics,"
        f" a sum every {EVERY_SECONDS} s, SQLite"
    )
    yield entry("metrics_ingested_per_second", count / wall, "1/s", "higher", context)
    share = 100 * cpu / seconds
    yield entry("metrics_ingestion_share_of_a_core", share, "%", "lower", context)


def _lines(first: int, count: int, at: float) -> Iterator[bytes]:
    for begun, step in itertools.pairwise(
        [*range(first, first + count, STEPS_A_LINE), first + count]
    ):
        points = [
            [one, round(at, 3), one / 1000, dict.fromkeys(NAMES, round(1 / (one + 1), 9))]
            for one in range(begun, step)
        ]
        line = {"time": at, "step": step - 1, "steps": step - begun, "points": points}
        yield json.dumps(line, separators=(",", ":")).encode() + b"\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TESSERA_DATA_DIR"] = folder
        os.environ["TESSERA_REDIS_URL"] = "memory://"
        os.environ["TESSERA_ALLOWED_HOSTS"] = "testserver,localhost"
        os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings"
        import django

        django.setup()
        from portal.memory import settle

        settle()
        for line in measure(given.points, given.requests, given.seconds, given.ranks):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
