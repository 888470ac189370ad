"""A real session with a real node process over pipes, for tests and measurements."""

import base64
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import installed
import pytest

from tessera import protocol
from tessera.bundle import build_bundle
from tessera.isolation import NAMESPACE, USER
from tessera.node import cgroups, confinement, runs, system
from tessera.protocol import ProtocolError, RunSpec, RunStatus

SOURCES = Path(protocol.__file__).parents[1]
SECONDS = 60.0
ALICE, BOB, RUNNER = 71_001, 71_002, 4_321
ROOT, ORDINARY, SUDO = "root", "ordinary", "sudo"
"""Accounts of runners; the last one is ordinary and has the helper and its rule of sudo."""
NAMESPACE_PLACES = [(NAMESPACE, ROOT), (NAMESPACE, ORDINARY)]
PLACES = [(USER, ROOT), (USER, SUDO), *NAMESPACE_PLACES]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Look until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"waited {seconds} s in vain for: {what}")


def make_spec(command: str = "true", **changes: Any) -> RunSpec:
    """A small spec of its own attempt."""
    attempt = changes.pop("attempt", uuid.uuid4().hex)
    role, rank = changes.pop("role", "worker"), changes.pop("rank", 0)
    fields: dict[str, Any] = {
        "run_id": protocol.make_run_id(attempt, role, rank),
        "job_id": "7",
        "job_name": "digits",
        "attempt": attempt,
        "role": role,
        "rank": rank,
        "command": command,
        "grace_seconds": 2.0,
        "lease_seconds": 60.0,
    }
    return RunSpec(**{**fields, **changes})


