"""Files that a job replaces in its run directory: no session waits on them or is misled."""

import os
import shutil
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from session import Session, make_spec, wait_until

from tessera import protocol
from tessera.node import logs, system
from tessera.protocol import ProtocolError, RunSpec

SECONDS_MORE = 1.0
SEGMENT = "0000000000000000.log"
NAMES = ("go", "stop.json", "state", f"log/{SEGMENT}", "log/0000000000000001.log")
MORE_NAMES = (
    *("log", "job/reports.jsonl", "job/listens", "job/control.json", "runner.log"),
    *("reports", "job/reports.sock"),
)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as found:
        folder = os.open(path.parent, os.O_RDONLY)
        found.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: never ends
    except PermissionError:
        make_fifo(path)  # a job without root cannot make one either


def make_directory(path: Path) -> None:
    path.mkdir()


def make_dangling_link(path: Path) -> None:
    path.symlink_to("/nonexistent/place")


def make_link_to_another_file(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def make_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: tuple[Callable[[Path], None], ...] = (
    make_fifo,
    make_socket,
    make_device,
    make_directory,
    make_dangling_link,
)


def replace(path: Path, make: Callable[[Path], None]) -> None:
    """Put something else in place of a file or directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
    path.parent.mkdir(exist_ok=True)
    make(path)


@pytest.mark.parametrize("make", [*KINDS, make_link_to_another_file, make_huge_file])
def test_a_file_that_is_not_a_small_regular_one_reads_as_empty_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "go"
    make(path)

    began = time.monotonic()
    content = system.read_file(str(path), 64)

    assert content == b""
    assert system.read_json(str(path), 64) is None
    assert time.monotonic() - began < SECONDS_MORE


def test_a_file_of_another_account_is_refused_unless_jobs_write_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another account")
    path = tmp_path / "go"
    path.write_text("started\n")
    os.chown(path, 71_000, 71_000)

    assert system.read_file(str(path)) == b""
    assert system.read_file(str(path), any_owner=True) == b"started\n"


@pytest.mark.parametrize("make", [*KINDS, make_link_to_another_file])
def test_a_replaced_segment_has_no_content_and_no_size(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / SEGMENT).write_text("one\n")
    make(tmp_path / "0000000000000004.log")

    assert logs.log_end(str(tmp_path)) == 4
    assert logs.read_log(str(tmp_path), 0, 100) == (0, b"one\n")


def test_only_names_of_sixteen_digits_are_segments(tmp_path: Path) -> None:
    (tmp_path / SEGMENT).write_text("one\n")
    for name in ("1.log", "99999.log", "00000000000000009.log", "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٩.log"):
        (tmp_path / name).write_text("no\n")

    assert [path for _, path in logs.segments(str(tmp_path))] == [str(tmp_path / SEGMENT)]
    assert logs.log_end(str(tmp_path)) == 4


def test_a_directory_full_of_names_costs_a_bounded_time(tmp_path: Path) -> None:
    for number in range(3 * logs.MOST_NAMES):
        (tmp_path / f"{number:016d}.log").touch()

    assert len(logs.segments(str(tmp_path))) == logs.MOST_NAMES


def test_a_link_in_place_of_the_jobs_directory_leads_no_write_out_of_it(
    session: Session, tmp_path: Path
) -> None:
    spec = make_spec("sleep 1000")
    session.start(spec)
    outside = tmp_path / "outside"
    outside.mkdir()
    replace(session.directory(spec) / "job", lambda path: path.symlink_to(outside))

    with pytest.raises(ProtocolError) as caught:
        session.ask(protocol.TUNE, run_id=spec.run_id, settings={"throttle": 0.5})
    session.ask(protocol.STOP, run_id=spec.run_id, grace_seconds=0.1)
    session.exit_of(spec)

    assert caught.value.code == "not-written"
    assert list(outside.iterdir()) == []


@pytest.fixture
def hostile(session: Session) -> list[RunSpec]:
    """Many run directories, each with one name replaced, and half of their jobs running."""
    specs = []
    combinations = [(name, make) for name in (*NAMES, *MORE_NAMES) for make in KINDS]
    for number, _ in enumerate(combinations):
        spec = make_spec("sleep 1000", attempt=f"{number:032x}")
        session.prepare(spec)
        if number % 2:
            session.go(spec)
        specs.append(spec)
    for spec, (name, make) in zip(specs, combinations, strict=True):
        replace(session.directory(spec) / name, make)
    return specs


def rounds_of(session: Session, spec: RunSpec, first: int, count: int) -> list[float]:
    """Seconds from a line of a job's log and reports to both being read, several times."""
    waits = []
    step = session.directory(spec) / "work"
    for number in range(first, first + count):
        (step / str(number)).touch()
        began = time.monotonic()
        wait_until(
            lambda n=number: (
                session.log(spec).count("\n") > n
                and session.log(spec, protocol.STREAM_REPORTS).count("\n") > n
            ),
            f"line {number}",
        )
        waits.append(time.monotonic() - began)
    return waits


SPEAKER = """
n=0
while [ $n -lt 40 ]; do
    while [ ! -e $n ]; do sleep 0.01; done
    echo "line $n"
    echo '{"step": 1}' >> "$TESSERA_JOB_REPORTS"
    n=$((n + 1))
done
"""


def test_fifty_hostile_run_directories_delay_nobody_elses_log_and_reports(
    session: Session, home: Path, hostile: list[RunSpec]
) -> None:
    assert len(hostile) >= 50
    honest = make_spec(SPEAKER)
    began = time.monotonic()
    session.start(honest)
    assert time.monotonic() - began < 5.0

    def longest_wait(first: int) -> float:
        waits = rounds_of(session, honest, first, 10)
        for spec in hostile:  # reading them is refused or answered, and never waits
            for stream in (protocol.STREAM_LOG, protocol.STREAM_REPORTS):
                session.ask(protocol.READ, run_id=spec.run_id, stream=stream)
        return max(waits + request_seconds(session, honest))

    # Other processes of the machine may delay one series; a directory that stalls delays each.
    is_in_time = any(longest_wait(first) < SECONDS_MORE for first in (0, 10, 20))

    second = Session(home)  # greets and scans all of them
    began = time.monotonic()
    second.ask(protocol.HELLO, protocol=protocol.PROTOCOL_VERSION)
    greeted = time.monotonic() - began
    second.close()

    assert is_in_time
    assert greeted < 10.0


def request_seconds(session: Session, spec: RunSpec) -> list[float]:
    """How long each of a few requests about an honest run takes."""
    waits = []
    for _ in range(20):
        began = time.monotonic()
        session.ask(protocol.READ, run_id=spec.run_id)
        waits.append(time.monotonic() - began)
    return waits
