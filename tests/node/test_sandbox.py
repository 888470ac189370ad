"""A sandbox ends whole, shows what is declared and nothing else, and never falls back."""

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from session import ALICE, BOB, ORDINARY, PLACES, ROOT, Session, make_spec, node, wait_until

from tessera import isolation
from tessera.isolation import NAMESPACE, USER, VisiblePath
from tessera.node import system
from tessera.protocol import ProtocolError, RunSpec

STAYING = (
    "setsid sh -c 'trap \"\" TERM; echo one; while :; do sleep 1; done' & "
    "env -i setsid sleep 1000 & while [ ! -e end ]; do sleep 0.02; done; exit 3"
)


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Session]]:
    level, account = request.param
    with node(level, account) as session:
        yield level, session


def spec_at(level: str, command: str, **changes: object) -> RunSpec:
    uid = ALICE if level == USER else None
    return make_spec(command, **{"isolation": level, "uid": uid, **changes})


def members_of(pid: int) -> list[int]:
    """The processes in the pid namespace of a process."""
    space = str(Path(f"/proc/{pid}/ns/pid").readlink())
    return [one.pid for one in system.processes() if namespace_of(one.pid) == space]


def namespace_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def started(level: str, session: Session) -> tuple[RunSpec, int, list[int]]:
    """A job with processes that would outlive it; its runner and all in its namespace."""
    spec = spec_at(level, STAYING)
    status = session.start(spec)
    assert status.pid
    assert status.runner_pid
    wait_until(lambda: "one" in session.log(spec), "its output")
    wait_until(lambda: len(members_of(status.pid)) >= 5, "all its processes")
    return spec, status.runner_pid, members_of(status.pid)


def test_the_end_of_the_first_process_is_the_end_of_all(place: tuple[str, Session]) -> None:
    level, session = place
    spec, _, members = started(level, session)

    (session.directory(spec) / "work" / "end").touch()
    status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.code) == ("exited", 3)
    assert [pid for pid in members if system.process(pid)] == []


def test_a_runner_that_is_killed_leaves_nothing(place: tuple[str, Session]) -> None:
    level, session = place
    spec, runner, members = started(level, session)

    os.kill(runner, signal.SIGKILL)
    status = session.exit_of(spec)

    assert status.exit is not None
    assert status.exit.cause == "runner-lost"
    wait_until(lambda: not [pid for pid in members if system.process(pid)], "the end of all", 10)


def test_signals_and_the_grace_period_are_those_without_a_sandbox(
    place: tuple[str, Session],
) -> None:
    level, session = place
    deaf = spec_at(level, "trap '' TERM; echo up; while :; do sleep 0.02; done")
    polite = spec_at(level, "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.02; done")
    for spec in (deaf, polite):
        session.start(spec)
        wait_until(lambda spec=spec: "up" in session.log(spec), "the job is up")
        session.ask("stop", run_id=spec.run_id, grace_seconds=0.5, reason="user")
    ends = [session.exit_of(spec).exit for spec in (deaf, polite)]
    crashed, _ = session.run("kill -SEGV $$", isolation=level, uid=spec.uid)

    assert [(end.cause, end.code, end.signal) for end in ends if end] == [
        ("stopped", None, signal.SIGKILL),
        ("stopped", 5, None),
    ]
    assert session.log(polite).endswith("bye\n")
    assert crashed.exit is not None
    assert crashed.exit.signal == signal.SIGSEGV


def test_a_run_is_refused_where_its_level_is_not_available() -> None:
    with node(NAMESPACE, ROOT if os.getuid() == 0 else ORDINARY) as session:
        for level in (USER, isolation.CONTAINER):
            with pytest.raises(ProtocolError) as refused:
                session.prepare(make_spec("true", isolation=level, uid=BOB))

            assert refused.value.code == "isolation-not-available"
            assert refused.value.failure == "node"
        assert session.runs() == []


def test_visible_paths_are_seen_as_declared(place: tuple[str, Session], tmp_path: Path) -> None:
    level, session = place
    shown = session.home / "shown"
    for name in ("data", "scratch", "hidden"):
        (shown / name).mkdir(parents=True)
        (shown / name).chmod(0o777)
        (shown / name / "file").write_text(name)
    paths = [
        VisiblePath(str(shown / "data")),
        VisiblePath(str(shown / "scratch"), writable=True),
        VisiblePath(str(shown / "missing")),
        VisiblePath(str(session.home)) if level == USER else VisiblePath("/srv"),
    ]
    look = f"cd {shown}; cat data/file scratch/file; touch data/x scratch/x; ls ../.tessera"
    status, log = session.run(
        look, isolation=level, uid=ALICE if level == USER else None, visible_paths=paths
    )

    assert log.startswith("datascratch")
    assert "touch: cannot touch 'data/x': Read-only file system" in log
    assert (shown / "scratch" / "x").exists()
    assert "visible-path-missing" in status.warnings
    assert "runs" not in log


def test_a_link_in_a_shared_checkpoint_directory_is_not_followed(
    place: tuple[str, Session],
) -> None:
    level, session = place
    shared, victim = session.home / "checkpoints", session.home / "victim"
    shared.mkdir(exist_ok=True)
    victim.mkdir(exist_ok=True)
    before = victim.stat()
    for path in (shared, victim):
        os.chown(path, session.home.stat().st_uid, -1)
    (shared / "local").symlink_to(victim)

    status, _ = session.run(
        "true",
        isolation=level,
        uid=ALICE if level == USER else None,
        checkpoint_dir=str(shared),
        visible_paths=[VisiblePath(str(shared), checkpoints=True)],
    )

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("start-failed", "user")
    assert "reached by a link" in status.exit.message
    assert list(victim.iterdir()) == []
    assert stat.S_IMODE(victim.stat().st_mode) == stat.S_IMODE(before.st_mode)


@pytest.mark.parametrize("below", ["link/deep", "link/runs/x"])
def test_a_shared_checkpoint_directory_below_a_link_to_the_runner_makes_nothing(
    place: tuple[str, Session], below: str
) -> None:
    level, session = place
    shared = session.home / "checkpoints"
    shared.mkdir(exist_ok=True)
    os.chown(shared, session.home.stat().st_uid, -1)
    runner = session.home / ".tessera"
    (shared / "link").unlink(missing_ok=True)
    (shared / "link").symlink_to(runner)
    before = {path.name for path in runner.iterdir()} - {"runs"}

    status, _ = session.run(
        "true",
        isolation=level,
        uid=ALICE if level == USER else None,
        checkpoint_dir=str(shared / below),
        visible_paths=[VisiblePath(str(shared / below), checkpoints=True)],
    )

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("start-failed", "user")
    assert {path.name for path in runner.iterdir()} - {"runs"} == before
    assert not (runner / "runs" / "x").exists()


@pytest.mark.parametrize("uid", [0, 1, 999, 70_999, 65_534])
def test_a_user_id_that_no_tenant_may_have_is_refused(
    place: tuple[str, Session], uid: int
) -> None:
    level, session = place

    with pytest.raises(ProtocolError) as refused:
        session.prepare(make_spec("true", isolation=level, uid=uid))

    assert refused.value.code in {"bad-uid", "bad-field"}
