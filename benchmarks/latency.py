"""Latency from submit to running, and throughput of a burst, on three SSH nodes of 8 devices.

Run by hand: ``python -m benchmarks.latency``; ``--isolation none`` limits the level of the nodes.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.entries import entry
from benchmarks.stage import Stage, stage
from tessera.isolation import PLAIN_LEVELS

PERIOD_SECONDS = 0.25
LOOK_SECONDS = 0.004
PATIENCE_SECONDS = 120.0


def measure(
    *, jobs: int = 80, burst: int = 300, isolation: str = "", stage_of: Stage | None = None
) -> list[dict[str, Any]]:
    """Run both benchmarks in one installation; return entries as in ``results/latest.json``."""
    if stage_of is not None:
        return _measure(stage_of, jobs, burst)
    with stage(isolation=isolation) as found:
        return _measure(found, jobs, burst)


def _measure(found: Stage, jobs: int, burst: int) -> list[dict[str, Any]]:
    _run_burst("true", 3)  # warms the workers up
    waits = submit_to_running(jobs)
    before = _processor_seconds(found)
    rate, seconds = _run_burst("true", burst)
    spent = {name: used - before[name] for name, used in _processor_seconds(found).items()}
    context = f"{jobs} jobs of 1 s, one every 250 ms, three SSH nodes, SQLite"
    entries = [
        entry("submit_to_running_p50", statistics.median(waits), "s", "lower", context),
        entry("submit_to_running_p99", _quantile(waits, 0.99), "s", "lower", context),
        entry(
            "burst_jobs_per_second",
            rate,
            "1/s",
            "higher",
            f"{burst} jobs running true on 24 devices, {seconds:.1f} s",
        ),
    ]
    spent["all"] = sum(spent.values())
    entries.extend(
        entry(f"cpu_per_job_{name}", 1000.0 * used / burst, "ms", "lower", "of the burst")
        for name, used in spent.items()
    )
    entries.extend(
        entry(f"memory_{name}", found.memory_mib(name), "MiB", "lower", "after the burst")
        for name in found.pids
    )
    return entries


def _processor_seconds(found: Stage) -> dict[str, float]:
    """Processor time by process so far; ``demo-nodes`` includes all processes on the nodes."""
    return {name: found.cpu_seconds(name) for name in found.pids} | {
        "submitter": time.process_time()
    }


def submit_to_running(jobs: int) -> list[float]:
    """Return the seconds from the submit until a poll returns the job as running."""
    submitted: dict[int, float] = {}
    seen: dict[int, float] = {}
    done = threading.Event()

    def look() -> None:
        from scheduling.jobs.models import Job

        while not done.is_set():
            open_ids = [job_id for job_id in list(submitted) if job_id not in seen]
            started = Job.objects.unscoped().filter(pk__in=open_ids, started_at__isnull=False)
            for job_id in started.values_list("id", flat=True):
                seen[job_id] = time.perf_counter()
            time.sleep(LOOK_SECONDS)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    begun = time.perf_counter()
    for number in range(jobs):
        time.sleep(max(0.0, begun + number * PERIOD_SECONDS - time.perf_counter()))
        asked = time.perf_counter()
        submitted[_submit("sleep 1")] = asked
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(seen) < jobs and time.monotonic() < deadline:
        time.sleep(0.02)
    done.set()
    watcher.join()
    if len(seen) < jobs:
        raise TimeoutError(f"only {len(seen)} of {jobs} jobs were seen running")
    return [seen[job_id] - submitted[job_id] for job_id in submitted]


def _run_burst(command: str, count: int) -> tuple[float, float]:
    """Submit all at once, wait for all; returns jobs finished per second, and the seconds."""
    from scheduling.core.lifecycle import TERMINAL
    from scheduling.jobs.models import Job

    begun = time.perf_counter()
    ids = _submit_many(command, count)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        over = Job.objects.unscoped().filter(pk__in=ids, state__in=TERMINAL).count()
        if over == count:
            break
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {over} of {count} jobs have ended")
        time.sleep(0.05)
    seconds = time.perf_counter() - begun
    failed = Job.objects.unscoped().filter(pk__in=ids).exclude(state="succeeded").count()
    if failed:
        raise RuntimeError(f"{failed} jobs did not succeed")
    return count / seconds, seconds


def _document(command: str) -> dict[str, Any]:
    worker = {"instances": 1, "devices": 1, "command": command}
    return {"name": "bench", "virtual_cluster": "vision-a", "roles": {"worker": worker}}


def _submit(command: str) -> int:
    return _submit_many(command, 1)[0]


def _submit_many(command: str, count: int) -> list[int]:
    from django.utils import timezone

    from scheduling.jobs.queries.submit_context import read_submit_context
    from scheduling.jobs.services.submission import Submission, submit_jobs
    from tests.factories.tenants import make_viewer

    viewer = make_viewer("alice")
    rows = submit_jobs(
        submissions=[Submission(document=_document(command))] * count,
        viewer=viewer,
        submit_context=read_submit_context(viewer=viewer, images_ignored=False),
        now=timezone.now(),
    )
    return [row.pk for row in rows]


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=80)
    parser.add_argument("--burst", type=int, default=300)
    parser.add_argument("--isolation", default="", choices=("", *PLAIN_LEVELS))
    options = parser.parse_args()
    print(json.dumps(measure(**vars(options)), indent=2))


if __name__ == "__main__":
    main()
