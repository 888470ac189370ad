"""A training that has to leave while something fails: it goes on from its last checkpoint."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tessera.client import Client
from tests.conftest import PROJECT_ROOT
from tests.faults.training_job import EVERY
from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal

pytestmark = [pytest.mark.redis, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("training_job.py")
RUN_SECONDS = 180.0
RESIZING = """
import sys, django
django.setup()
from django.utils import timezone
from scheduling.core.lifecycle import PreemptionRule
from scheduling.runs.services.stopping import preempt_job
for line in sys.stdin:
    print(preempt_job(
        job_id=int(line), for_job=0, rule="Another size", cause=PreemptionRule.RESIZE,
        now=timezone.now(),
    ), flush=True)
"""


class Run(NamedTuple):
    """What one process has noted: steps from the first up to, without, the end."""

    run_id: str
    pid: str
    first: int
    end: int


def test_a_training_loses_nothing_that_was_saved_and_never_runs_twice_whatever_fails(
    portal: WholePortal, tmp_path: Path
) -> None:
    portal.show_to_jobs(tmp_path)
    portal.allow_checkpoints(tmp_path / "checkpoints")
    command = shlex.join([sys.executable, str(SCRIPT), str(tmp_path)])
    document = {
        "name": "training",
        "virtual_cluster": "vision-a",
        "checkpoint_dir": str(tmp_path / "checkpoints"),
        "grace_seconds": 60,
        "roles": {"worker": {"devices": 1, "command": f"exec {command}"}},
    }
    with portal.client("alice") as alice:
        job_id = alice.submit(document).id
        with resizing(portal) as resize:
            wait_for_run(tmp_path, 1)
            resize(job_id)
            portal.send("worker-nodes", signal.SIGKILL)
            wait_for_run(tmp_path, 2)
            resize(job_id)
            portal.crash()
            portal.up()
            wait_for_run(tmp_path, 3)
            (tmp_path / "hurt").touch()
            resize(job_id)
            wait_for_run(tmp_path, 4)
            resize(job_id)
            wait_for_run(tmp_path, 5)
        alice.stop(job_id)
        wait_until(lambda: alice.job(job_id).state == "stopped", RUN_SECONDS, "the end")
        first, killed, crashed, hurt, last = runs(tmp_path)
        lost = [0, 0, 0, hurt.end - hurt.first]
        wait_until(lambda: lost_steps(alice, job_id) == lost, RUN_SECONDS, f"a loss of {lost}")
        kinds = {one["kind"] for one in alice.pages(f"jobs/{job_id}/events/")}

    assert (first.first, killed.first, crashed.first) == (0, first.end, killed.end)
    before_the_newest = (crashed.end - 1) // EVERY * EVERY
    assert (hurt.first, last.first) == (before_the_newest, before_the_newest)
    assert {"checkpoint-broken", "checkpoint-failed"} <= kinds


def lost_steps(client: Client, job_id: int) -> list[int]:
    """What the receipts count as lost, the least first; -1 where they do not know yet."""
    found = [one["lost_steps"] for one in client.pages(f"jobs/{job_id}/preemptions/")]
    return sorted(-1 if steps is None else steps for steps in found)


@contextmanager
def resizing(portal: WholePortal) -> Iterator[Callable[[int], None]]:
    """Orders jobs to leave and come back, from a process that outlives the portal's."""
    process = subprocess.Popen(
        [sys.executable, "-c", RESIZING], cwd=PROJECT_ROOT, env=portal.variables(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    orders, answers = process.stdin, process.stdout

    def resize(job_id: int) -> None:
        orders.write(f"{job_id}\n")
        orders.flush()
        assert answers.readline() == "True\n"

    try:
        yield resize
    finally:
        process.communicate(timeout=60)


def runs(place: Path) -> list[Run]:
    """Every run in the order in which they noted; one that notes between two others is wrong."""
    ledger = place / "ledger"
    lines = [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []
    found = []
    for (run_id, pid), noted in groupby(lines, key=lambda line: (line[0], line[1])):
        steps = [int(step) for _, _, step in noted]
        assert all(after == before + 1 for before, after in pairwise(steps))
        found.append(Run(run_id, pid, steps[0], steps[-1] + 1))
    assert len({run.run_id for run in found}) == len(found), "two ran at once"
    return found


def wait_for_run(place: Path, number: int) -> None:
    """Wait until that run has saved twice and is at work."""

    def is_at_work() -> bool:
        found = runs(place)
        assert len(found) <= number, found
        return len(found) == number and found[-1].end - found[-1].first > 2 * EVERY + 1

    wait_until(is_at_work, RUN_SECONDS, f"run {number}")
