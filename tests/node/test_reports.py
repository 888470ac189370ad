"""Each report is stored once, whichever process is killed, and never changed."""

import errno
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from session import (
    ALICE,
    ORDINARY,
    ROOT,
    Session,
    declare_isolation,
    exited_status,
    log_writer_pid,
    make_spec,
    node,
    wait_for_process_end,
    wait_until,
)
from session import PLACES as SANDBOXES

from tessera import protocol
from tessera.isolation import NONE, USER
from tessera.node import logs, reports, runs, secret_files
from tessera.node.reports import Collector, Inbox
from tessera.protocol import RunSpec
from tessera.train import reports as job_reports

PLACES = [*SANDBOXES, (NONE, ROOT), (NONE, ORDINARY)]
TOKEN = b"5" * 32


class Killed(BaseException):
    """Stands for SIGKILL: no handler catches it."""


class Place:
    """The inbox of one run, with its sender and its stored lines."""

    def __init__(self, root: Path) -> None:
        self.store = runs.Store(str(root))
        self.store.create()
        spec = make_spec()
        self.run = self.store.run(spec.run_id)
        for name in ("", protocol.JOB_DIR, protocol.SECRETS_DIR):
            Path(self.run.file(name)).mkdir()
        Path(self.run.file(protocol.REPORTS_TOKEN)).write_bytes(TOKEN)
        found = reports.open_inbox(self.run, spec, reports.Journal())
        assert found is not None
        self.inbox: Inbox = found
        self.file = Path(self.run.file(protocol.REPORTS_FILE))
        self.sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sender.setblocking(False)
        job_reports._connect(self.sender, self.run.file(protocol.REPORTS_SOCKET))
        self.warnings: list[str] = []
        self.now = 100.0

    def send(self, line: bytes, token: bytes = TOKEN) -> None:
        self.sender.send(token + b" " + line)

    def append(self, text: bytes) -> None:
        with self.file.open("ab") as file:
            file.write(text)

    def collector(self, **limits: int) -> Collector:
        return Collector(self.inbox, lambda: self.now, self.warnings.append, **limits)

    def stored(self) -> bytes:
        end = self.run.reports_end()
        start, content, told = self.run.read(protocol.STREAM_REPORTS, 0, 1 << 30)
        assert (start, told) == (0, end)
        assert len(content) == end
        return content

    def close(self) -> None:
        self.sender.close()
        self.inbox.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.close()


def collect(collector: Collector) -> None:
    while collector.receive():
        pass
    collector.look()


def test_lines_of_the_socket_and_of_the_file_are_stored(place: Place) -> None:
    collector = place.collector()
    place.send(b'{"step": 1}\n')
    place.send(b'{"step": 2}')
    place.append(b'{"step": 3}\n{"st')

    collect(collector)
    before = place.stored()
    place.append(b'ep": 4}\n{"step": 5}')
    place.now += 1
    collector.look()
    between = place.stored()
    collector.finish()

    assert before == b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    assert between == before + b'{"step": 4}\n'
    assert place.stored() == between + b'{"step": 5}\n'
    assert place.warnings == []


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b" ",
        TOKEN,
        TOKEN + b" ",
        TOKEN + b" \n",
        TOKEN[:-1] + b' {"step": 1}\n',
        b"6" * 32 + b' {"step": 1}\n',
        b' {"step": 1}\n',
        TOKEN + b' {"step": 1}\n{"step": 2}\n',
        TOKEN + b' {"step": 1}\0\n',
        TOKEN + b" " + b"x" * (reports.LONGEST_LINE + 1),
        TOKEN + b" " + b"x" * (4 * reports.LONGEST_LINE // 2),
    ],
    ids=lambda found: repr(found[:50]),
)
def test_a_datagram_that_is_not_valid_is_rejected_and_counted(
    place: Place, datagram: bytes
) -> None:
    collector = place.collector()
    for _ in range(3):
        place.sender.send(datagram)
        assert collector.receive()
    place.send(b'{"step": 9}\n')

    collect(collector)
    collector.finish()

    assert place.stored() == b'{"step": 9}\n'
    assert len(place.warnings) == 2  # the first, and the count
    assert "3 reports were rejected" in place.warnings[1]
    assert TOKEN.decode() not in "".join(place.warnings)


