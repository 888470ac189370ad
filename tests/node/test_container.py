"""A run in a container has the same log, exit record, lease and stop as a plain one."""

import json
import os
import shutil
import signal
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from session import Session, make_spec, wait_until

from tessera import protocol
from tessera.node import engine, system
from tessera.node.container import ContainerPayload, export_in
from tessera.node.container_output import Sink
from tessera.node.logs import LogWriter, read_log
from tessera.protocol import ContainerRef, RunSpec, RunStatus

PROGRAMS = ("sh", "sleep", "cat", "env", "head", "ls", "dd", "id")
IMAGE = "tessera-test/shell:1"


class HastyEngine(socketserver.ThreadingUnixStreamServer):
    """Ends the connection that follows a container's output before all has been said.

    Attributes:
        messages: what the container has said, each in a frame of its own.
        heard: of how many the follower is told.
    """

    daemon_threads = True
    messages: list[bytes]
    heard: int

    def answer(self, path: str) -> bytes:
        if path.endswith("/json"):
            state = {"Running": False, "Status": "created", "ExitCode": 0}
            return json.dumps({"Config": {"Tty": False}, "State": state}).encode()
        if "/logs" in path:
            until = self.heard if "follow=1" in path else None
            return b"".join(self.messages[:until])
        return b"{}"


class _Request(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, HastyEngine)
        method, path, _ = self.rfile.readline().decode().split(" ")
        status = 204 if method == "POST" and "wait" not in path else 200
        body = self.server.answer(path) if status == 200 else b""
        self.wfile.write(b"HTTP/1.0 %d OK\r\n\r\n" % status + body)


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[HastyEngine]:
    with HastyEngine(str(tmp_path / "engine.sock"), _Request) as engine_of_tests:
        thread = threading.Thread(target=engine_of_tests.serve_forever, args=(0.01,))
        thread.start()
        yield engine_of_tests
        engine_of_tests.shutdown()
        thread.join()


