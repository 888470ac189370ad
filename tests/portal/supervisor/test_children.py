"""Children: started again with back-off, ended as groups, never outliving their supervisor."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from portal.supervisor import children, startup
from portal.supervisor.children import Child, ChildProgram, end_text, last_lines
from portal.supervisor.supervisor import StartupError, Supervisor
from tests.support.waiting import is_alive, wait_until

MakeChild = Callable[..., Child]
SLEEP = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True);"
    "time.sleep(60)"
)


def said_until(child: Child, condition: Callable[[], bool]) -> list[str]:
    """The messages of checks of the child until the condition is true."""
    said: list[str] = []

    def looked() -> bool:
        line = child.look()
        if line:
            said.append(line)
        return condition()

    wait_until(looked)
    return said


def test_a_killed_child_is_restarted_and_reported(make_child: MakeChild) -> None:
    child = make_child(SLEEP)
    child.start()
    first = child.pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    said = said_until(child, lambda: child.pid not in {None, first})

    assert said == ["one ended (signal SIGKILL); starting it again in 0.25 s"]
    assert not is_alive(first)


def test_the_pause_doubles_until_a_steady_time_has_passed(make_child: MakeChild) -> None:
    now = [0.0]
    child = make_child("raise SystemExit(3)", clock=lambda: now[0])
    pauses = []
    for _ in range(9):
        child.start()
        said_until(child, lambda: not child.is_running)
        assert child.restart_at is not None
        pauses.append(child.restart_at - now[0])

    child.start()
    now[0] += children.STEADY_SECONDS
    said_until(child, lambda: not child.is_running)

    assert pauses[:4] == [0.25, 0.5, 1.0, 2.0]
    assert pauses[-1] == children.LONGEST_BACKOFF
    assert child.restart_at == now[0] + 0.25


def test_a_child_that_was_stopped_stays_stopped(make_child: MakeChild) -> None:
    child = make_child(SLEEP)
    child.start()

    child.ask_to_end()
    said = said_until(child, lambda: not child.is_running)

    assert said == []
    assert child.restart_at is None
    assert child.look() == ""
    assert not child.is_running


def test_a_child_that_ignores_the_request_is_killed_with_its_group(
    make_child: MakeChild,
) -> None:
    child = make_child(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STUBBORN!r}])"
    )
    child.start()
    wait_until(lambda: last_lines(child.log) == ["up"])
    assert child.pid is not None
    group = child.pid

    child.ask_to_end(seconds=0.1)
    said_until(child, lambda: not child.is_running)

    wait_until(lambda: not group_lives(group))


def test_the_process_group_of_a_dead_child_ends_before_the_next_start(
    make_child: MakeChild,
) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
    child = make_child(code)
    child.start()
    assert child.pid is not None
    group = child.pid

    said_until(child, lambda: not child.is_running)

    wait_until(lambda: not group_lives(group))


def test_a_child_that_is_restarted_for_its_silence_comes_back(make_child: MakeChild) -> None:
    child = make_child(SLEEP)
    child.start()
    first = child.pid

    child.ask_to_end(seconds=5, wanted=True)
    said_until(child, lambda: child.pid not in {None, first})

    assert child.wanted


def test_a_program_that_runs_once_and_fails_is_not_started_again_while_others_are_waited_for(
    make_child: MakeChild, supervisor: tuple[Supervisor, list[str]], tmp_path: Path
) -> None:
    made, said = supervisor
    once = make_child("print('here', flush=True); raise SystemExit(3)", name="once").program

    def wait_for_others() -> None:
        made.wait_until(lambda: False, 1)

    with pytest.raises(StartupError, match="once failed"):
        made.run_once(once, seconds=60, meanwhile=wait_for_others)

    assert (tmp_path / "once.log").read_text() == "here\n"
    assert said == []


KILLED_AT_FIRST = """
import os, signal
from pathlib import Path
runs = Path(RUNS)
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
if len(runs.read_text()) < TIMES:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("times", "is_done"), [(3, True), (4, False)])
def test_a_program_that_runs_once_is_run_again_twice_if_signals_end_it(
    make_child: MakeChild,
    supervisor: tuple[Supervisor, list[str]],
    tmp_path: Path,
    times: int,
    is_done: bool,
) -> None:
    runs = tmp_path / "runs"
    script = KILLED_AT_FIRST.replace("RUNS", repr(str(runs))).replace("TIMES", str(times))
    once = make_child(script, name="once").program
    expected = nullcontext() if is_done else pytest.raises(StartupError, match="signal SIGKILL")

    with expected:
        startup.run_to_its_end(supervisor[0], once, lambda: None)

    assert runs.read_text() == "xxx"


