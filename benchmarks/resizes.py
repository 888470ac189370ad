"""Cost of a resize on real nodes, from the notice until the job's processes run again.

A job saves, leaves, is queued, gets devices and starts on one of three SSH nodes, like after any
resize, preemption or move (ADR 12); its checkpoint is copied. The start of Python and its
libraries is not included.

Run by hand: ``python -m benchmarks.resizes [--times N]``; prints JSON entries.
"""

import argparse
import json
import shlex
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.entries import entry
from benchmarks.stage import stage

PATIENCE_SECONDS = 120.0
MEBIBYTES = 4
TRAINING = f"""
import time
from tessera import train
state = {{"weights": bytes({MEBIBYTES} << 20)}}
turns = train.Loop(1 << 30, save=lambda: state, load=state.update)
for step in turns:
    time.sleep(0.005)
    turns.report(samples=1)
"""


def measure(*, times: int = 20) -> list[dict[str, Any]]:
    """Send one job ``times`` notices; entries as in ``results/latest.json``."""
    with stage():
        job_id = _submit()
        for number in range(1, times + 1):
            _wait_for_attempt(job_id, number)
            _preempt(job_id)
        _wait_for_attempt(job_id, times + 1)
        costs, lost = _costs(job_id), _lost(job_id)
        _stop(job_id)
    context = f"{times} times, {MEBIBYTES} MiB saved, three SSH nodes; without Python's start"
    return [
        entry("resize_cost_p50", statistics.median(costs), "s", "lower", context),
        entry("resize_cost_worst", max(costs), "s", "lower", context),
        entry("resize_steps_lost_worst", max(lost), "steps", "lower", "by the receipts"),
    ]


def _submit() -> int:
    from django.utils import timezone

    from scheduling.jobs.queries.submit_context import read_submit_context
    from scheduling.jobs.services.submission import Submission, submit_jobs
    from tests.factories.tenants import make_viewer

    viewer = make_viewer("alice")
    command = f"exec python3 -c {shlex.quote(TRAINING)}"
    worker = {"instances": 1, "devices": 1, "command": command}
    document = {"name": "resizes", "virtual_cluster": "vision-a", "roles": {"worker": worker}}
    (row,) = submit_jobs(
        submissions=[Submission(document=document)],
        viewer=viewer,
        submit_context=read_submit_context(viewer=viewer, images_ignored=False),
        now=timezone.now(),
    )
    return row.pk


def _preempt(job_id: int) -> None:
    from django.utils import timezone

    from scheduling.runs.services.stopping import preempt_job

    if not preempt_job(job_id=job_id, for_job=0, rule="Another size", now=timezone.now()):
        raise RuntimeError("the job that is to leave does not run")


def _stop(job_id: int) -> None:
    """Stop the job, since it would outlive the stage and its nodes."""
    from django.utils import timezone

    from scheduling.jobs.models import Job
    from scheduling.runs.services.stopping import stop_job
    from tenants.viewers import Viewer

    job = Job.objects.unscoped().get(pk=job_id)
    stop_job(job=job, viewer=Viewer.system("benchmark"), now=timezone.now())
    _wait_until(lambda: Job.objects.unscoped().get(pk=job_id).is_over, "the job has not ended")


def _wait_for_attempt(job_id: int, number: int) -> None:
    """Wait until that attempt of the job has reported steps."""
    from scheduling.runs.models import AttemptProgress

    told = AttemptProgress.objects.filter(attempt__job=job_id, attempt__number=number, steps__gt=0)
    _wait_until(told.exists, f"attempt {number} has told of no step")


def _wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.05)


def _costs(job_id: int) -> list[float]:
    """Return the seconds from each notice until the next attempt runs."""
    from scheduling.runs.models import Attempt, Preemption

    began = dict(Attempt.objects.filter(job=job_id).values_list("number", "running_at"))
    asked = Preemption.objects.filter(job=job_id).values_list("attempt__number", "asked_at")
    return [(began[number + 1] - at).total_seconds() for number, at in asked]


def _lost(job_id: int) -> list[float]:
    from scheduling.runs.models import Preemption

    lost = Preemption.objects.filter(job=job_id).values_list("lost_steps", flat=True)
    return [float(steps) for steps in lost if steps is not None]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    print(json.dumps(measure(times=parser.parse_args().times), indent=2))


if __name__ == "__main__":
    main()
