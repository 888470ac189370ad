"""What all processes share is taken away for a while: the database, the broker, the disk."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
import redis

from tests.conftest import PROJECT_ROOT
from tests.faults.conftest import MakeScene
from tests.faults.disks import full, small_disk
from tests.faults.instants import wait_for_instant
from tests.faults.promises import check_promises, lost_after_start, wait_for_ends
from tests.faults.workload import Crowd, Drawing, new_ledger
from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal, whole_portal

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

LOCKED_SECONDS = 10.0
TAKEN_OVER_SECONDS = 60.0


def test_a_database_that_is_locked_for_ten_seconds_costs_nothing_but_time(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(1)
    crowd, drawing, ledger = make_scene(rng, "locked", longest=15)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        for _ in range(2):
            wait_for_instant(rng, 1, 4)
            with closing(sqlite3.connect(portal.data / "db.sqlite3", timeout=60)) as database:
                database.isolation_level = None
                database.execute("BEGIN IMMEDIATE")
                wait_for_instant(rng, LOCKED_SECONDS, LOCKED_SECONDS)
                database.execute("ROLLBACK")
    accepted = crowd.wait()

    assert check_promises(portal, accepted, ledger).jobs > 20


def test_a_broker_that_forgets_everything_again_and_again_is_not_missed(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(2)
    crowd, drawing, ledger = make_scene(rng, "flushed", longest=15)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing), redis.Redis.from_url(portal.redis_url) as broker:
        for _ in range(30):
            wait_for_instant(rng, 0, 1)
            broker.flushall()
    accepted = crowd.wait()

    assert check_promises(portal, accepted, ledger).jobs > 20


def test_two_round_workers_never_give_one_device_away_twice(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(3)
    crowd, drawing, ledger = make_scene(rng, "two-rounds", longest=15)

    with one_more_worker(portal, "rounds", "prefork"), many_rounds(portal):
        crowd.want(drawing.twenty())
        with crowd.trickle(drawing, every=0.5):
            wait_for_instant(rng, 15, 15)
        accepted = crowd.wait()
        wait_for_ends(portal)

    assert check_promises(portal, accepted, ledger).jobs > 20


def test_a_node_service_that_slept_beyond_its_lease_finds_its_nodes_taken_and_does_no_harm(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(4)
    crowd, drawing, ledger = make_scene(rng, "two-services", longest=15)

    with one_more_worker(portal, "nodes", "threads") as other:
        wait_until(lambda: _owners(portal).get(other.pid), TAKEN_OVER_SECONDS, "a second service")
        crowd.want(drawing.twenty())
        with crowd.trickle(drawing):
            wait_for_instant(rng, 3, 6)
            sleeper = _stop_between_writes(portal, "worker-nodes")
            before = _epochs(portal)
            wait_until(
                lambda: set(_owners(portal)) == {other.pid}, TAKEN_OVER_SECONDS, "a take-over"
            )
            assert _epochs(portal) != before
            wait_for_instant(rng, 0, 3)
            os.kill(sleeper, signal.SIGCONT)
            wait_until(
                lambda: set(_owners(portal)) == {other.pid, portal.children().get("worker-nodes")},
                TAKEN_OVER_SECONDS,
                "an equal share",
            )
        accepted = crowd.wait()
        wait_for_ends(portal)

    assert check_promises(portal, accepted, ledger).jobs > 20


SMALL = {
    "everything": ("", frozenset({"node"})),
    "the control plane": ("", frozenset[str]()),
    "one node": ("var/demo/demo-2/home", frozenset({"node"})),
}
"""What is on a small disk: its folder, and which failures it may cause."""


@pytest.mark.parametrize("what", SMALL)
def test_a_full_disk_loses_no_accepted_job(what: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    place, excused = SMALL[what]
    disk = tmp_path / "disk" / place
    with ExitStack() as mounts:
        mounts.enter_context(small_disk(disk))
        if what == "the control plane":
            mounts.enter_context(small_disk(disk / "var" / "demo"))
        portal = mounts.enter_context(whole_portal(tmp_path / "disk"))
        shown = tmp_path / "shown"
        shown.mkdir()
        portal.show_to_jobs(shown)
        crowd, ledger = Crowd(portal), new_ledger(shown / "full.ledger")
        drawing = Drawing(rng, ledger, "full", longest=30)
        portal.stop_examples()
        crowd.want(drawing.twenty())
        with crowd.trickle(drawing):
            wait_for_instant(rng, 6, 8)
            with full(disk):
                wait_for_instant(rng, 20, 20)
        accepted = crowd.wait()

        portal.wait_until_ready()
        assert check_promises(portal, accepted, ledger, excused=excused).jobs >= 20
        assert lost_after_start(portal, ledger) == []
        print(*portal.notes, sep="\n")


@contextmanager
def one_more_worker(
    portal: WholePortal, queue: str, pool: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """A second worker of a queue, beside the one that the supervisor looks after."""
    log = portal.data.with_name(f"second-{queue}.log")
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "portal.celery", "worker", "--queues", queue,
             "--without-gossip", "--without-mingle", "--loglevel", "INFO", "--hostname",
             f"{queue}-2@%h", "--pool", pool, "--concurrency", "1"],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=PROJECT_ROOT,
            env=portal.variables(), start_new_session=True,
        )  # fmt: skip
    try:
        wait_until(lambda: " ready." in log.read_text(), 120, "a second worker")
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


MANY_ROUNDS = """
import time
from portal.celery import app
while True:
    app.send_task("scheduling.tasks.run_round", kwargs={"cause": "again"}, expires=2)
    time.sleep(0.05)
"""


@contextmanager
def many_rounds(portal: WholePortal) -> Iterator[None]:
    """Many more rounds in the queue than there are reasons for."""
    command = [sys.executable, "-c", MANY_ROUNDS]
    process = subprocess.Popen(command, cwd=PROJECT_ROOT, env=portal.variables())
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _stop_between_writes(portal: WholePortal, name: str) -> int:
    """Stop a child while it writes nothing; returns its process id.

    Whoever stands still in the middle of a write to an SQLite file keeps it from all others, and
    then nobody can take anything over.
    """
    while True:
        pid = portal.send(name, signal.SIGSTOP)
        with closing(sqlite3.connect(portal.data / "db.sqlite3", timeout=5)) as database:
            database.isolation_level = None
            try:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                continue
        return pid


def _owners(portal: WholePortal) -> dict[int, int]:
    """How many nodes each node service carries, by its process id."""
    found: dict[int, int] = {}
    for row in portal.rows("SELECT owner FROM workers_nodelease"):
        pid = int(row["owner"].rsplit(":", 2)[1]) if row["owner"] else 0
        found[pid] = found.get(pid, 0) + 1
    return found


def _epochs(portal: WholePortal) -> list[int]:
    return [row["epoch"] for row in portal.rows("SELECT epoch FROM workers_nodelease ORDER BY id")]
