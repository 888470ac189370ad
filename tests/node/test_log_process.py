"""The log writer: whichever process of a run is killed, its log is complete or marked."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from session import (
    Session,
    declare_isolation,
    exited_status,
    fill_disk,
    log_writer_pid,
    make_spec,
    wait_for_process_end,
    wait_until,
)

from tessera import protocol
from tessera.node import log_process, runs, system
from tessera.node.log_writer import READ_BYTES
from tessera.node.runner import FROZEN_SECONDS
from tessera.protocol import RunSpec, RunStatus

GAP = "[tessera] the log writer ended unexpectedly"


def steps(count: int) -> str:
    """A command that writes line N once the file ``N`` is in its working directory."""
    return (
        f"n=0; while [ $n -lt {count} ]; do while [ ! -e $n ]; do sleep 0.01; done; "
        'echo "line $n"; n=$((n + 1)); done; touch DONE; '
    )


def step(session: Session, spec: RunSpec, number: int) -> None:
    (session.directory(spec) / "work" / str(number)).touch()


def say(session: Session, spec: RunSpec, number: int) -> None:
    """Have the job write one line, and wait until it is in the log."""
    step(session, spec, number)
    wait_until(lambda: f"line {number}\n" in session.log(spec), f"line {number}")


@pytest.mark.parametrize("with_session", [True, False])
def test_killing_a_frozen_runner_loses_no_line(home: Path, with_session: bool) -> None:
    session = Session(home)
    spec = make_spec(steps(200) + "sleep 1000")
    started = session.start(spec)
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGSTOP)
    directory = session.directory(spec)
    if not with_session:
        session.kill()
    for number in range(200):
        (directory / "work" / str(number)).touch()
    wait_until((directory / "work" / "DONE").exists, "the last line")

    os.kill(started.runner_pid, signal.SIGKILL)
    if not with_session:
        session = Session(home)
        status = wait_until(lambda: exited_status(session, spec), "the end")
    else:
        status = session.exit_of(spec)

    expected = "".join(f"line {number}\n" for number in range(200))
    assert session.log(spec) == expected
    assert status.log_end == len(expected)
    assert status.exit.cause == "runner-lost"
    session.close()


def test_a_child_that_outlives_a_killed_runner_is_ended_and_its_lines_are_kept(
    plain: Session,
) -> None:
    session = plain
    child = "trap '' TERM; n=0; while :; do echo child $n; n=$((n+1)); sleep 0.02; done"
    spec = make_spec(f"setsid sh -c '{child}' & {steps(1)} sleep 1000")
    started = session.start(spec)
    wait_until(lambda: "child 3\n" in session.log(spec), "lines of the child")
    assert started.runner_pid

    os.kill(started.runner_pid, signal.SIGKILL)
    status = session.exit_of(spec)
    log = session.log(spec)

    lines = log.splitlines()
    assert lines == [f"child {number}" for number in range(len(lines))]
    assert len(lines) >= 4
    assert status.log_end == len(log)
    assert session.log(spec) == log  # nothing comes after the end


def test_a_child_that_writes_after_its_runner_and_all_sessions_are_gone_is_logged(
    home: Path,
) -> None:
    declare_isolation(home, strongest="none")  # sandboxes end with their runner
    session = Session(home)
    spec = make_spec(
        f"setsid sh -c '{steps(1).replace(chr(39), '')} sleep 1000' & exec sleep 1000"
    )
    started = session.start(spec)
    session.kill()
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGKILL)
    wait_for_process_end(started.runner_pid)
    wait_for_process_end(started.pid or 0)

    step(session, spec, 0)
    wait_until((session.directory(spec) / "work" / "DONE").exists, "the line")
    session = Session(home)
    wait_until(lambda: exited_status(session, spec), "the end")

    assert session.log(spec) == "line 0\n"
    session.close()


def test_a_killed_writer_is_replaced_and_the_log_marks_the_gap(session: Session) -> None:
    spec = make_spec(steps(3) + "exit 5")
    session.start(spec)
    say(session, spec, 0)
    writer = log_writer_pid(session, spec)

    os.kill(writer, signal.SIGKILL)
    wait_for_process_end(writer)
    step(session, spec, 1)  # written while nobody reads: it waits in the pipe
    wait_until(lambda: GAP in session.log(spec), "the mark")
    say(session, spec, 2)
    status = session.exit_of(spec)

    lines = session.log(spec).splitlines()
    assert lines[0] == "line 0"
    assert lines[1].startswith(GAP)
    assert lines[2:] == ["line 1", "line 2"]
    assert status.exit is not None
    assert (status.exit.code, status.exit.cause) == (5, "exited")
    assert status.log_end == len(session.log(spec))


def test_a_writer_that_is_killed_at_the_very_end_is_replaced_by_the_runner(
    session: Session,
) -> None:
    spec = make_spec(steps(2))
    started = session.start(spec)
    say(session, spec, 0)
    writer = log_writer_pid(session, spec)
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGSTOP)
    os.kill(writer, signal.SIGKILL)
    wait_for_process_end(writer)
    step(session, spec, 1)
    wait_until((session.directory(spec) / "work" / "DONE").exists, "the last line")

    os.kill(started.runner_pid, signal.SIGCONT)
    status = session.exit_of(spec)

    lines = session.log(spec).splitlines()
    assert [line for line in lines if not line.startswith(GAP)] == ["line 0", "line 1"]
    assert any(line.startswith(GAP) for line in lines)
    assert status.log_end == len(session.log(spec))


def test_a_frozen_writer_delays_the_end_of_the_job_by_seconds_only(session: Session) -> None:
    spec = make_spec(steps(2))
    session.start(spec)
    say(session, spec, 0)
    writer = log_writer_pid(session, spec)

    os.kill(writer, signal.SIGSTOP)
    step(session, spec, 1)
    status = session.exit_of(spec, 4 * log_process.FINISH_SECONDS)

    lines = session.log(spec).splitlines()
    assert status.exit is not None
    assert status.exit.code == 0
    assert [line for line in lines if not line.startswith(GAP)] == ["line 0", "line 1"]
    assert system.process(writer) is None


def test_a_frozen_writer_does_not_block_a_job_that_writes_more_than_a_pipe_holds(
    session: Session,
) -> None:
    spec = make_spec(steps(1) + "head -c 300000 /dev/zero | tr '\\0' 'x'; echo; exit 3")
    session.start(spec)
    writer = log_writer_pid(session, spec)

    os.kill(writer, signal.SIGSTOP)
    step(session, spec, 0)
    status = session.exit_of(spec, 6 * log_process.FROZEN_SECONDS)

    assert status.exit is not None
    assert status.exit.code == 3
    assert session.log(spec).count("x") >= 300_000 - READ_BYTES


def test_a_frozen_writer_on_a_full_disk_loses_no_line(small_disk: Path) -> None:
    session = Session(small_disk)
    spec = make_spec(steps(3) + "exit 5")
    session.start(spec)
    os.kill(log_writer_pid(session, spec), signal.SIGSTOP)
    for number in range(3):
        step(session, spec, number)
    wait_until((session.directory(spec) / "work" / "DONE").exists, "the last line")
    fill_disk(small_disk)

    status = session.exit_of(spec, 4 * log_process.FINISH_SECONDS)

    lines = session.log(spec).splitlines()
    assert [line for line in lines if not line.startswith(GAP)] == ["line 0", "line 1", "line 2"]
    assert status.exit is not None
    assert status.exit.code == 5
    assert status.log_end == len(session.log(spec))
    session.close()


def test_output_beyond_the_reserve_of_a_full_disk_is_lost_and_marked(small_disk: Path) -> None:
    session = Session(small_disk)
    spec = make_spec(steps(2) + "head -c 300000 /dev/zero | tr '\\0' 'x'")
    session.start(spec)
    say(session, spec, 0)
    fill_disk(small_disk)
    step(session, spec, 1)

    status = session.exit_of(spec)

    log = session.log(spec)
    lost = re.search(r"\n\[tessera\] the log could not be written: (\d+) bytes lost\n$", log)
    assert lost is not None
    assert log.startswith("line 0\nline 1\nxxx")
    assert log.count("x") + int(lost[1]) == 300_000
    assert log.count("x") >= READ_BYTES - len("line 1\n")
    assert status.log_end == len(log)
    session.close()


def test_a_run_without_room_for_its_log_does_not_start(small_disk: Path) -> None:
    session = Session(small_disk)
    spec = make_spec("echo never")
    session.prepare(spec)
    fill_disk(small_disk)
    ballast = small_disk / "ballast"
    os.truncate(ballast, ballast.stat().st_size - (32 << 10))  # room for empty files

    session.go(spec)
    status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("start-failed", "node")
    assert status.exit.message == "the disk is full: it has no room for the log"
    session.close()


def test_a_frozen_writer_without_a_runner_is_ended_and_the_run_settled(session: Session) -> None:
    spec = make_spec(steps(1) + "sleep 1000")
    started = session.start(spec)
    say(session, spec, 0)
    writer = log_writer_pid(session, spec)
    assert started.runner_pid

    os.kill(writer, signal.SIGSTOP)
    os.kill(started.runner_pid, signal.SIGKILL)
    status = session.exit_of(spec)

    assert status.exit is not None
    assert status.exit.cause == "runner-lost"
    assert re.fullmatch(rf"line 0\n{re.escape(GAP)}.*\n", session.log(spec))
    assert status.log_end == len(session.log(spec))
    assert system.process(writer) is None


def test_a_run_without_a_writer_settles_at_once(session: Session, home: Path) -> None:
    """Runners of earlier versions wrote the log themselves."""
    spec = make_spec(steps(1) + "sleep 1000")
    started = session.start(spec)
    say(session, spec, 0)
    writer = log_writer_pid(session, spec)
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGSTOP)
    (session.directory(spec) / protocol.WRITER_FILE).unlink()
    os.kill(writer, signal.SIGSTOP)

    began = time.monotonic()
    os.kill(started.runner_pid, signal.SIGKILL)
    status = session.exit_of(spec)
    os.kill(writer, signal.SIGCONT)

    assert time.monotonic() - began < 5.0
    assert status.log_end == len("line 0\n")


def test_the_end_of_a_lost_run_is_its_last_evidence_and_not_the_look_at_it(home: Path) -> None:
    session = Session(home)
    spec = make_spec("echo begun; exec sleep 1000")
    started = session.start(spec)
    wait_until(lambda: session.log(spec) == "begun\n", "the line")
    writer = log_writer_pid(session, spec)
    session.kill()
    assert started.runner_pid

    os.kill(started.runner_pid, signal.SIGKILL)
    killed = time.time()
    wait_for_process_end(writer)
    wait_until(lambda: time.time() > killed + 3.0, "a while without anybody looking")
    session = Session(home)
    status = session.status(spec)

    assert status.exit is not None
    assert abs(status.exit.at - killed) < 1.0
    assert status.started_at is not None
    assert status.started_at <= status.exit.at
    session.close()


def test_a_run_whose_processes_were_left_ended_when_they_were_killed(home: Path) -> None:
    declare_isolation(home, strongest="none")  # sandboxes end with their runner
    session = Session(home)
    spec = make_spec("setsid sleep 1000 >/dev/null 2>&1 & echo begun; exec sleep 1000")
    started = session.start(spec)
    wait_until(lambda: session.log(spec) == "begun\n", "the line")
    session.kill()
    assert started.runner_pid

    os.kill(started.runner_pid, signal.SIGKILL)
    killed = time.time()
    wait_until(lambda: time.time() > killed + 2.0, "a while in which the child runs on")
    looked = time.time()
    session = Session(home)
    status = wait_until(lambda: exited_status(session, spec), "the end")

    assert status.exit.at >= looked
    session.close()


def test_of_runs_without_a_writer_log_and_state_are_the_evidence(tmp_path: Path) -> None:
    from tessera.node import fence

    store = runs.Store(str(tmp_path))
    store.create()
    run = store.run(make_spec().run_id)
    log = Path(run.path, "log")
    log.mkdir(parents=True)
    segment = log / f"{0:016d}.log"
    segment.write_text("line\n")
    state = Path(run.file(protocol.STATE_FILE))
    state.touch()
    now = time.time()
    os.utime(segment, (now - 50, now - 50))
    os.utime(state, (now - 70, now - 70))
    here = RunStatus(run.run_id, "running", boot_id=system.boot_id(), started_at=now - 90)
    before = RunStatus(run.run_id, "running", boot_id="before", started_at=now - 90)

    by_log = fence._last_evidence(run, here, runs.Loss())
    os.utime(state, (now - 30, now - 30))
    by_state = fence._last_evidence(run, here, runs.Loss())
    os.utime(state, (now + 500, now + 500))
    capped = fence._last_evidence(run, here, runs.Loss())
    restarted = fence._last_evidence(run, before, runs.Loss())

    assert by_log == pytest.approx(now - 50, abs=0.01)
    assert by_state == pytest.approx(now - 30, abs=0.01)
    assert now <= capped <= time.time()
    assert restarted <= time.time() - system.boot_clock() + 0.01


def test_a_writer_costs_little_memory(session: Session) -> None:
    spec = make_spec(steps(1) + "sleep 1000")
    session.start(spec)
    say(session, spec, 0)
    rollup = Path(f"/proc/{log_writer_pid(session, spec)}/smaps_rollup").read_text()
    private = sum(
        int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")
    )

    assert private < 8192  # KiB


def test_without_a_sandbox_a_job_that_ends_unobserved_has_ended_with_its_last_output(
    plain: Session,
) -> None:
    session = plain
    spec = make_spec(steps(2))
    started = session.start(spec)
    say(session, spec, 0)
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGSTOP)
    say(session, spec, 1)
    ended = time.time()
    wait_until(lambda: time.time() > ended + FROZEN_SECONDS + 2, "a long time")

    os.kill(started.runner_pid, signal.SIGCONT)
    status = session.exit_of(spec)

    assert status.exit.cause == "exited"
    assert abs(status.exit.at - ended) < 1.5