class LogSink(Sink):
    """Writes into a log at once."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log

    def pump(self, output: bytes) -> None:
        self._log.write(output)


def said_by(number: int) -> bytes:
    text = b"2026-03-02T09:30:00.%09dZ word %d\n" % (number, number)
    return bytes([1, 0, 0, 0]) + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize("heard", [0, 1, 4, 5])
def test_what_the_engine_keeps_back_at_the_end_is_asked_for(
    hasty: HastyEngine, tmp_path: Path, heard: int
) -> None:
    hasty.messages, hasty.heard = [said_by(number) for number in range(5)], heard
    log = LogWriter(
        str(tmp_path / "log"), cap=1 << 20, segment=1 << 18, rate=1 << 20, clock=lambda: 0.0
    )
    ref = ContainerRef(name="job", socket=str(tmp_path / "engine.sock"))
    payload = ContainerPayload(ref, LogSink(log))
    payload.start()

    payload.clean_up()

    log.close()
    assert read_log(str(tmp_path / "log"), 0, 1 << 20)[1] == b"".join(
        b"word %d\n" % number for number in range(5)
    )
    assert payload.descriptors() == []


def test_a_script_exports_once_and_keeps_its_lines(tmp_path: Path) -> None:
    script = tmp_path / "command.sh"
    script.write_text("#!/bin/bash\nfalse || echo $ADDRESS $LINENO\n")

    for _ in range(2):
        export_in(str(script), {"ADDRESS": "http://127.0.0.1:1"})

    shown = subprocess.run(["/bin/bash", str(script)], capture_output=True, text=True, check=True)
    assert shown.stdout == "http://127.0.0.1:1 2\n"
    assert script.read_text().count("export") == 1
    link = tmp_path / "link.sh"
    link.symlink_to(script)
    with pytest.raises(OSError, match=r"."):
        export_in(str(link), {"OTHER": "1"})
    assert "OTHER" not in script.read_text()


def test_an_engine_that_is_not_there_is_reported() -> None:
    with pytest.raises(engine.EngineError, match="cannot be reached"):
        engine.call("/nonexistent.sock", "GET", "/version")
    assert engine.identify("/nonexistent.sock") is None
    assert not engine.ensure_dead(ContainerRef(name="x", socket="/nonexistent.sock"))


class Engine:
    """A container engine of the tests' own."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    def docker(self, *arguments: str) -> str:
        command = ["docker", "-H", f"unix://{self.socket}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def create(self, session: Session, spec: RunSpec, *options: str, image: str = IMAGE) -> None:
        directory = str(session.directory(spec))
        hello = session.ask("hello", protocol=1)["hello"]
        bundle, checkpoints = hello["bundle"], protocol.checkpoint_dir(hello["root"], spec)
        mounts = []
        for source, target, read_only in protocol.container_mounts(directory, bundle, checkpoints):
            mounts += ["-v", f"{source}:{target}{':ro' if read_only else ''}"]
        environment = protocol.job_environment(
            spec,
            protocol.CONTAINER_ROOT,
            protocol.CONTAINER_BUNDLE,
            protocol.CONTAINER_CHECKPOINTS,
        )
        values = [word for item in environment.items() for word in ("-e", "=".join(item))]
        script = f"{protocol.CONTAINER_ROOT}/{protocol.COMMAND_FILE}"
        name = ["--name", spec.run_id, "--network", "none", "--init"]
        self.docker("create", *name, *mounts, *values, *options, image, "/bin/sh", script)

    def start(self, session: Session, spec: RunSpec, *options: str) -> RunStatus:
        session.prepare(spec, token="hunter2")
        self.create(session, spec, *options)
        return session.go(spec)

    def spec(self, command: str, **changes: object) -> RunSpec:
        spec = make_spec(command, **changes)
        container = ContainerRef(name=spec.run_id, socket=self.socket)
        return RunSpec(**{**vars(spec), "container": container})


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if not shutil.which("dockerd") or not shutil.which("docker") or os.getuid() != 0:
        pytest.skip("needs a Docker engine, its client, and root to start it")
    place = tmp_path_factory.mktemp("d")
    socket = f"{place}/d.sock"
    options = ["--iptables=false", "--bridge=none", "--storage-driver=vfs"]
    paths = [f"--{name}={place}/{name}" for name in ("data-root", "exec-root", "pidfile")]
    log = Path(f"{place}/log").open("wb")  # noqa: SIM115
    daemon = subprocess.Popen(
        ["dockerd", "--host", f"unix://{socket}", *paths, *options], stdout=log, stderr=log
    )
    try:
        wait_until(lambda: engine.identify(socket), "the engine", 30)
        found = Engine(socket)
        make_image(found, place / "image")
        yield found
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=30)
        log.close()


def make_image(found: Engine, place: Path) -> None:
    """An image of a few programs of this machine and their libraries."""
    for program in PROGRAMS:
        path = shutil.which(program, path="/bin:/usr/bin")
        assert path
        copy(Path(path), place / "bin" / program)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                copy(Path(word), place / word.lstrip("/"))
    archive = f"{place}.tar"
    subprocess.run(["tar", "-C", str(place), "-cf", archive, "."], check=True)
    found.docker("import", archive, IMAGE)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source.resolve(), target)


pytest_docker = pytest.mark.docker


@pytest_docker
def test_what_a_container_saves_is_there_for_the_next_attempt(
    docker: Engine, session: Session
) -> None:
    first = docker.spec("echo kept > $TESSERA_JOB_CHECKPOINT_DIR/note", job_id="51")
    second = docker.spec("cat $TESSERA_JOB_CHECKPOINT_DIR/note", job_id="51")

    for spec in (first, second):
        docker.start(session, spec)
        session.exit_of(spec)

    assert session.log(second).strip() == "kept"


@pytest_docker
def test_a_container_runs_with_its_files_and_its_exit_code(
    docker: Engine, session: Session
) -> None:
    spec = docker.spec(
        "cat $TESSERA_JOB_SECRETS_DIR/token; echo; cd $TESSERA_JOB_RUN_DIR; ls; "
        "echo '{}' > $TESSERA_JOB_REPORTS; echo err >&2; exit 3"
    )

    docker.start(session, spec)
    status = session.exit_of(spec)

    assert sorted(session.log(spec).split()) == sorted(
        ["hunter2", "checkpoints", "home", "job", "node.pyz", "secrets", "work", "err"]
    )
    assert session.log(spec, "reports") == "{}\n"
    assert status.exit is not None
    assert (status.exit.cause, status.exit.code, status.exit.failure) == ("exited", 3, "user")
    assert not (session.directory(spec) / "secrets").exists()


