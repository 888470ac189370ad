"""A child that hangs within a write to SQLite is found by its lock, ended and started again."""

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from portal.supervisor.blocking import BlockWatch, lock_holders
from portal.supervisor.children import Child
from portal.supervisor.silence import SilenceWatch
from portal.supervisor.supervisor import Supervisor
from portal.supervisor.up import restart_hanging
from tests.support.waiting import wait_until

MakeChild = Callable[..., Child]
HANG_ONCE = """
import os, pathlib, signal, sqlite3, sys, time
database, first = sys.argv[1:]
if not pathlib.Path(first).exists():
    pathlib.Path(first).touch()
    line = sqlite3.connect(database, isolation_level=None)
    line.execute("BEGIN IMMEDIATE")
    line.execute("INSERT INTO written VALUES (1)")
    if first.endswith("stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
"""
SLEEP = "import time; time.sleep(60)"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's locks")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "db.sqlite3"
    with closing(sqlite3.connect(path)) as line:
        line.execute("PRAGMA journal_mode=WAL")
        line.execute("CREATE TABLE written (number)")
    return path


def write(database: Path) -> dict[int, datetime]:
    """What the supervisor does to read heartbeats: it writes first."""
    with closing(sqlite3.connect(database, timeout=0.05, isolation_level=None)) as line:
        line.execute("INSERT INTO written VALUES (2)")
    return {}


@pytest.mark.parametrize("how", ["stopped", "asleep"])
def test_a_child_that_hangs_within_a_write_is_started_again_and_others_write(
    how: str,
    database: Path,
    tmp_path: Path,
    make_child: MakeChild,
    supervisor: tuple[Supervisor, list[str]],
) -> None:
    made, said = supervisor
    usual = make_child(SLEEP, name="bystander").program
    bystander = made.add(usual)
    command = (*usual.command[:-1], HANG_ONCE, str(database), str(tmp_path / how))
    hanging = made.add(replace(usual, name="hanging", command=command))
    first = hanging.pid
    wait_until(lambda: lock_holders(database) == {first})
    blocks = BlockWatch(lambda: lock_holders(database), seconds=0.5)
    watch = SilenceWatch(lambda: write(database), blocks=blocks, every=0.05)
    watch.start()

    def is_back() -> bool:
        made.look()
        restart_hanging(made, watch, blocks)
        return hanging.pid not in {None, first}

    try:
        wait_until(is_back)
    finally:
        watch.stop()

    assert said[0] == "hanging has blocked writes to the database for 0.5 s; starting it again"
    assert bystander.failures == 0
    write(database)
    with closing(sqlite3.connect(database)) as line:
        assert set(line.execute("SELECT number FROM written")) == {(2,)}, "half a transaction"


def test_who_lets_go_in_time_is_left_alone(make_child: MakeChild) -> None:
    now = [0.0]
    child = make_child(SLEEP)
    child.start()
    assert child.pid is not None
    mine, other = {child.pid}, {child.pid + 1}
    holders = mine
    watch = BlockWatch(lambda: holders, seconds=90, clock=lambda: now[0])

    def pass_time(seconds: float, *, could_write: bool) -> set[int]:
        watch.note(could_write=could_write)
        now[0] += seconds
        watch.note(could_write=could_write)
        return watch.blocking([child])

    assert pass_time(89, could_write=False) == set()
    assert pass_time(3, could_write=True) == set()
    assert pass_time(89, could_write=False) == set()
    holders = other
    assert pass_time(89, could_write=False) == set()
    holders = mine
    assert pass_time(91, could_write=False) == mine


def test_a_process_that_reads_holds_no_lock_of_writers(database: Path) -> None:
    with closing(sqlite3.connect(database)) as line:
        line.execute("SELECT * FROM written").fetchall()

        assert lock_holders(database) == set()
    assert lock_holders(database.with_name("none")) == set()
