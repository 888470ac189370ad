"""A sandbox ends whole, shows what is declared and nothing else, and never falls back."""

import errno
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session import (
    ALICE,
    BOB,
    ORDINARY,
    PLACES,
    ROOT,
    RUNNER,
    Session,
    make_spec,
    node,
    python_for_all,
    wait_until,
)

from tessera import isolation, protocol
from tessera.isolation import NAMESPACE, USER, VisiblePath
from tessera.node import background, cgroups, kernel, system
from tessera.node.accounts import Account
from tessera.node.boxes import Sandbox, SandboxError
from tessera.node.cgroups import Group
from tessera.node.runner import FROZEN_SECONDS
from tessera.node.sandbox_root import Bind, Plan
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


def test_memory_that_is_too_little_for_a_sandbox_is_the_job_s_failure(
    place: tuple[str, Session],
) -> None:
    level, session = place
    spec = spec_at(level, "true", memory_bytes=256 << 10, cpus=1, limits_enforced=True)

    session.start(spec)
    status = session.exit_of(spec)

    if "limits-not-enforced" in status.warnings:
        pytest.skip("this account may not make control groups")
    assert status.exit is not None
    if status.exit.cause == protocol.CAUSE_OOM:
        pytest.skip("the helper made the sandbox before its limit was in force")
    assert (status.exit.cause, status.exit.failure) == ("start-failed", "resource-limit")
    assert "memory" in status.exit.message
    assert cgroups._existing(spec.run_id) == []


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


@pytest.mark.parametrize("frozen_seconds", [1.5, FROZEN_SECONDS + 0.5])
def test_the_sandbox_dates_an_end_that_its_frozen_runner_does_not_see(
    place: tuple[str, Session], frozen_seconds: float
) -> None:
    level, session = place
    spec, runner, members = started(level, session)

    os.kill(runner, signal.SIGSTOP)
    touched = time.time()
    (session.directory(spec) / "work" / "end").touch()
    wait_until(lambda: not any(system.process(pid) for pid in members), "the end of all")
    ended = time.time()
    wait_until(lambda: time.time() > ended + frozen_seconds, "a while", 10)
    os.kill(runner, signal.SIGCONT)
    status = session.exit_of(spec)

    assert status.exit is not None
    assert status.exit.code == 3
    assert touched <= status.exit.at <= ended


def test_an_end_that_no_sandbox_reports_is_dated_by_its_runner(
    place: tuple[str, Session],
) -> None:
    level, session = place
    spec = spec_at(level, STAYING)
    first = session.start(spec).pid
    assert first
    wait_until(lambda: "one" in session.log(spec), "its output")

    before = time.time()
    os.kill(first, signal.SIGKILL)
    status = session.exit_of(spec)

    assert status.exit is not None
    assert status.exit.signal == signal.SIGKILL
    assert before <= status.exit.at <= time.time()


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


def test_a_job_starts_with_the_default_handling_of_signals(place: tuple[str, Session]) -> None:
    level, session = place
    spec = spec_at(level, "cat /proc/self/status")
    session.start(spec)
    session.exit_of(spec)
    status = dict(line.split(":\t", 1) for line in session.log(spec).splitlines())

    of_libc = 0b11 << 31  # signals 32 and 33
    assert [int(status[name], 16) & ~of_libc for name in ("SigBlk", "SigIgn", "SigCgt")] == [0] * 3


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
    assert "its path contains a link" in status.exit.message
    assert list(victim.iterdir()) == []
    assert stat.S_IMODE(victim.stat().st_mode) == stat.S_IMODE(before.st_mode)


def empty_plan(**changes: object) -> Plan:
    """A sandbox of this account, or of a tenant's user if this account is root."""
    uid = ALICE if os.getuid() == 0 else None
    fields: dict[str, object] = {"uid": uid, "group": os.getgid()}
    fields |= {name: [] for name in ("binds", "hidden", "devices", "owned")}
    fields |= {"owners": [os.getuid()], "secrets": None, "file_bytes": 0, "home": "/tmp"}
    fields |= {"tmp_bytes": 1 << 20, "shm_bytes": 1 << 20, "directory": "/"}
    fields |= {"arguments": ["/bin/sh", "-c", "exit 0"], "environment": {"PATH": "/usr/bin:/bin"}}
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]


def outcome_of(
    plan: Plan, prepare: Callable[[], None] = lambda: None, group: Group | None = None
) -> dict[str, object]:
    """Run the program of a sandbox in a child, which is prepared before.

    Returns:
        Its exit status, and with a group whether it is in that; or the stage and error number at
        which the sandbox has failed.
    """

    def work() -> dict[str, object]:
        prepare()
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
        box = Sandbox(plan)
        try:
            box.start(os.open(os.devnull, os.O_WRONLY), group)
        except SandboxError as error:
            return {"stage": error.stage, "number": error.number}
        os.waitpid(box.pid, 0)
        end = box.end()
        status = None if end is None else end.status
        return {"status": status} if group is None else {"status": status, "is_held": box.is_held}

    done = background.fork_work(work, lambda: None)
    found = background.read_outcome(system.read_all(done.descriptor, 1 << 16))
    os.waitpid(done.pid, 0)
    assert found.pop("ok"), found
    return found


@pytest.mark.parametrize("can_enter", [True, False])
def test_a_sandbox_reports_whether_it_is_in_the_groups_and_is_bounded_either_way(
    can_enter: bool, tmp_path: Path
) -> None:
    if can_enter:
        (tmp_path / "tasks").touch()
    group = Group([str(tmp_path)], unified=False, complete=True, bounds_processes=True)
    limit = "Max processes +17 " if not can_enter else "Max processes +(unlimited|[0-9]{3,}) "
    script = f"grep -Eq '{limit}' /proc/self/limits"
    plan = empty_plan(arguments=["/bin/sh", "-c", script], processes=17)

    found = outcome_of(plan, group=group)

    assert found == {"status": 0, "is_held": can_enter}
    assert not can_enter or (tmp_path / "tasks").read_text() == "0"