@pytest_docker
def test_a_container_is_stopped_with_term_first(docker: Engine, session: Session) -> None:
    spec = docker.spec("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done")
    started = docker.start(session, spec)
    wait_until(lambda: "up" in session.log(spec), "the job is up")

    session.ask("stop", run_id=spec.run_id, grace_seconds=20, reason="user")
    status = session.exit_of(spec)

    assert started.pid
    assert session.log(spec).endswith("bye\n")
    assert status.exit is not None
    assert (status.exit.cause, status.exit.code) == ("stopped", 5)


@pytest_docker
def test_a_container_whose_lease_ends_is_killed_after_its_grace(
    docker: Engine, session: Session
) -> None:
    spec = docker.spec(
        "trap '' TERM; while :; do sleep 0.05; done", lease_seconds=0.3, grace_seconds=0.3
    )
    docker.start(session, spec)

    status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("lease-expired", "platform")


@pytest_docker
def test_a_container_that_runs_out_of_memory_says_so(docker: Engine, session: Session) -> None:
    hog = "dd if=/dev/zero bs=150000000 count=1 of=/dev/null; exit 137"
    spec = docker.spec(hog)
    docker.start(session, spec, "--memory=20m")

    status = session.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("oom", "resource-limit")


@pytest_docker
def test_a_container_outlives_the_session_and_dies_with_its_runner(
    docker: Engine, home: Path
) -> None:
    first = Session(home)
    spec = docker.spec("echo up; sleep 1000")
    started = docker.start(first, spec)
    wait_until(lambda: first.log(spec) == "up\n", "the job is up")
    first.kill()
    second = Session(home)
    assert second.status(spec).phase == protocol.RUNNING
    assert started.runner_pid

    os.kill(started.runner_pid, signal.SIGKILL)
    status = second.exit_of(spec)

    assert status.exit is not None
    assert status.exit.cause == "runner-lost"
    state = docker.docker("inspect", "-f", "{{.State.Running}}", spec.run_id)
    assert state == "false"
    second.ask("remove", run_id=spec.run_id)
    assert spec.run_id not in docker.docker("ps", "-a", "--format", "{{.Names}}")
    second.close()


@pytest_docker
def test_a_container_that_is_missing_or_cannot_start_shows_the_reason(
    docker: Engine, session: Session
) -> None:
    missing = docker.spec("true")
    session.prepare(missing)
    no_shell = docker.spec("true")
    session.prepare(no_shell)
    docker.docker("create", "--name", no_shell.run_id, "--network", "none", IMAGE, "/no/shell")

    for spec, failure in ((missing, "platform"), (no_shell, "image")):
        status = session.go(spec)
        assert status.exit is not None
        assert (status.exit.cause, status.exit.failure) == ("start-failed", failure)


@pytest_docker
def test_what_a_short_container_says_is_never_lost(docker: Engine, session: Session) -> None:
    for _ in range(3):
        spec = docker.spec("head -c 300000 /dev/zero; echo end")
        docker.start(session, spec)
        session.exit_of(spec)
        assert len(session.bytes_of(spec)) == 300_004


NUMBERS = (
    "count() {{ n=$1; while [ $n -lt $2 ]; do echo line $n; n=$((n+1)); done; }}; "
    "cd $TESSERA_JOB_RUN_DIR/work; count 0 250; while [ ! -e GO ]; do sleep 0.05; done; "
    "count 250 {count}; : > DONE; sleep 1000"
)