def test_a_line_of_the_greatest_length_is_stored_whole(place: Place) -> None:
    line = b"x" * (reports.LONGEST_LINE - 1) + b"\n"
    place.send(line)
    place.append(line)

    place.collector().finish()

    assert place.stored() == line + line


def test_a_line_without_an_end_is_dropped_from_the_file(place: Place) -> None:
    place.append(b"y" * (3 * reports.LONGEST_LINE) + b'\n{"step": 1}\n')

    place.collector().finish()

    assert place.stored().endswith(b'\n{"step": 1}\n')
    assert len(place.stored()) < reports.LONGEST_LINE
    assert place.warnings


@pytest.mark.parametrize("change", ["cut", "replace", "remove"])
def test_a_job_that_changes_its_file_changes_nothing_that_is_stored(
    place: Place, change: str
) -> None:
    collector = place.collector()
    place.append(b'{"step": 1}\n{"step": 2}\n')
    collector.look()
    stored = place.stored()

    if change == "cut":
        place.file.write_bytes(b"")
    else:
        place.file.unlink()
    place.now += 1
    collector.look()
    assert place.stored() == stored
    if change != "remove":
        place.append(b'{"step": 7}\n')
    collector.finish()

    assert place.stored() == stored + (b'{"step": 7}\n' if change != "remove" else b"")


def test_a_file_of_a_stranger_or_with_two_names_is_not_read(place: Place) -> None:
    private = Path(place.store.root, "private")
    private.write_bytes(b"hunter2\n")
    os.link(private, place.file)
    collector = place.collector()
    collector.look()
    if os.getuid() == 0:
        place.file.unlink()
        place.append(b"forged\n")
        os.chown(place.file, ALICE + 7, -1)
        place.now += 1
        collector.look()

    collector.finish()

    assert place.stored() == b""


def test_above_the_rate_lines_wait_where_they_are(place: Place) -> None:
    collector = place.collector()
    line = b"z" * 60_000 + b"\n"
    place.append(line * 40)

    collector.look()
    first = len(place.stored())
    place.send(b'{"step": 1}\n')
    assert not collector.receive()
    place.now += 1
    collector.look()
    second = len(place.stored()) - first
    while len(place.stored()) < 40 * len(line) + 12:
        place.now += 1
        collector.look()

    assert first <= reports.BURST_BYTES + len(line)
    assert second <= reports.RATE_BYTES + len(line)
    assert place.stored().replace(b'{"step": 1}\n', b"", 1) == line * 40


def test_stored_reports_are_bounded_and_keep_their_offsets(place: Place) -> None:
    collector = place.collector(cap=10_000, segment=1_000)
    lines = [b'{"step": %d}\n' % number for number in range(3_000)]
    for line in lines:
        place.send(line)
        assert collector.receive()
    whole = b"".join(lines)

    directory = place.run.file(protocol.REPORTS_DIR)
    start, content, end = place.run.read(protocol.STREAM_REPORTS, 0, 1 << 30)

    assert sum(path.stat().st_size for path in Path(directory).iterdir()) <= 11_000
    assert end == len(whole)
    assert content == whole[start:]


def test_a_full_disk_delays_reports_and_loses_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, is_full = os.write, True

    def short_or_refused(descriptor: int, content: Any) -> int:
        if is_full:
            if len(content) < 6:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, bytes(content)[:5])
        return write(descriptor, content)

    collector = place.collector()
    monkeypatch.setattr(os, "write", short_or_refused)
    for number in range(3):
        place.send(b'{"step": %d}\n' % number)
        collector.receive()
    assert place.stored() != b""
    is_full = False
    collect(collector)
    collector.finish()

    assert place.stored() == b'{"step": 0}\n{"step": 1}\n{"step": 2}\n'