def fill_disk(disk: Path) -> None:
    """Leave no byte free on a disk."""
    with (disk / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def declare_isolation(home: Path, **fields: Any) -> None:
    """Declare what a node's owner may declare of isolation."""
    root = home / protocol.ROOT_DIR
    root.mkdir(exist_ok=True, mode=0o700)
    (root / confinement.DECLARATION_FILE).write_text(json.dumps(fields))


class Session:
    """One ``serve`` process; requests are answered by id, events are collected."""

    def __init__(
        self,
        home: Path,
        python: str = sys.executable,
        bundle: Path | None = None,
        prefix: Sequence[str] = (),
    ):
        self.home = home
        code = f"import sys; sys.path.insert(0, {str(SOURCES)!r});"
        code += "from tessera.node.__main__ import main; main(['serve'])"
        start = [str(bundle), "serve"] if bundle else ["-c", code]
        self.process = subprocess.Popen(
            [*prefix, python, "-I", "-S", *start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOME": str(home), "SESSION_ONLY": "not for jobs"},
            start_new_session=True,
        )
        self.events: list[dict[str, Any]] = []
        self._replies: dict[int | None, queue.Queue[dict[str, Any]]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            message = protocol.decode_line(line)
            if "event" in message:
                self.events.append(message)
            else:
                self._box(message["id"]).put(message)

    def _box(self, number: int | None) -> "queue.Queue[dict[str, Any]]":
        with self._lock:
            return self._replies.setdefault(number, queue.Queue())

    def write(self, content: bytes) -> None:
        """Send raw bytes."""
        assert self.process.stdin
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def send(self, op: str, **fields: Any) -> int:
        """Send a request; returns its id."""
        with self._lock:
            self._number += 1
            number = self._number
        self.write(protocol.encode_line({"id": number, "op": op, **fields}))
        return number

    def reply(self, number: int | None, seconds: float = SECONDS) -> dict[str, Any]:
        """The reply to a request, or its error as an exception."""
        message = self._box(number).get(timeout=seconds)
        if not message["ok"]:
            raise ProtocolError.from_json(message["error"])
        return message

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and wait for the reply."""
        return self.reply(self.send(op, **fields))

    # -- in words --------------------------------------------------------------------------------

    def prepare(self, spec: RunSpec, **secrets: str) -> RunStatus:
        reply = self.ask(protocol.PREPARE, run=spec.to_json(), secrets=secrets)
        return RunStatus.from_json(reply["run"])

    def go(self, spec: RunSpec) -> RunStatus:
        return RunStatus.from_json(self.ask(protocol.GO, run_id=spec.run_id)["run"])

    def start(self, spec: RunSpec, **secrets: str) -> RunStatus:
        self.prepare(spec, **secrets)
        return self.go(spec)

    def status(self, spec: RunSpec) -> RunStatus:
        return next(run for run in self.runs() if run.run_id == spec.run_id)

    def runs(self) -> list[RunStatus]:
        found, after = [], ""
        while after is not None:
            reply = self.ask(protocol.RUNS, after=after)
            found += [RunStatus.from_json(run) for run in reply["runs"]]
            after = reply["next"]
        return found

    def exit_of(self, spec: RunSpec, seconds: float = SECONDS) -> RunStatus:
        """Wait for the event that tells of the end."""

        def ended() -> RunStatus | None:
            for event in self.events:
                run = event.get("run", {})
                if run.get("run_id") == spec.run_id and run["phase"] == protocol.EXITED:
                    return RunStatus.from_json(run)
            return None

        status = wait_until(ended, f"the end of {spec.run_id}", seconds)
        assert isinstance(status, RunStatus)
        return status

    def run(self, command: str, **changes: Any) -> tuple[RunStatus, str]:
        """Run a command to its end; its status and output."""
        spec = make_spec(command, **changes)
        self.start(spec)
        return self.exit_of(spec), self.log(spec)

    def log(self, spec: RunSpec, stream: str = protocol.STREAM_LOG) -> str:
        return self.bytes_of(spec, stream).decode()

    def bytes_of(self, spec: RunSpec, stream: str = protocol.STREAM_LOG, offset: int = 0) -> bytes:
        pieces = b""
        while True:
            reply = self.ask(protocol.READ, run_id=spec.run_id, stream=stream, offset=offset)
            piece = base64.b64decode(reply["data"])
            pieces += piece
            offset = reply["offset"] + len(piece)
            if not piece:
                return pieces

    def directory(self, spec: RunSpec) -> Path:
        return self.home / protocol.ROOT_DIR / protocol.RUNS_DIR / spec.run_id

    def kill(self) -> None:
        """Kill the server with no warning."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> int:
        """Hang up, and wait for the server to end."""
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        status = self.process.wait(timeout=SECONDS)
        self._reader.join(timeout=SECONDS)
        self.process.stdout.close()
        return status


def log_writer_pid(session: Session, spec: RunSpec) -> int:
    """The process that writes a run's log."""
    path = session.directory(spec) / protocol.WRITER_FILE
    words = wait_until(lambda: path.exists() and path.read_text().split(), "the log writer")
    return int(words[0])


def wait_for_process_end(pid: int) -> None:
    """Wait until no process has this id."""
    wait_until(lambda: system.process(pid) is None, f"the end of process {pid}")


def exited_status(session: Session, spec: RunSpec) -> RunStatus | None:
    """The status of a run, once it has exited."""
    status = session.status(spec)
    return status if status.phase == protocol.EXITED else None


def end_everything(home: Path) -> None:
    """Leave no process behind, whatever a test has done."""
    root = str(home / protocol.ROOT_DIR)
    for run in runs.Store(root).all_runs() if Path(root, protocol.RUNS_DIR).exists() else ():
        status = run.recorded()
        if status.phase == protocol.RUNNING and status.runner_pid:
            system.kill_quietly(status.runner_pid, signal.SIGKILL)
        cgroups.thaw(run.run_id)
    for found in list(system.processes()):
        if root.encode() in system.environment_of(found.pid):
            system.kill_quietly(found.pid, signal.SIGKILL)
    shutil.rmtree(home, ignore_errors=True)


@contextmanager
def node(
    level: str, account: str, *, below: str | None = None, machine: Sequence[str] = ()
) -> Iterator[Session]:
    """A node whose runner is root or an ordinary user, and that offers a level at most.

    Args:
        below: the directory in which its home lies.
        machine: a program and arguments that start its processes in another environment.
    """
    if account != ORDINARY and os.getuid() != 0:
        pytest.skip("only root can start a runner that is root, or install the helper")
    if below is not None and not os.access(below, os.W_OK):
        pytest.skip(f"{below} cannot be written to")
    home = Path(tempfile.mkdtemp(prefix="tessera-node-", dir=below))
    home.chmod(0o755)
    (home / ".tessera").mkdir(mode=0o700)
    bundle = home / "node.pyz"
    bundle.write_bytes(build_bundle().data)
    bundle.chmod(0o644)
    declare_isolation(home, strongest=level)
    prefix: list[str] = []
    if account != ROOT and os.getuid() == 0:
        prefix = ["setpriv", f"--reuid={RUNNER}", f"--regid={RUNNER}", "--clear-groups"]
        for path in (home, *home.rglob("*")):
            os.chown(path, RUNNER, RUNNER)
    if account == SUDO:
        prefix = [
            *installed.prefix(home, RUNNER, configuration={"directories": ["/opt"]}),
            *prefix,
        ]
    prefix = [*machine, *prefix]
    session = Session(home, python=python_for_all(), bundle=bundle, prefix=prefix)
    try:
        found = session.ask(protocol.PROBE)["inventory"]["isolation"]
        probe = next(one for one in found if one["level"] == level)
        if not probe["available"]:
            pytest.skip(f"this machine does not offer it: {probe['cause']}: {probe['detail']}")
        yield session
    finally:
        session.close()
        end_everything(home)


def python_for_all() -> str:
    """A Python that every user of this machine may execute."""
    path = Path("/usr/bin/python3")
    return str(path) if path.exists() else sys.executable