@pytest.fixture
def open_path(tmp_path: Path) -> Iterator[Path]:
    """A directory that every user of this machine may enter."""
    path = Path(tempfile.mkdtemp(prefix="tessera-open-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_a_source_that_was_replaced_by_a_link_is_refused(open_path: Path) -> None:
    (open_path / "real").mkdir()
    (open_path / "link").symlink_to("real")
    (open_path / "real" / "inner").mkdir()
    paths = [open_path / "real", open_path / "link", open_path / "link" / "inner"]

    found = [
        outcome_of(empty_plan(binds=[Bind(str(path), "/x", writable=True, is_exact=True)]))
        for path in paths
    ]

    refused = {"stage": "mount", "number": errno.ELOOP}
    assert found == [{"status": 0}, refused, refused]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_directory_to_give_that_was_replaced_by_a_link_stays_with_its_owner(
    open_path: Path,
) -> None:
    (open_path / "real").mkdir()
    (open_path / "real" / "inner").mkdir()
    (open_path / "link").symlink_to("real")

    through_link = outcome_of(empty_plan(owned=[str(open_path / "link" / "inner")]))
    owner = (open_path / "real" / "inner").stat().st_uid
    exact = outcome_of(empty_plan(owned=[str(open_path / "real" / "inner")]))

    assert (through_link, owner) == ({"stage": "own", "number": errno.ELOOP}, 0)
    assert exact == {"status": 0}
    assert (open_path / "real" / "inner").stat().st_uid == ALICE


@pytest.mark.skipif(os.getuid() != 0, reason="only root can write to the files of the node")
@pytest.mark.parametrize("account", [None, Account(RUNNER, RUNNER)], ids=["own", "another"])
def test_root_writes_its_files_before_it_shows_those_of_others(
    open_path: Path, account: Account | None
) -> None:
    """A bind where the link of the resolver leads must not lead to the node's directories."""
    victim, shown = open_path / "victim", open_path / "shown"
    for path in (victim, shown / "run"):
        path.mkdir(parents=True)
    (shown / "run" / "net").symlink_to(f"/.old{victim}")

    def with_resolver() -> None:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        for name in ("/etc", "/var", "/run"):
            kernel.mount("tmpfs", name, "tmpfs", 0, "mode=0755")
        Path("/run/net").mkdir()
        Path("/run/net/resolv.conf").write_text("nameserver 192.0.2.1\n")
        Path("/var/run").symlink_to("../run")
        Path("/etc/resolv.conf").symlink_to("/var/run/net/resolv.conf")

    plan = empty_plan(binds=[Bind(str(shown), "/var", writable=True)], account=account)

    assert outcome_of(plan, with_resolver) == {"status": 0}
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("kind", ["number", "size", "sizes"])
def test_secrets_are_bounded(open_path: Path, kind: str) -> None:
    count, size = {"number": (1001, 1), "size": (1, (16 << 20) + 1), "sizes": (3, 6 << 20)}[kind]
    for number in range(count):
        (open_path / f"{number}").touch()
        os.truncate(open_path / f"{number}", size)
    plan = empty_plan(secrets=(str(open_path), "/tessera/secrets"))

    assert outcome_of(plan) == {"stage": "mount", "number": errno.EFBIG}
    for path in list(open_path.iterdir())[:-1] if count > 1 else []:
        path.unlink()
    os.truncate(next(open_path.iterdir()), 16 << 20)
    look = """
import os
found = os.statvfs("/tessera/secrets")
assert found.f_blocks * found.f_frsize == 24 << 20
assert sum(os.path.getsize(f"/tessera/secrets/{name}") for name in os.listdir("/tessera/secrets"))
"""
    plan = plan._replace(arguments=[python_for_all(), "-I", "-c", look])
    assert outcome_of(plan) == {"status": 0}


def test_mounts_are_restricted_on_kernels_without_mount_setattr(open_path: Path) -> None:
    def with_mounts() -> None:
        """Mount file systems as of a node, and make the call fail as on Linux 5.11."""
        own = (os.getuid(), os.getgid())
        if own[0] == 0:
            kernel.unshare(kernel.CLONE_NEWNS)
        else:
            kernel.set_process(kernel.PR_SET_DUMPABLE, 1)
            kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUSER)
            kernel.map_identity(own[0], own[0], own[1], own[1])
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        for name in ("", "with space", "with space/below"):
            path = open_path / name
            path.mkdir(exist_ok=True)
            kernel.mount("tmpfs", str(path), "tmpfs", kernel.MS_NOEXEC, "mode=0777")
        monkey = pytest.MonkeyPatch()
        monkey.setattr(kernel, "_MOUNT_SETATTR", 100_000)

    look = """
import os
for place in ("/x", "/x/with space", "/x/with space/below"):
    assert os.statvfs(place).f_flag & 15 == 15, place  # read-only, nosuid, nodev, noexec
assert os.statvfs("/y").f_flag & 15 == 14
assert os.statvfs("/usr").f_flag & 7 == 7
open("/y/file", "w").close()
"""
    binds = [Bind(str(open_path), "/x"), Bind(str(open_path), "/y", writable=True)]
    plan = empty_plan(binds=binds, arguments=[python_for_all(), "-I", "-c", look])

    assert outcome_of(plan, with_mounts) == {"status": 0}


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
