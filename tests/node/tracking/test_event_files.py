"""Event files are found below a run, read once while they grow, and bounded."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from event_writer import TENSORBOARD, append, framed, scalar
from session import ALICE, ORDINARY, PLACES, ROOT, make_spec, node

from tessera import protocol
from tessera.isolation import NONE, USER
from tessera.node import runs
from tessera.node.tracking import event_files
from tessera.node.tracking.event_files import EventFiles

NAME = "events.out.tfevents.1700000000.host.1.0"


class Place:
    """The event files of one run, and the stored points."""

    def __init__(self, root: Path) -> None:
        self.store = runs.Store(str(root))
        self.store.create()
        self.spec = make_spec()
        self.run = self.store.run(self.spec.run_id)
        Path(self.run.path).mkdir()
        self.work = Path(self.run.file(protocol.WORK_DIR))
        self.work.mkdir()
        Path(self.run.file(protocol.GO_FILE)).touch()
        past = time.time() - 100
        os.utime(self.run.file(protocol.GO_FILE), (past, past))
        self.lines: list[bytes] = []
        self.is_full = False
        self.now = 0.0
        self.files = self.opened()

    def opened(self, *, resumed: bool = False, **env: str) -> EventFiles:
        spec = make_spec(env=env)
        return EventFiles(self.run, spec, self._store, lambda: self.now, resumed=resumed)

    def _store(self, line: bytes) -> bool:
        if not self.is_full:
            self.lines.append(line)
        return not self.is_full

    def look(self, times: int = 10) -> None:
        for _ in range(times):
            self.now += event_files.WALK_SECONDS
            self.files.look()

    def values(self) -> list[tuple[str, int, Any]]:
        points = [point for line in self.lines for point in json.loads(line)["points"]]
        return [
            (name, step, value) for step, _, _, named in points for name, value in named.items()
        ]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.files.finish()


def test_a_growing_file_is_read_once(place: Place) -> None:
    file = place.work / "runs" / "first" / NAME
    append(file, scalar("loss", 2.0, 0))
    place.look()
    whole = scalar("loss", 1.0, 1)
    append(file, whole[:9])
    place.look()
    append(file, whole[9:], scalar("loss", float("nan"), 2))
    place.look()

    assert place.values() == [("loss", 0, 2.0), ("loss", 1, 1.0), ("loss", 2, "nan")]


def test_files_of_the_source_are_not_part_of_the_run(place: Place) -> None:
    file = place.work / "old" / NAME
    append(file, scalar("loss", 9.0, 900))
    os.utime(file, (1e9, 1e9))
    place.look()
    append(file, scalar("loss", 8.0, 901))
    place.look()

    assert place.values() == [("loss", 901, 8.0)]


def test_data_sets_and_later_directories_are_named(place: Place) -> None:
    for folder, value in (("logs/train", 1.0), ("logs/validation", 2.0)):
        append(place.work / folder / NAME, scalar("epoch_loss", value, 1))
    append(place.work / "run-a" / NAME, scalar("loss", 3.0, 1))
    place.look()
    append(place.work / "run-b" / NAME, scalar("loss", 4.0, 1))
    place.look()

    assert sorted(place.values()) == [
        ("loss", 1, 3.0),
        ("run-b/loss", 1, 4.0),
        ("train/epoch_loss", 1, 1.0),
        ("validation/epoch_loss", 1, 2.0),
    ]


def test_links_pipes_and_files_with_two_names_are_refused(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / NAME
    append(outside, scalar("secret", 1.0, 1))
    (place.work / "link").symlink_to(outside.parent)
    (place.work / NAME).symlink_to(outside)
    (place.work / "hard").mkdir()
    os.link(outside, place.work / "hard" / NAME)
    (place.work / "pipe").mkdir()
    os.mkfifo(place.work / "pipe" / NAME)
    place.look()

    assert place.values() == []


def test_a_broken_file_is_given_up_and_others_are_read(place: Place) -> None:
    append(place.work / "a" / NAME, b"\0" * 500)
    append(place.work / "b" / NAME, framed(b"\xff" * 20), scalar("x", 1.0, 1))
    place.look()

    assert [value for _, _, value in place.values()] == [1.0]


def test_names_and_files_are_bounded(place: Place) -> None:
    tags = [scalar(f"m{number}", 1.0, 1) for number in range(event_files.MOST_NAMES + 40)]
    append(place.work / NAME, *tags, scalar("m0", 2.0, 2))
    for number in range(event_files.MOST_FILES + 10):
        append(place.work / f"d{number:03}" / NAME, scalar("m0", 3.0, 1))
    place.look(100)

    names = {name for name, _, _ in place.values()}
    assert len(names) == event_files.MOST_NAMES
    assert sum(value == 3.0 for _, _, value in place.values()) < event_files.MOST_FILES


def test_a_look_reads_a_bounded_piece(place: Place) -> None:
    record = scalar("loss", 1.0, 1)
    count = 3 * event_files.PIECE_BYTES // len(record)
    append(place.work / NAME, record * count)

    place.look(1)

    assert 0 < len(place.values()) <= event_files.PIECE_BYTES // len(record)
    place.look(10)
    assert len(place.values()) == count


def test_odd_names_become_valid_ones(place: Place) -> None:
    append(place.work / NAME, scalar("loss\n<b>é", 1.0, 1), scalar("///", 1.0, 1))
    place.look()

    assert [name for name, _, _ in place.values()] == ["loss__b__"]


def test_a_full_disk_loses_nothing(place: Place) -> None:
    append(place.work / NAME, scalar("loss", 1.0, 1))
    place.is_full = True
    place.look()
    append(place.work / NAME, scalar("loss", 2.0, 2))
    place.is_full = False
    place.look()

    assert place.values() == [("loss", 1, 1.0), ("loss", 2, 2.0)]


def test_the_successor_of_a_killed_process_repeats_nothing(place: Place) -> None:
    append(place.work / "a" / NAME, scalar("loss", 1.0, 1))
    append(place.work / "b" / NAME, b"\0" * 100)
    place.look()
    append(place.work / "a" / NAME, scalar("loss", 2.0, 2))
    place.files.finish()
    place.lines.clear()
    place.files = place.opened(resumed=True)
    append(place.work / "a" / NAME, scalar("loss", 3.0, 3))
    place.look()

    assert [value for _, _, value in place.values()] == [3.0]


def test_the_end_reads_the_rest(place: Place) -> None:
    append(place.work / "late" / NAME, TENSORBOARD)
    place.files.finish()

    assert len(place.values()) == 3


def test_a_job_can_switch_the_files_off(place: Place) -> None:
    append(place.work / NAME, scalar("loss", 1.0, 1))
    place.files = place.opened(TESSERA_EVENT_FILES="0")
    place.look()
    place.files.finish()

    assert place.values() == []


WRITE = """
import os
os.makedirs("runs/a")
open("runs/a/events.out.tfevents.1.h", "wb").write(bytes.fromhex("%s"))
"""


@pytest.mark.parametrize(("level", "account"), [(NONE, ROOT), (NONE, ORDINARY), *PLACES])
def test_a_script_without_changes_reports_its_event_files(level: str, account: str) -> None:
    with node(level, account) as session:
        uid = ALICE if level == USER else None
        spec = make_spec(f"python3 - <<'END'{WRITE % TENSORBOARD.hex()}END", uid=uid)
        session.start(spec)
        status = session.exit_of(spec)
        content = session.bytes_of(spec, protocol.STREAM_REPORTS)

    assert status.reports_end == len(content)
    named = [point[3] for line in content.splitlines() for point in json.loads(line)["points"]]
    assert named == [{"acc": 0.875}, {"acc": 2.5}, {"n": -3.0}]
