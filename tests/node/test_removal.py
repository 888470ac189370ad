"""What jobs leave behind is removed: of any depth, with any permissions and names, in time."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from session import (
    ALICE,
    NAMESPACE_PLACES,
    SUDO,
    Session,
    declare_isolation,
    make_spec,
    node,
    wait_until,
)

from tessera import protocol
from tessera.isolation import NONE, USER
from tessera.node import checkpoints, secret_files
from tessera.node.removal import remove_tree
from tessera.node.runs import Store

DEPTH = 100_000
ENOUGH = 600.0
HOSTILE = """
import os
for name in (b"\\xff\\xfe", b"new\\nline", b"-rf", b" "):
    os.makedirs(os.path.join(b"top", name, b"inner"))
    open(os.path.join(b"top", name, b"inner", b"\\xe9"), "wb").close()
os.mkfifo("top/fifo")
os.symlink("/etc", "top/link")
for folder, _, files in os.walk(b"top", topdown=False):
    os.chmod(folder, 0)
os.chmod(".", 0)
"""


def make_deep(path: Path, depth: int) -> None:
    """Directories in each other, as one process can make them whatever the length of the path."""
    path.mkdir(parents=True, exist_ok=True)
    here = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(str(tmp_path / "node"))
    found.create()
    yield found
    # The recursion of pytest cannot remove what a failed test leaves.
    assert remove_tree(found.trash, ENOUGH)


@pytest.mark.timeout(400)  # a busy machine makes directories slowly
def test_a_hundred_thousand_nested_directories_leave_the_trash(store: Store) -> None:
    make_deep(Path(store.trash, "deep"), DEPTH)
    Path(store.trash, "other").mkdir()

    while not store.empty_trash(ENOUGH, share_seconds=0.05):
        pass

    assert not list(Path(store.trash).iterdir())


def test_a_removal_ends_in_time_and_the_next_one_continues(tmp_path: Path) -> None:
    top = tmp_path / "top"
    make_deep(top, 3000)
    for number in range(5000):
        (top / f"file-{number}").touch()

    calls = 1
    while not remove_tree(str(top), 0.01):
        calls += 1

    assert calls > 1
    assert not top.exists()


def test_no_time_removes_nothing_and_a_missing_tree_is_removed(tmp_path: Path) -> None:
    (tmp_path / "top" / "inner").mkdir(parents=True)

    assert not remove_tree(str(tmp_path / "top"), 0.0)
    assert (tmp_path / "top" / "inner").exists()
    assert remove_tree(str(tmp_path / "missing"), 0.0)


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "data").mkdir(parents=True)
    (tmp_path / "top" / "inner").mkdir(parents=True)
    (tmp_path / "top" / "inner" / "link").symlink_to(precious)
    (tmp_path / "link").symlink_to(precious)

    assert remove_tree(str(tmp_path / "top"), ENOUGH)
    assert remove_tree(str(tmp_path / "link"), ENOUGH)

    assert (precious / "data").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious"]


@pytest.mark.timeout(400)  # a busy machine makes directories slowly
def test_one_tree_does_not_delay_the_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        make_deep(Path(store.trash, name), 20_000)
    Path(store.trash, "d").mkdir()
    listed = os.listdir  # in an order of the file system
    monkeypatch.setattr("os.listdir", lambda path: sorted(listed(path)))

    assert not store.empty_trash(ENOUGH, share_seconds=0.05)

    assert not Path(store.trash, "d").exists()
    while not store.empty_trash(ENOUGH, share_seconds=0.05):
        pass


# -- a whole session -----------------------------------------------------------------------------


@pytest.fixture(params=[(USER, SUDO), *NAMESPACE_PLACES, (NONE, "ordinary")], ids="-".join)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Session]]:
    level, account = request.param
    with node(level, account) as session:
        yield level, session


def test_files_of_a_hostile_job_are_removed_by_the_runner_account(
    place: tuple[str, Session],
) -> None:
    level, session = place
    uid = ALICE if level == USER else None
    spec = make_spec("exec python3 hostile.py", isolation=level, uid=uid)
    session.prepare(spec)
    (session.directory(spec) / "work" / "hostile.py").write_text(HOSTILE)
    session.go(spec)
    status = session.exit_of(spec)
    assert status.exit is not None
    assert status.exit.code == 0, session.log(spec)

    session.ask("remove", run_id=spec.run_id)

    trash = session.home / protocol.ROOT_DIR / protocol.TRASH_DIR
    wait_until(lambda: not list(trash.iterdir()), "an empty trash")


def test_a_run_directory_without_rights_is_discarded(tmp_path: Path) -> None:
    with node(NONE, "ordinary") as session:
        spec = make_spec('chmod 000 "$TESSERA_JOB_RUN_DIR/work" "$TESSERA_JOB_RUN_DIR/log"')
        session.start(spec)
        session.exit_of(spec)

        assert session.ask("remove", run_id=spec.run_id)["removed"]

        trash = session.home / protocol.ROOT_DIR / protocol.TRASH_DIR
        wait_until(lambda: not list(trash.iterdir()), "an empty trash")


def test_old_checkpoints_of_any_depth_do_not_block_a_session(home: Path) -> None:
    declare_isolation(home, strongest="none")
    store = Store(str(home / protocol.ROOT_DIR))
    store.create()
    old = Path(protocol.checkpoint_dir(store.root, make_spec(job_id="1")))
    make_deep(old, 20_000)
    age = time.time() - checkpoints.KEPT_SECONDS - 60
    os.utime(old, (age, age))
    session = Session(home)

    begun = time.monotonic()
    session.ask("hello", protocol=protocol.PROTOCOL_VERSION)
    took = time.monotonic() - begun

    assert old.exists() or took < 5.0  # the removal itself comes later
    wait_until(lambda: not old.exists(), "the end of the checkpoints")
    spec = make_spec("echo answers")
    session.start(spec)
    assert session.exit_of(spec).exit
    wait_until(lambda: not list(Path(store.trash).iterdir()), "an empty trash", 300)
    session.close()


def test_secrets_of_any_depth_do_not_stop_a_sweep(store: Store) -> None:
    place = Path(store.secrets_in_memory())
    if not secret_files._is_memory("/dev/shm") or not secret_files._made(str(place / "old")):
        pytest.skip("no file system in memory here")
    make_deep(place / "old", 2000)

    secret_files.sweep(store)

    assert not (place / "old").exists()
    remove_tree(str(place), ENOUGH)
