"""A command that runs once for each device of a member: ranks, output, and ends."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tessera.node import system
from tessera.train.launch import _has_group
from tessera.train.rank_output import LONGEST_LINE, RankOutput

SOURCE = Path(__file__).parents[2] / "src"


def launch(script: str, processes: int = 3, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tessera.train.launch", "--each", "/bin/sh", "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "LOCAL_WORLD_SIZE": str(processes),
            "TESSERA_JOB_DEVICE_COUNT": str(processes),
            **environment,
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def test_each_process_has_its_rank_and_its_lines_show_it() -> None:
    show = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $TESSERA_JOB_PROCESS_DEVICE"'
    launcher = launch(show, processes=2, RANK="3", WORLD_SIZE="5", NNODES="3", NODE_RANK="2")

    output, _ = launcher.communicate(timeout=60)

    assert sorted(output.splitlines()) == ["[rank3] 3 0 5 2 0", "[rank4] 4 1 5 2 1"]
    assert launcher.returncode == 0


def test_a_layout_of_logical_workers_determines_the_processes() -> None:
    launcher = launch(
        'echo "$RANK of $WORLD_SIZE"', processes=2, TESSERA_JOB_LAYOUT="[[1, 1]]", NNODES="1"
    )

    output, _ = launcher.communicate(timeout=60)

    assert sorted(output.splitlines()) == ["[rank0] 0 of 2", "[rank1] 1 of 2"]


def test_one_failed_rank_ends_the_others_with_their_children() -> None:
    fail = '[ "$LOCAL_RANK" = 1 ] && exit 9; sleep 600 & echo "$!"; wait'
    began = time.monotonic()
    launcher = launch(fail)

    output, _ = launcher.communicate(timeout=60)

    lines = output.splitlines()
    assert launcher.returncode == 9
    assert "[tessera] rank 1 failed with exit code 9; ending the other ranks" in lines
    assert time.monotonic() - began < 60
    for line in lines:
        if line.startswith("[rank"):
            assert system.process(int(line.split()[1])) is None


def test_a_stop_reaches_programs_below_the_shells_and_each_ends_in_its_own_time() -> None:
    save = (
        "import os, signal, sys, time\n"
        "def leave(*_):\n"
        "    time.sleep(0.3 * int(os.environ['LOCAL_RANK']))\n"
        "    print('saved', flush=True)\n"
        "    os._exit(5)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    launcher = launch(f'{sys.executable} -c "{save}"; exit $?')
    assert launcher.stdout
    assert sorted(launcher.stdout.readline() for _ in range(3)) == [
        f"[rank{rank}] up\n" for rank in range(3)
    ]

    launcher.send_signal(signal.SIGTERM)
    output, _ = launcher.communicate(timeout=60)

    assert sorted(line for line in output.splitlines() if "saved" in line) == [
        f"[rank{rank}] saved" for rank in range(3)
    ]
    assert "failed" not in output


def test_an_ended_program_that_nobody_has_collected_does_not_count() -> None:
    """Its group exists, since its parent does not wait for it."""
    group = subprocess.Popen(["/bin/true"], start_new_session=True)
    os.waitid(os.P_PID, group.pid, os.WEXITED | os.WNOWAIT)

    assert not _has_group(group)
    group.wait()
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as running:
        assert _has_group(running)
        running.kill()


def test_a_process_left_in_the_background_does_not_delay_the_end() -> None:
    began = time.monotonic()
    launcher = launch("sleep 30 & echo done", processes=1)

    assert launcher.wait(timeout=60) == 0
    assert time.monotonic() - began < 25
    assert launcher.stdout
    assert launcher.stdout.readline() == "[rank0] done\n"
    launcher.stdout.close()


def copied(*pieces: bytes) -> bytes:
    """Return what the launcher writes for the output of one rank, which comes in pieces."""
    with tempfile.TemporaryFile() as copy:
        output = RankOutput(copy.fileno())
        writer = output.open("7")
        for piece in pieces:
            os.write(writer, piece)
            output.pump(1.0)
        os.close(writer)
        output.finish()
        copy.seek(0)
        return copy.read()


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=8))
def test_no_byte_of_a_rank_is_lost_and_each_line_begins_with_its_label(
    pieces: list[bytes],
) -> None:
    plain = [piece.replace(b"\r", b"?") for piece in pieces]
    lines = b"".join(plain).split(b"\n")
    if lines[-1] == b"":
        lines.pop()

    assert copied(*plain) == b"".join(b"[rank7] " + line + b"\n" for line in lines)


def test_progress_bars_and_endless_lines_are_shown_while_they_grow() -> None:
    assert copied(b"10%\r", b"20%\r", b"done\r", b"\n") == (
        b"[rank7] 10%\r[rank7] 20%\r[rank7] done\r\n"
    )
    endless = b"x" * (LONGEST_LINE // 2 + 1)
    assert copied(endless, endless) == b"[rank7] " + endless * 2 + b"\n"