def test_no_child_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from portal.supervisor.children import Child, ChildProgram
program = ChildProgram(name="one", command=(sys.executable, "-c", {SLEEP!r}), environment={{}},
                  folder=Path("/"))
child = Child(program=program, log=Path({str(tmp_path / "log")!r}), clock=time.monotonic)
child.start()
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        # Only once the launcher has become the program is the tie to the parent made.
        wait_until(lambda: b"launch.py" not in Path(f"/proc/{child}/cmdline").read_bytes())

        supervisor.kill()

        wait_until(lambda: not is_alive(child))


def test_a_large_log_is_rotated_while_the_child_still_writes(make_child: MakeChild) -> None:
    child = make_child("import time\nwhile True: print('a' * 20, flush=True); time.sleep(0.01)")
    child.start()
    wait_until(lambda: child.log.exists() and child.log.stat().st_size > 200)

    child.rotate_log(most_bytes=100)

    wait_until(lambda: 0 < child.log.stat().st_size < 200)
    # No hole at the beginning: the process appends, wherever it stood before.
    assert child.log.read_bytes().startswith(b"a" * 20)
    assert child.log.with_name("one.log.1").read_bytes().startswith(b"a" * 20)


def test_three_logs_are_retained_the_newest_first(make_child: MakeChild) -> None:
    child = make_child("")

    for text in ("a", "b", "c", "d"):
        child.log.write_text(text * 20)
        child.rotate_log(most_bytes=10)

    kept = {path.name: path.read_text()[0] for path in child.log.parent.glob("one.log.*")}
    assert kept == {"one.log.1": "d", "one.log.2": "c", "one.log.3": "b"}


def test_logs_can_be_read_by_their_owner_only(make_child: MakeChild) -> None:
    child = make_child(SLEEP)

    child.start()

    assert child.log.stat().st_mode & 0o077 == 0


def test_a_missing_program_is_reported_in_its_log(make_child: MakeChild, tmp_path: Path) -> None:
    child = make_child(SLEEP)
    object.__setattr__(child.program, "command", ("/no/such/program",))
    child.start()

    said = said_until(child, lambda: not child.is_running)

    assert "exit status 127" in said[0]
    assert "cannot start /no/such/program" in last_lines(child.log)[0]


def test_ends_are_described() -> None:
    assert end_text(3) == "exit status 3"
    assert end_text(-15) == "signal SIGTERM"
    assert end_text(-99) == "signal 99"


def group_lives(group: int) -> bool:
    found = subprocess.run(
        ["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True, check=False
    )
    return any(not state.startswith("Z") for state in found.stdout.split())


def test_a_record_that_a_full_disk_refused_is_written_at_the_next_look(
    supervisor: tuple[Supervisor, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = supervisor
    record = tmp_path / "children.json"
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        child = one.add(sleeper(tmp_path))
        one.look()
        assert not record.exists()

    one.look()

    assert json.loads(record.read_text())["sleeper"]["pid"] == child.pid
    assert [path.name for path in tmp_path.glob(".*")] == []


def refuse(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def sleeper(folder: Path) -> ChildProgram:
    return ChildProgram(
        name="sleeper",
        command=(sys.executable, "-c", "import time; time.sleep(60)"),
        environment={"PATH": "/usr/bin:/bin"},
        folder=folder,
    )