def scenario(place: Place) -> bytes:
    """Have some lines waiting; what is to be stored of them in the end."""
    place.send(b'{"step": 1}\n')
    place.send(b"forged\n", token=b"6" * 32)
    place.send(b'{"step": 2}')
    place.append(b'{"step": 3}\n{"step": 4}\n')
    return b'{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4}\n'


def killed_after(count: int, work: Callable[[], None]) -> bool:
    """Do some work, and stop before the instruction of this number; whether it was stopped."""
    left = count

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in (reports.__file__, logs.__file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what it held
def test_a_collector_that_is_killed_at_any_instruction_loses_and_repeats_nothing() -> None:
    count, was_killed = 0, True
    while was_killed:
        root = Path(tempfile.mkdtemp(prefix="tessera-reports-"))
        place = Place(root)
        expected = scenario(place)
        was_killed = killed_after(count, lambda place=place: collect(place.collector()))  # type: ignore[misc]
        place.now += 1

        collect(place.collector())
        place.collector().finish()

        assert place.stored() == expected, count
        place.close()
        shutil.rmtree(root)
        count += 3
    assert count > 500


def test_a_socket_with_a_long_path_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    place = Place(deep)
    assert len(place.run.file(protocol.REPORTS_SOCKET)) > 108
    place.send(b'{"step": 1}\n')

    place.collector().finish()

    assert place.stored() == b'{"step": 1}\n'
    place.close()


def test_reports_of_a_run_of_an_earlier_version_are_read_from_its_file(tmp_path: Path) -> None:
    store = runs.Store(str(tmp_path))
    store.create()
    run = store.run(make_spec().run_id)
    Path(run.file(protocol.JOB_DIR)).mkdir(parents=True)
    Path(run.file(protocol.REPORTS_FILE)).write_bytes(b'{"step": 1}\n')

    assert run.reports_end() == 12
    assert run.read(protocol.STREAM_REPORTS, 3, 5) == (3, b'tep":', 12)


def test_each_attempt_has_its_own_token(tmp_path: Path) -> None:
    store = runs.Store(str(tmp_path))
    store.create()
    tokens = set()
    for _ in range(3):
        run = store.run(make_spec().run_id)
        Path(run.path).mkdir()
        secret_files.write(run, {})
        path = Path(run.file(protocol.REPORTS_TOKEN))
        tokens.add(path.read_bytes())
        assert path.stat().st_mode & 0o777 == 0o600
        run.remove_secrets()

    assert len(tokens) == 3
    assert {len(token) for token in tokens} == {32}


# -- real runs -----------------------------------------------------------------------------------

TELLER = """
import os, time
from tessera.train import reports
n = 0
while n < COUNT:
    reports.report_event("line", number=n)
    n += 1
    time.sleep(PAUSE)
reports._reporter().close()
open("SENT", "w").close()
while not os.path.exists("END"):
    time.sleep(0.01)
"""


def teller(count: int, pause: float = 0.0) -> str:
    script = TELLER.replace("COUNT", str(count)).replace("PAUSE", str(pause))
    return f"cat > tell.py <<'END_OF_SCRIPT'\n{script}\nEND_OF_SCRIPT\nexec python3 tell.py"


def numbers_of(session: Session, spec: RunSpec) -> list[int]:
    lines = session.log(spec, protocol.STREAM_REPORTS).splitlines()
    return [json.loads(line)["number"] for line in lines]


def is_sent(session: Session, spec: RunSpec) -> bool:
    return (session.directory(spec) / "work" / "SENT").exists()


def end(session: Session, spec: RunSpec) -> None:
    (session.directory(spec) / "work" / "END").touch()


@pytest.mark.parametrize(("level", "account"), PLACES)
def test_at_every_level_the_library_uses_the_socket_and_scripts_the_file(
    level: str, account: str
) -> None:
    with node(level, account) as session:
        spec = make_spec(
            "python3 -c 'from tessera.train import reports; "
            'reports.report_event("line", number=1)\'; '
            "ls -A $TESSERA_JOB_SECRETS_DIR $(dirname $TESSERA_JOB_REPORTS); "
            "echo '{\"number\": 2}' >> $TESSERA_JOB_REPORTS; "
            "while [ ! -e GO ]; do sleep 0.05; done; : > $TESSERA_JOB_REPORTS",
            isolation=level,
            uid=ALICE if level == USER else None,
        )
        session.start(spec)
        wait_until(lambda: len(numbers_of(session, spec)) == 2, "both reports")
        (session.directory(spec) / "work" / "GO").touch()
        status = session.exit_of(spec)
        log = session.log(spec)

        assert "reports.sock" in log
        assert "reports.jsonl" not in log  # the library has not needed it
        assert ".reports-token" in log
        assert numbers_of(session, spec) == [1, 2]
        assert status.reports_end == len(session.bytes_of(spec, protocol.STREAM_REPORTS))
        assert not (session.directory(spec) / "secrets").exists()


def test_reports_survive_killed_writers(session: Session) -> None:
    spec = make_spec(teller(400, 0.005))
    session.start(spec)
    for seen in (20, 120, 220):
        wait_until(lambda n=seen: len(numbers_of(session, spec)) > n, f"report {seen}")
        writer = log_writer_pid(session, spec)
        os.kill(writer, signal.SIGKILL)
        wait_for_process_end(writer)
        wait_until(lambda old=writer: writer_of_next(session, spec, old), "another writer")
    end(session, spec)
    session.exit_of(spec)

    assert sorted(numbers_of(session, spec)) == list(range(400))


def writer_of_next(session: Session, spec: RunSpec, old: int) -> bool:
    words = (session.directory(spec) / protocol.WRITER_FILE).read_text().split()
    return bool(words) and int(words[0]) != old


def test_reports_that_were_sent_survive_a_killed_runner(home: Path) -> None:
    declare_isolation(home, strongest="none")
    session = Session(home)
    spec = make_spec(teller(8))
    started = session.start(spec)
    writer = log_writer_pid(session, spec)
    os.kill(writer, signal.SIGSTOP)
    wait_until(lambda: is_sent(session, spec), "the last report")
    assert not numbers_of(session, spec)

    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGKILL)
    wait_for_process_end(started.runner_pid)
    os.kill(writer, signal.SIGCONT)
    wait_until(lambda: exited_status(session, spec), "the end")

    assert numbers_of(session, spec) == list(range(8))
    session.close()