def numbered(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


def work_file(session: Session, spec: RunSpec, name: str) -> Path:
    return session.directory(spec) / protocol.WORK_DIR / name


@pytest_docker
def test_killing_a_frozen_runner_of_a_container_loses_no_line(
    docker: Engine, session: Session
) -> None:
    spec = docker.spec(NUMBERS.format(count=20_000))
    started = docker.start(session, spec)
    wait_until(lambda: session.log(spec) == numbered(250), "the first lines")
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGSTOP)
    work_file(session, spec, "GO").touch()
    wait_until(lambda: work_file(session, spec, "DONE").exists(), "the last line")

    os.kill(started.runner_pid, signal.SIGKILL)
    status = session.exit_of(spec)

    assert session.log(spec) == numbered(20_000)
    assert status.exit is not None
    assert status.exit.cause == "runner-lost"
    assert status.log_end == len(numbered(20_000))


@pytest_docker
def test_lines_that_a_container_writes_without_a_runner_are_logged(
    docker: Engine, home: Path
) -> None:
    session = Session(home)
    spec = docker.spec(NUMBERS.format(count=500))
    started = docker.start(session, spec)
    wait_until(lambda: session.log(spec) == numbered(250), "the first lines")
    session.kill()
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGKILL)
    wait_until(lambda: system.process(started.runner_pid or 0) is None, "the end of the runner")

    work_file(session, spec, "GO").touch()
    directory = str(session.directory(spec) / protocol.LOG_DIR)
    wait_until(lambda: read_log(directory, 0, 1 << 20)[1].endswith(b"line 499\n"), "all lines")
    session = Session(home)
    status = wait_until(lambda: ended_of(session, spec), "the end")

    assert session.log(spec) == numbered(500)
    assert status.exit.cause == "runner-lost"
    session.close()


def ended_of(session: Session, spec: RunSpec) -> RunStatus | None:
    status = session.status(spec)
    return status if status.phase == protocol.EXITED else None


@pytest_docker
@pytest.mark.parametrize("seen", [1, 40_000, 150_000])
def test_a_runner_that_is_killed_in_a_flood_loses_and_repeats_nothing(
    docker: Engine, session: Session, seen: int
) -> None:
    spec = docker.spec(NUMBERS.format(count=60_000), log_rate_bytes=1 << 30)
    started = docker.start(session, spec)
    work_file(session, spec, "GO").touch()
    wait_until(lambda: session.status(spec).log_end >= seen, "some output")

    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGKILL)
    session.exit_of(spec)

    log = session.log(spec)
    assert log == docker.docker("logs", spec.run_id) + "\n"
    assert numbered(60_000).startswith(log)


@pytest_docker
def test_a_writer_that_is_killed_with_a_container_marks_the_gap_and_the_runner_may_die_then(
    docker: Engine, session: Session
) -> None:
    spec = docker.spec(NUMBERS.format(count=400))
    started = docker.start(session, spec)
    wait_until(lambda: session.log(spec) == numbered(250), "the first lines")
    writer = int((session.directory(spec) / protocol.WRITER_FILE).read_text().split()[0])
    os.kill(writer, signal.SIGKILL)
    wait_until(lambda: "[tessera]" in session.log(spec), "the mark of another writer")
    assert started.runner_pid
    os.kill(started.runner_pid, signal.SIGSTOP)
    work_file(session, spec, "GO").touch()
    wait_until(lambda: work_file(session, spec, "DONE").exists(), "the last line")

    os.kill(started.runner_pid, signal.SIGKILL)
    session.exit_of(spec)

    lines = [line for line in session.log(spec).splitlines() if not line.startswith("[tessera]")]
    assert lines == numbered(400).splitlines()


@pytest_docker
def test_reports_leave_a_container_by_the_socket_and_by_the_file(
    docker: Engine, session: Session
) -> None:
    spec = docker.spec(
        "python3 -c 'from tessera.train import reports; "
        'reports.report_event("line", number=1)\'; '
        "ls $TESSERA_JOB_RUN_DIR/job; echo '{\"number\": 2}' >> $TESSERA_JOB_REPORTS"
    )
    shown = [
        option for path in ("/usr", "/lib", "/lib64") for option in ("-v", f"{path}:{path}:ro")
    ]
    docker.start(session, spec, *shown)
    session.exit_of(spec)

    assert "reports.sock" in session.log(spec)
    assert "reports.jsonl" not in session.log(spec)
    lines = session.log(spec, "reports").splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2]
