"""Random faults by a seed; then ledger, rows, logs, events and process table are compared.

    pytest -m redis tests/faults/test_nemesis.py                                    # 8 actions
    FAULTS_SEED=11 FAULTS_ACTIONS=200 pytest -m soak tests/faults/test_nemesis.py

The soak test needs root: the data directory and a node's home are small file systems, so that
they can be full. Actions and figures are printed as one line of JSON (``pytest -rP``), which
also goes to ``FAULTS_REPORT``.
"""

import random
import signal
import sqlite3
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.conftest import MakeScene
from tests.faults.disks import full, small_disk
from tests.faults.instants import wait_for_instant
from tests.faults.nemesis import (
    Act,
    Nemesis,
    NothingToHurtError,
    send,
)
from tests.faults.nemesis_runs import ACTIONS, SEED, check_promises_under_faults
from tests.faults.workload import make_scene_at
from tests.support.whole_portal import CHILDREN, WholePortal, whole_portal

pytestmark = pytest.mark.timeout(7200)


@pytest.mark.redis
def test_eight_random_faults_break_no_promise(portal: WholePortal, make_scene: MakeScene) -> None:
    rng = random.Random(SEED)
    scene = make_scene(rng, f"nemesis-{SEED}", longest=6)
    check_promises_under_faults(
        PortalNemesis(portal, rng, *scene[:2], longest=6), scene, 8, seed=SEED
    )


@pytest.mark.soak
def test_random_faults_break_no_promise(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    data, seen = tmp_path / "disk" / "var", tmp_path / "seen"
    seen.mkdir()
    with ExitStack() as stack:
        stack.enter_context(small_disk(data, 400))
        stack.enter_context(small_disk(data / "demo", 400))
        stack.enter_context(small_disk(data / "demo" / "demo-2" / "home", 96))
        portal = stack.enter_context(whole_portal(data.parent))
        portal.stop_examples()
        scene = make_scene_at(portal, seen, rng, f"nemesis-{SEED}", longest=12)
        try:
            check_promises_under_faults(
                PortalNemesis(portal, rng, *scene[:2]), scene, ACTIONS, seed=SEED
            )
        finally:
            print(*portal.notes, sep="\n")


@dataclass
class PortalNemesis(Nemesis):
    """Hurts the processes, the database and the disk of a portal on one machine."""

    def kinds(self) -> dict[str, tuple[int, Act]]:
        found = super().kinds() | {
            "kill_child": (30, self._kill_child),
            "kill_children": (5, self._kill_children),
            "freeze_child": (8, self._freeze_child),
            "kill_supervisor": (2, lambda: self._begin_again(self.portal.kill)),
            "crash": (2, lambda: self._begin_again(self.portal.crash)),
            "lock_database": (3, self._lock_database),
        }
        if self.portal.data.is_mount():
            found["fill_data_directory"] = (5, self._fill_data_directory)
        return found

    def _kill_child(self) -> None:
        send(self._child(), signal.SIGKILL)

    def _kill_children(self) -> None:
        children = self.portal.children()
        if len(children) < len(CHILDREN):
            raise NothingToHurtError
        for name in self.rng.sample(CHILDREN, self.rng.randint(2, len(CHILDREN))):
            self.portal.note(f"SIGKILL {name}")
            send(children[name], signal.SIGKILL)

    def _freeze_child(self) -> None:
        self.freeze(self._child())

    def _child(self) -> int:
        name = self.rng.choice(CHILDREN)
        pid = self.portal.children().get(name)
        if pid is None:
            raise NothingToHurtError  # it is being started again
        self.portal.note(f"child {name}, process {pid}")
        return pid

    def _begin_again(self, end: Act) -> None:
        self.end_faults()
        end()
        wait_for_instant(self.rng, 0.2, 3)
        self.portal.up()

    def _lock_database(self) -> None:
        path = self.portal.data / "db.sqlite3"
        database = sqlite3.connect(path, timeout=60, isolation_level=None)

        def end() -> None:
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            database.close()

        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:  # the disk is full, or a frozen process writes
            database.close()
            raise NothingToHurtError from None
        self.last("locked database", end, most=self.longest / 2)

    def _fill_data_directory(self) -> None:
        self.last_within("full data directory", full(self.portal.data))
