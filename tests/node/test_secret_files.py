"""Secrets of a run are in memory while it needs them, and are removed afterwards."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from session import Session, make_spec, wait_until

from tessera import protocol
from tessera.node import directories, runs, secret_files, system
from tessera.protocol import RunSpec

SECRET = "hunter2-of-this-test"
READ = 'cat "$TESSERA_JOB_SECRETS_DIR/TOKEN"; echo; while [ ! -e end ]; do sleep 0.01; done'


def in_memory(session: Session, spec: RunSpec) -> Path:
    """Where a run's secrets are expected."""
    store = runs.Store(str(session.home / protocol.ROOT_DIR))
    return Path(store.run(spec.run_id).secrets_in_memory())


def on_disk(home: Path) -> list[Path]:
    """Regular files below the home that hold the secret."""
    return [
        path
        for path in home.rglob("*")
        if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes()
    ]


needs_memory = pytest.mark.skipif(
    not secret_files._is_memory(directories.SECRETS_TOP), reason="no file system in memory here"
)


@needs_memory
def test_a_secret_is_read_from_memory_and_never_on_disk(session: Session) -> None:
    spec = make_spec(READ)
    session.prepare(spec, TOKEN=SECRET)
    place = in_memory(session, spec)
    assert (place / "TOKEN").read_text() == SECRET
    assert place.stat().st_mode & 0o777 == 0o700
    assert (place / "TOKEN").stat().st_mode & 0o777 == 0o600
    assert on_disk(session.home) == []

    session.go(spec)
    wait_until(lambda: SECRET in session.log(spec), "the secret in the job's own log")
    (session.directory(spec) / protocol.WORK_DIR / "end").touch()
    session.exit_of(spec)

    assert not place.exists()
    assert not os.path.lexists(session.directory(spec) / protocol.SECRETS_DIR)


@needs_memory
@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_a_secret_is_gone_after_a_cancel_and_after_a_crash(session: Session, how: str) -> None:
    spec = make_spec(READ)
    session.prepare(spec, TOKEN=SECRET)
    place = in_memory(session, spec)
    assert place.exists()

    if how == "cancel":
        session.ask(protocol.CANCEL, run_id=spec.run_id)
    else:
        started = session.go(spec)
        assert started.runner_pid
        os.kill(started.runner_pid, signal.SIGKILL)
        session.exit_of(spec)

    assert not place.exists()


@needs_memory
def test_secrets_of_runs_that_are_gone_are_swept_by_the_next_session(session: Session) -> None:
    kept, gone = make_spec(READ), make_spec(READ)
    for spec in (kept, gone):
        session.prepare(spec, TOKEN=SECRET)
    session.directory(gone).rename(session.home / "removed")

    session.ask(protocol.HELLO, protocol=protocol.PROTOCOL_VERSION)

    wait_until(lambda: not in_memory(session, gone).exists(), "a sweep in the background")
    assert in_memory(session, kept).exists()


@needs_memory
def test_a_run_whose_secrets_were_removed_does_not_start_without_them(session: Session) -> None:
    spec = make_spec("echo started")
    session.prepare(spec, TOKEN=SECRET)
    shutil.rmtree(in_memory(session, spec))

    session.go(spec)
    status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("start-failed", "node")
    assert "secrets" in status.exit.message
    assert session.log(spec) == ""


@needs_memory
def test_if_another_account_has_the_name_in_memory_secrets_are_in_the_run_directory(
    tmp_path: Path,
) -> None:
    store = runs.Store(str(tmp_path / "root"))
    store.create()
    taken, free = store.run(make_spec().run_id), store.run(make_spec().run_id)
    for run in (taken, free):
        Path(run.path).mkdir()
    above = Path(free.secrets_in_memory()).parent
    above.parent.mkdir(mode=0o700, exist_ok=True)
    above.symlink_to(tmp_path)

    secret_files.write(taken, {"TOKEN": SECRET})
    above.unlink()
    secret_files.write(free, {"TOKEN": SECRET})

    assert not Path(taken.file(protocol.SECRETS_DIR)).is_symlink()
    assert system.read_file(taken.file(protocol.SECRETS_DIR) + "/TOKEN") == SECRET.encode()
    assert os.path.realpath(free.file(protocol.SECRETS_DIR)).startswith(str(above))
    free.remove_secrets()
    taken.remove_secrets()
    assert on_disk(tmp_path) == []


@needs_memory
@pytest.mark.parametrize("how", ["link", "open"])
def test_a_directory_in_memory_that_is_not_private_is_left_alone(tmp_path: Path, how: str) -> None:
    store = runs.Store(str(tmp_path / "root"))
    store.create()
    place = Path(store.secrets_in_memory())
    place.parent.mkdir(mode=0o700, exist_ok=True)
    victim = tmp_path / "victim"
    victim.mkdir()
    if how == "link":
        place.symlink_to(victim)
    else:
        place.mkdir()
        place.chmod(0o777)
    (place / "of-somebody").mkdir()

    try:
        secret_files.sweep(store)

        assert (place / "of-somebody").is_dir()
        assert not secret_files._made(str(place / "run"))
    finally:
        (place / "of-somebody").rmdir()
        place.unlink() if how == "link" else place.rmdir()
