"""Whatever is killed: no run starts twice, none is lost, and nothing is left behind."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from session import SOURCES, Session, declare_isolation, fill_disk, make_spec, wait_until

from tessera import protocol
from tessera.node import fence, runs, system
from tessera.protocol import ProtocolError, RunSpec, RunStatus


def alive(pid: int | None) -> bool:
    return pid is not None and system.process(pid) is not None


def code_of(status: RunStatus) -> int | None:
    assert status.exit is not None
    return status.exit.code


def test_a_job_outlives_the_session_and_is_found_by_the_next(home: Path) -> None:
    first = Session(home)
    spec = make_spec("echo one; while [ ! -e end ]; do sleep 0.02; done; echo two; exit 4")
    first.start(spec)
    wait_until(lambda: first.log(spec) == "one\n", "the first line")
    first.kill()

    second = Session(home)
    found = second.status(spec)
    (second.directory(spec) / protocol.WORK_DIR / "end").touch()
    status = second.exit_of(spec)

    assert found.phase == protocol.RUNNING
    assert code_of(status) == 4
    assert second.bytes_of(spec, offset=4) == b"two\n"
    second.close()


def test_the_exit_of_a_job_that_ended_without_a_session_is_stored(home: Path) -> None:
    first = Session(home)
    spec = make_spec("sleep 0.2; exit 7")
    started = first.start(spec)
    first.kill()
    wait_until(lambda: not alive(started.runner_pid), "the runner's end")

    second = Session(home)

    assert code_of(second.status(spec)) == 7
    second.close()


def test_hanging_up_ends_the_session_and_leaves_no_trace_of_it(home: Path) -> None:
    session = Session(home)
    spec = make_spec("sleep 1000")
    started = session.start(spec)
    assert list((home / protocol.ROOT_DIR / protocol.NOTIFY_DIR).iterdir())

    assert session.close() == 0

    assert alive(started.pid)
    assert not list((home / protocol.ROOT_DIR / protocol.NOTIFY_DIR).iterdir())


@pytest.mark.parametrize("with_server", [True, False])
def test_a_job_whose_runner_is_killed_is_fenced_and_lost(home: Path, with_server: bool) -> None:
    declare_isolation(home, strongest="none")
    session = Session(home)
    escape = "setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2; echo; (sleep 1000; true)"
    spec = make_spec(escape, grace_seconds=1.0)
    started = session.start(spec)
    wait_until(lambda: session.log(spec).count("\n") >= 2, "the escaped process")
    escaped = int(session.log(spec).split()[0])
    assert started.runner_pid
    if not with_server:
        session.kill()

    os.kill(started.runner_pid, signal.SIGKILL)
    if not with_server:
        session = Session(home)
        status = session.status(spec)
    else:
        status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("runner-lost", "node")
    assert not alive(escaped)
    assert not alive(started.pid)
    assert not (session.directory(spec) / "secrets").exists()
    session.close()


def test_a_run_of_an_earlier_boot_is_lost_and_never_started(home: Path) -> None:
    session = Session(home)
    running, prepared = make_spec("sleep 1000"), make_spec("touch STARTED")
    started = session.start(running)
    session.prepare(prepared)
    session.kill()
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGKILL)
    store = runs.Store(str(home / protocol.ROOT_DIR))
    for spec in (running, prepared):
        run = store.run(spec.run_id)
        run.record(replace(run.recorded(), boot_id="another-boot"))

    session = Session(home)
    found = {status.run_id: status for status in session.runs()}
    again = session.ask("go", run_id=prepared.run_id)

    for spec in (running, prepared):
        record = found[spec.run_id].exit
        assert record is not None
        assert (record.cause, record.message) == ("runner-lost", "the node was restarted")
    assert again["already"] is True
    assert not list(home.rglob("STARTED"))
    session.close()


def test_a_run_of_another_machine_with_the_same_home_is_let_be(home: Path) -> None:
    session = Session(home)
    spec = make_spec()
    session.prepare(spec)
    run = runs.Store(str(home / protocol.ROOT_DIR)).run(spec.run_id)
    run.record(replace(run.recorded(), boot_id="its-boot", hostname="another-machine"))

    assert session.status(spec).phase == protocol.PREPARED
    session.close()


def test_a_starter_that_died_after_its_claim_never_starts_the_job(home: Path) -> None:
    session = Session(home)
    spec = make_spec("touch STARTED")
    session.prepare(spec)
    run = runs.Store(str(home / protocol.ROOT_DIR)).run(spec.run_id)
    os.close(run.claim())
    past = time.time() - 60
    os.utime(run.file(protocol.GO_FILE), (past, past))

    status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.message) == ("runner-lost", runs.NEVER_STARTED)
    assert not list(home.rglob("STARTED"))
    session.close()


def test_a_starter_that_is_only_slow_is_not_given_up(home: Path) -> None:
    session = Session(home)
    spec = make_spec()
    session.prepare(spec)
    run = runs.Store(str(home / protocol.ROOT_DIR)).run(spec.run_id)
    lock = run.claim()
    past = time.time() - 60
    os.utime(run.file(protocol.GO_FILE), (past, past))

    assert fence.settle(run).phase == protocol.PREPARED
    os.close(lock)
    assert fence.settle(run).phase == protocol.EXITED
    session.close()


def test_of_many_concurrent_go_requests_one_starts_the_job(home: Path) -> None:
    declare_isolation(home, strongest="none")
    sessions = [Session(home) for _ in range(4)]
    command = "echo x >> ../../../started"
    for _ in range(5):
        spec = make_spec(command)
        sessions[0].prepare(spec)
        barrier = threading.Barrier(8)
        replies = []

        def race(session: Session, spec: RunSpec = spec, barrier: threading.Barrier = barrier):
            barrier.wait()
            replies.append(session.ask("go", run_id=spec.run_id)["already"])  # noqa: B023

        threads = [threading.Thread(target=race, args=(one,)) for one in sessions * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sessions[0].exit_of(spec)

        assert sorted(replies) == [False] + [True] * 7

    assert (home / protocol.ROOT_DIR / "started").read_text() == "x\n" * 5
    for session in sessions:
        session.close()


def test_of_go_and_cancel_exactly_one_wins(home: Path) -> None:
    declare_isolation(home, strongest="none")
    sessions = [Session(home) for _ in range(2)]
    wins: dict[str, int] = {"go": 0, "cancel": 0}
    losses: list[str] = []
    for _ in range(15):
        spec = make_spec("echo x >> ../../../started")
        sessions[0].prepare(spec)
        barrier = threading.Barrier(2)

        def race(session: Session, op: str, spec: RunSpec = spec, barrier=barrier) -> None:
            barrier.wait()
            try:
                session.ask(op, run_id=spec.run_id)
                wins[op] += 1
            except ProtocolError as error:
                losses.append(error.code)

        threads = [
            threading.Thread(target=race, args=pair)
            for pair in zip(sessions, ("go", "cancel"), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if session_has(sessions[0], spec):
            sessions[0].exit_of(spec)

    started = home / protocol.ROOT_DIR / "started"
    lines = started.read_text().count("x") if started.exists() else 0
    assert wins["go"] + wins["cancel"] == 15
    assert lines == wins["go"]
    assert set(losses) <= {"cancelled", "already-started", "unknown-run", "not-prepared"}
    for session in sessions:
        session.close()


def test_a_claim_that_is_written_while_it_is_read_is_not_taken_for_a_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(home)
    spec = make_spec("true")
    session.prepare(spec)
    run = runs.Store(str(home / protocol.ROOT_DIR)).run(spec.run_id)
    path = Path(run.file(protocol.GO_FILE))
    path.write_bytes(b"")  # another process has made the claim and not written it yet
    pauses = []

    def write_in_the_pause(seconds: float) -> None:
        pauses.append(path.read_bytes())
        path.write_bytes(runs.CANCELLED)

    monkeypatch.setattr(time, "sleep", write_in_the_pause)

    assert run.cancelled()
    assert pauses == [b""]
    monkeypatch.undo()
    session.close()


def test_a_cancel_that_was_interrupted_still_holds_and_is_finished_later(home: Path) -> None:
    session = Session(home)
    spec = make_spec("touch STARTED")
    session.prepare(spec)
    os.close(runs.Store(str(home / protocol.ROOT_DIR)).run(spec.run_id).claim(runs.CANCELLED))

    with pytest.raises(ProtocolError) as refused:
        session.go(spec)
    session.ask("hello", protocol=1)

    assert refused.value.code == "cancelled"
    assert session.runs() == []
    assert not list(home.rglob("STARTED"))
    session.close()


def session_has(session: Session, spec: RunSpec) -> bool:
    return any(run.run_id == spec.run_id for run in session.runs())


def test_a_session_sees_at_once_what_another_sessions_runs_do(home: Path) -> None:
    first, second = Session(home), Session(home)
    first.ask("hello", protocol=1)
    second.ask("hello", protocol=1)
    spec = make_spec("exit 2")

    first.start(spec)

    assert code_of(second.exit_of(spec)) == 2
    first.close()
    second.close()


def test_the_exit_is_announced_at_once(home: Path) -> None:
    session = Session(home)
    delays = []
    for _ in range(10):
        spec = make_spec("true")
        session.prepare(spec)
        session.go(spec)
        status = session.exit_of(spec)
        assert status.exit is not None
        delays.append(time.time() - status.exit.at)

    assert sorted(delays)[5] < 0.05
    session.close()


def test_a_runner_that_is_terminated_ends_its_job(home: Path) -> None:
    session = Session(home)
    spec = make_spec("sleep 1000")
    started = session.start(spec)
    assert started.runner_pid

    os.kill(started.runner_pid, signal.SIGTERM)
    status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("stopped", "node")
    assert status.notice == "node-shutdown"
    session.close()


def test_a_repeated_prepare_is_done_once(home: Path) -> None:
    session = Session(home)
    spec = make_spec()
    session.prepare(spec, token="hunter2")
    (session.directory(spec) / "work" / "file").write_text("kept")

    session.prepare(spec, token="hunter2")
    with pytest.raises(ProtocolError) as refused:
        session.prepare(replace(spec, command="false"))

    assert (session.directory(spec) / "work" / "file").read_text() == "kept"
    assert refused.value.code == "spec-differs"
    session.close()


def test_a_run_names_the_installation_that_owns_it(home: Path) -> None:
    session = Session(home)
    spec = make_spec("sleep 1000", installation="one")
    session.start(spec)
    session.kill()

    session = Session(home)

    assert session.status(spec).installation == "one"
    session.close()


def test_a_half_made_run_directory_is_made_again(home: Path) -> None:
    session = Session(home)
    spec = make_spec("ls; cat $TESSERA_JOB_SECRETS_DIR/token")
    session.ask("hello", protocol=1)
    for folder in ("work", "secrets", "log", "job"):
        (session.directory(spec) / folder).mkdir(parents=True)
    (session.directory(spec) / "work" / "rest").touch()
    (session.directory(spec) / "spec.json").write_text("{")
    assert session.status(spec).phase == protocol.PREPARING

    session.start(spec, token="hunter2")
    session.exit_of(spec)

    assert session.log(spec) == "hunter2"
    session.close()


def test_a_cancelled_run_can_not_start_and_a_started_one_not_be_cancelled(home: Path) -> None:
    session = Session(home)
    cancelled, started = make_spec(), make_spec("sleep 1000")
    session.prepare(cancelled)
    session.start(started)

    assert session.ask("cancel", run_id=cancelled.run_id)["cancelled"] is True
    assert session.ask("cancel", run_id=cancelled.run_id)["cancelled"] is False
    with pytest.raises(ProtocolError) as no_go:
        session.go(cancelled)
    with pytest.raises(ProtocolError) as no_cancel:
        session.ask("cancel", run_id=started.run_id)

    assert no_go.value.code == "unknown-run"
    assert no_cancel.value.code == "already-started"
    session.close()


def test_only_ended_runs_can_be_removed(home: Path) -> None:
    session = Session(home)
    spec = make_spec("mkdir d; touch d/f; chmod 000 d; sleep 1000")
    session.start(spec)
    with pytest.raises(ProtocolError) as refused:
        session.ask("remove", run_id=spec.run_id)
    session.ask("stop", run_id=spec.run_id, grace_seconds=5, reason="user")
    session.exit_of(spec)

    assert session.ask("remove", run_id=spec.run_id)["removed"] is True
    assert session.ask("remove", run_id=spec.run_id)["removed"] is False

    assert refused.value.code == "not-exited"
    assert session.runs() == []
    trash = home / protocol.ROOT_DIR / protocol.TRASH_DIR
    wait_until(lambda: not list(trash.iterdir()), "the trash to be emptied")
    session.close()


def test_runs_of_other_versions_are_listed_and_left_alone(home: Path) -> None:
    session = Session(home)
    older, newer, broken = make_spec(), make_spec(), make_spec()
    for spec, state in (
        (older, '{"run_id": "%s", "phase": "exited", "exit": {"cause": "exited", "code": 0}}'),
        (newer, '{"run_id": "%s", "phase": "dreaming", "protocol": 9}'),
        (broken, "{"),
    ):
        session.directory(spec).mkdir(parents=True)
        text = state % spec.run_id if "%s" in state else state
        (session.directory(spec) / "state.json").write_text(text)
    (session.directory(older).parent / "not a run").mkdir()

    found = {status.run_id: (status.phase, status.protocol) for status in session.runs()}

    assert found == {
        older.run_id: ("exited", 0),
        newer.run_id: ("unknown", 9),
        broken.run_id: ("unknown", 0),
    }
    session.close()


def test_a_full_disk_is_the_nodes_fault_and_the_exit_is_stored(small_disk: Path) -> None:
    session = Session(small_disk)
    wait = "while [ ! -e may-fill ]; do sleep 0.01; done"
    spec = make_spec(f"echo before; {wait}; cat /dev/zero > fill 2>/dev/null; echo after; exit 6")
    session.start(spec)
    wait_until(lambda: session.log(spec), "the first line")
    (session.directory(spec) / protocol.WORK_DIR / "may-fill").touch()
    status = session.exit_of(spec)

    assert code_of(status) == 6
    assert session.log(spec).startswith("before\n")
    assert session.status(spec) == status
    fill_disk(small_disk)  # the end of the log has freed its reserve
    with pytest.raises(ProtocolError) as refused:
        session.prepare(make_spec())
    assert (refused.value.failure, refused.value.code) == ("node", "disk-full")
    session.close()


def test_a_stop_and_a_renewal_get_through_on_a_full_disk(small_disk: Path) -> None:
    session = Session(small_disk)
    spec = make_spec("cat /dev/zero > fill 2>/dev/null; while :; do sleep 0.05; done")
    session.start(spec)
    session.ask("renew", run_ids=[spec.run_id], seconds=60)
    wait_until(lambda: os.statvfs(small_disk).f_bavail == 0, "the disk is full")

    reply = session.ask("renew", run_ids=[spec.run_id], seconds=60)
    session.ask("stop", run_id=spec.run_id, grace_seconds=0.2, reason="user")
    status = session.exit_of(spec)

    assert list(reply["deadlines"]) == [spec.run_id]
    assert status.exit is not None
    assert status.exit.cause == "stopped"
    assert session.status(spec) == status
    session.close()


def test_the_zipapp_serves_and_its_jobs_reach_the_library_in_it(home: Path) -> None:
    from tessera.bundle import build_bundle

    path = home / "node.pyz"
    path.write_bytes(build_bundle().data)
    session = Session(home, bundle=path)
    spec = make_spec("python3 -c 'import tessera.train as t; print(t.__file__, t.job().id)'")

    session.start(spec)
    session.exit_of(spec)

    assert session.log(spec) == f"{protocol.CONTAINER_BUNDLE}/tessera/train/__init__.py 7\n"
    assert str(SOURCES) not in session.log(spec)
    session.close()