def test_a_writer_that_is_frozen_at_the_end_is_replaced_by_the_runner(session: Session) -> None:
    spec = make_spec(teller(8))
    session.start(spec)
    writer = log_writer_pid(session, spec)
    os.kill(writer, signal.SIGSTOP)
    wait_until(lambda: is_sent(session, spec), "the last report")
    end(session, spec)

    status = session.exit_of(spec)

    assert numbers_of(session, spec) == list(range(8))
    assert status.reports_end == len(session.bytes_of(spec, protocol.STREAM_REPORTS))


def test_the_session_reports_new_reports_within_a_second(session: Session) -> None:
    spec = make_spec("echo '{\"number\": 0}' >> $TESSERA_JOB_REPORTS; sleep 1000")
    session.start(spec)

    def grew() -> bool:
        return any(event.get("reports_end") for event in session.events)

    wait_until(grew, "the event", 10)
    assert numbers_of(session, spec) == [0]


def test_a_job_that_floods_the_socket_with_wrong_tokens_delays_no_other(session: Session) -> None:
    script = (
        "import os, socket, time\n"
        "line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "line.connect(os.path.join(os.path.dirname(os.environ['TESSERA_JOB_REPORTS']),"
        " 'reports.sock'))\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end: line.send(b'0' * 32 + b' {\"number\": 666}')\n"
        "print('done')\n"
    )
    flood = make_spec(f"cat > flood.py <<'E'\n{script}E\npython3 flood.py")
    honest = make_spec(teller(20, 0.02))
    session.start(flood)
    session.start(honest)
    end(session, honest)
    session.exit_of(honest)
    session.exit_of(flood)

    assert numbers_of(session, honest) == list(range(20))
    assert session.log(flood, protocol.STREAM_REPORTS) == ""
    assert "reports were rejected" in session.log(flood)
    assert session.log(flood).count("rejected") == 2
