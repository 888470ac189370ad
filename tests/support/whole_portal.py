"""A complete portal in a separate directory, started like ``./tessera up``, with inspection.

Everything is real: the supervisor, its children, the SSH servers of the demo's nodes, the jobs.
Assertions read the database file, the nodes' home directories and the process table, independently
of the portal.
"""

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import redis

from portal.settings.environment import read_environment
from portal.supervisor.redis_server import socket_path
from scheduling.storage.base import FileStorage
from scheduling.storage.opening import open_storage
from tessera.client import Client, ClientError
from tessera.node import confinement
from tests.conftest import PROJECT_ROOT
from tests.support.waiting import is_alive, wait_until

START_SECONDS = 300.0
RESTART_SECONDS = 180.0
"""Maximum restart time of a process on a loaded machine, in seconds."""

CHILDREN = (
    "redis", "demo-nodes", "web", "worker-rounds", "worker-nodes", "worker-default", "beat",
)  # fmt: skip
ADMIN_PASSWORD = "a password for trials"
PASSWORD = re.compile(r"^ +(alice|bob) +(\S+)$", re.MULTILINE)


@dataclass
class WholePortal:
    """One installation with its supervisor, if it runs.

    Attributes:
        data: the data directory.
        port: port of the portal, equal for all starts.
        seen: process IDs of all observed children.
        began: start of the notes on the monotonic clock.
        notes: actions of the test and observations since the last reset.
    """

    data: Path
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None
    seen: set[int] = field(default_factory=set)
    starts: int = 0
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _tokens: dict[str, str] = field(default_factory=dict)

    # -- the supervisor ----------------------------------------------------------------------

    @property
    def output(self) -> Path:
        """Return the output of the current supervisor."""
        return self.data.with_name(f"{self.data.name}.{self.starts}.out")

    @property
    def url(self) -> str:
        """Return the URL of the portal."""
        return f"http://127.0.0.1:{self.port}"

    def begin(self) -> None:
        """Start a supervisor without waiting for the portal."""
        assert self.process is None, "it runs already"
        self.starts += 1
        known = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
        chosen = {"TESSERA_ADMIN_PASSWORD": ADMIN_PASSWORD, "TESSERA_ROUND_SECONDS": "2"}
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo", "--no-history", "--data-dir", str(self.data),
                 "--port", str(self.port), *self.options],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=PROJECT_ROOT,
                env=known | chosen | self.environment,
            )  # fmt: skip

    def up(self) -> None:
        """Start a supervisor and wait until the portal is ready."""
        self.begin()
        self.wait_until_welcome()

    def wait_until_welcome(self) -> None:
        """Wait until the supervisor reports that the portal is ready."""

        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.output.read_text()
            return "Tessera is ready" in self.output.read_text()

        wait_until(is_ready, START_SECONDS, "the start")
        self.children()

    def end(self) -> int:
        """Shut down cleanly; return the exit status of the supervisor."""
        self.children()
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill only the supervisor."""
        self.note("SIGKILL supervisor")
        self.children()
        self._end(signal.SIGKILL)

    def crash(self) -> None:
        """Kill the supervisor and all children, like a power cut; nodes and jobs continue."""
        assert self.process is not None
        self.note("SIGKILL supervisor and all children")
        for pid in (self.process.pid, *self.children().values()):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=60)
        self.process = None

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(timeout=120)
        self.process = None
        return status

    # -- its children ------------------------------------------------------------------------

    def children(self) -> dict[str, int]:
        """Return the running children: process IDs by name, as recorded by the supervisor."""
        try:
            record = json.loads((self.data / "run" / "children.json").read_text())
        except (OSError, ValueError):
            return {}
        found = {name: one["pid"] for name, one in record.items()}
        self.seen.update(found.values())
        return {name: pid for name, pid in found.items() if is_alive(pid)}

    def strangers(self) -> dict[int, str]:
        """Return processes of this installation that are unknown to the supervisor.

        Every child leads a separate session, which identifies its descendants.
        """
        mark = b"TESSERA_DATA_DIR=" + os.fsencode(self.data)
        sessions = {os.getsid(pid) for pid in self.children().values() if is_alive(pid)}
        found = {}
        for pid, words, name in _processes():
            with suppress(ProcessLookupError):
                if mark in words and os.getsid(pid) not in sessions:
                    found[pid] = name
        return found

    def send(self, name: str, number: signal.Signals) -> int:
        """Send a signal to a child as soon as it runs; return its process ID."""
        wait_until(lambda: name in self.children(), RESTART_SECONDS, f"a process {name}")
        pid = self.children()[name]
        os.kill(pid, number)
        self.note(f"{number.name} {name}")
        return pid

    def begin_notes(self) -> None:
        """Reset the notes and their start time."""
        self.notes.clear()
        self.began = time.monotonic()

    def note(self, what: str) -> None:
        """Record an action or observation with its time."""
        self.notes.append(f"{time.monotonic() - self.began:.2f} {what}")

    def is_ready(self) -> bool:
        """Return whether all children run and the portal reports that it is ready."""
        return set(CHILDREN) <= set(self.children()) and self.get("/readyz?strict=1") == 200

    def wait_until_ready(self) -> None:
        """Wait until the portal has recovered from the last fault."""
        wait_until(self.is_ready, RESTART_SECONDS, "readiness", every=0.1)

    def get(self, path: str, seconds: float = 5.0) -> int:
        """Return the status of a page; 0 without a response."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)) as line:
            try:
                line.request("GET", path)
                return line.getresponse().status
            except (OSError, http.client.HTTPException):
                return 0

    # -- its state ---------------------------------------------------------------------------

    def client(self, user: str) -> Client:
        """Return a client of a demo user (alice belongs to vision, bob to language)."""
        return Client(self.url, self.token(user), timeout_seconds=60.0)

    def token(self, user: str) -> str:
        """Return a token of a demo user, created at the first call."""
        if user not in self._tokens:
            self._tokens[user] = self._make_token(user)
        return self._tokens[user]

    def stop_examples(self) -> None:
        """Stop the jobs of the demo, which train for minutes on a loaded machine."""
        for user in ("alice", "bob"):
            with self.client(user) as client:
                for job in client.jobs(user=user):
                    client.stop(job.id)
        wait_until(lambda: not self.run_directories(), RESTART_SECONDS, "the end of the examples")

    def _make_token(self, user: str) -> str:
        outputs = sorted(self.data.parent.glob(f"{self.data.name}.*.out"))
        said = "".join(path.read_text() for path in outputs)
        password = dict(PASSWORD.findall(said))[user]
        keys: list[str] = []

        def is_made() -> bool:
            try:
                with Client(self.url, timeout_seconds=30.0) as client:
                    token = client.create_token(
                        name="faults",
                        scopes=["jobs:read", "jobs:write"],
                        user=user,
                        password=password,
                    )
            except ClientError:
                return False
            keys.append(token.key)
            return True

        wait_until(is_made, 60, "a token")
        return keys[-1]

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """Query the database file."""
        where = f"file:{self.data / 'db.sqlite3'}?mode=ro"
        with closing(sqlite3.connect(where, uri=True, timeout=60)) as database:
            database.row_factory = sqlite3.Row
            return database.execute(query, values).fetchall()

    def manage(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a management command on this installation."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            capture_output=True, text=True, check=False, cwd=PROJECT_ROOT, timeout=300,
            env=self.variables(),
        )  # fmt: skip

    def variables(self) -> dict[str, str]:
        """Return the environment of a process that uses this installation."""
        known = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
        mine = {"TESSERA_DATA_DIR": str(self.data), "TESSERA_REDIS_URL": self.redis_url}
        chosen = {"TESSERA_IMAGES": "ignore", "TESSERA_ROUND_SECONDS": "2"}
        stored = {key: value for key, value in self.environment.items() if "_STORAGE" in key}
        return known | mine | chosen | stored | {"DJANGO_SETTINGS_MODULE": "portal.settings"}

    @property
    def storage(self) -> FileStorage:
        """Return the storage of logs, rounds and archives."""
        return open_storage(read_environment(self.variables()).storage)

    @property
    def redis_url(self) -> str:
        """Return the address of the embedded Redis."""
        return f"unix://{socket_path(self.data / 'redis')}"

    def connect_broker(self) -> redis.Redis:
        """Return a connection to the broker."""
        return redis.Redis.from_url(self.redis_url, socket_timeout=2)

    @property
    def ports(self) -> list[int]:
        """Return the ports of the web servers."""
        return [self.port]

    # -- its nodes ---------------------------------------------------------------------------

    @property
    def homes(self) -> list[Path]:
        """Return the home directories of the demo nodes."""
        return sorted((self.data / "demo").glob("demo-*/home"))

    def run_directories(self) -> list[str]:
        """Return the run directories on all nodes."""
        return [path.name for home in self.homes for path in (home / ".tessera/runs").glob("*")]

    def processes_of_runs(self) -> dict[int, str]:
        """Return the live processes of runs, runners and log writers on the nodes: name and
        run."""
        found: dict[int, str] = {}
        homes = {b"HOME=" + os.fsencode(home) for home in self.homes}
        for pid, words, name in _processes():
            run = next((word for word in words if word.startswith(b"TESSERA_JOB_RUN_ID=")), b"")
            is_here = bool(homes & words) or (bool(run) and self._is_in_sandbox(pid))
            if is_here and (run or name in {"tessera-runner", "tessera-log"}):
                found[pid] = f"{name} {run.decode()}"
        return found

    def _is_in_sandbox(self, pid: int) -> bool:
        """Return whether a process has mounted a run directory of this portal's nodes."""
        with suppress(OSError):
            return f"{self.data}/demo/" in Path(f"/proc/{pid}/mountinfo").read_text()
        return False

    def show_to_jobs(self, place: Path) -> None:
        """Give new jobs access to the scripts of the tests, and write access to a directory."""
        place.chmod(0o777)
        scripts = str(PROJECT_ROOT / "tests")
        self._declare({"path": scripts}, {"path": str(place), "writable": True})

    def allow_checkpoints(self, place: Path) -> None:
        """Allow new jobs to have their checkpoint directories in a directory."""
        self._declare({"path": str(place), "checkpoints": True})

    def _declare(self, *shown: dict[str, Any]) -> None:
        """Add visible paths to the declarations of all nodes."""
        mine = {one["path"] for one in shown}
        for home in self.homes:
            path = home / ".tessera" / confinement.DECLARATION_FILE
            declared = json.loads(path.read_text())
            others = [one for one in declared["visible_paths"] if one["path"] not in mine]
            path.write_text(json.dumps({**declared, "visible_paths": [*others, *shown]}))

    def logs(self) -> str:
        """Return the last lines of all children's logs, to diagnose failures."""
        parts = [self.output.read_text()[-3000:]] if self.output.exists() else []
        parts += [
            f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted((self.data / "processes").glob("*.log"))
        ]
        return "\n".join(parts)


@contextmanager
def whole_portal(folder: Path, *options: str, **environment: str) -> Iterator[WholePortal]:
    """Run a portal inside the block; remove it and its jobs afterwards."""
    portal = WholePortal(folder / "var", free_port(), environment, options)
    try:
        portal.up()
        yield portal
    finally:
        if portal.process is not None:
            try:
                portal.end()
            except subprocess.TimeoutExpired:
                portal.kill()
        for pid in portal.processes_of_runs():
            _kill(pid)
        for pid in portal.seen:
            wait_until(partial(_has_ended, pid), 60, f"the end of process {pid}")


def _has_ended(pid: int) -> bool:
    return not is_alive(pid)


def _processes() -> Iterator[tuple[int, set[bytes], str]]:
    """Yield every live process: ID, initial environment variables, name."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_alive(int(entry.name)):
            with suppress(OSError):
                words = set((entry / "environ").read_bytes().split(b"\0"))
                yield int(entry.name), words, (entry / "comm").read_text().strip()


def free_port() -> int:
    """Return an unused port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
