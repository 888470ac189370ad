"""Two hosts of one installation with PostgreSQL, Redis and the demo's nodes; only for root.

Each host is a supervisor with all its processes in an own UTS and PID namespace, so that no host
can look at the other's processes, with a data directory of its own and a shared directory of
logs. It reaches PostgreSQL and Redis by links that can be cut without a word.
"""

import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import redis
from psycopg.rows import dict_row

from tessera.client import Client, ClientError
from tests.conftest import PROJECT_ROOT
from tests.support.waiting import is_alive, wait_until
from tests.support.whole_portal import ADMIN_PASSWORD, START_SECONDS, WholePortal, free_port

POSTGRES: Final = Path("/usr/lib/postgresql")
NOBODY: Final = 65_534
CHUNK: Final = 1 << 16


class Link:
    """A port of loopback from which connections are forwarded while the link is whole."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let no byte through; connections stay open and hear nothing."""
        self._whole.clear()

    def mend(self) -> None:
        """Let everything through again, also what waited."""
        self._whole.set()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(line,), daemon=True).start()

    def _join(self, line: socket.socket) -> None:
        self._whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=10)
        except OSError:
            line.close()
            return
        far.settimeout(None)
        threading.Thread(target=self._carry, args=(far, line), daemon=True).start()
        self._carry(line, far)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._whole.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Postgres:
    """A PostgreSQL server of its own, run by an ordinary user."""

    def __init__(self) -> None:
        self.port = free_port()
        self._programs = max(POSTGRES.glob("*/bin"))
        # Not below pytest's directories, which other users may not enter.
        self._folder = Path(tempfile.mkdtemp(prefix="tessera-postgres-"))
        os.chown(self._folder, NOBODY, NOBODY)
        made = ("-U", "tessera", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        self._run("initdb", *made)
        self._start()

    def restart(self) -> None:
        """Crash it and start it again at once."""
        self._control("-m", "immediate", "stop")
        self._start()

    def stop(self) -> None:
        """End it and remove its files."""
        self._control("-m", "immediate", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._control("-l", str(self._folder / "log"), "-o", options, "start")

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-w", "-s", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        who = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        subprocess.run(
            [*who, str(self._programs / program), "-D", str(self._folder / "data"), *arguments],
            check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip


@dataclass
class Host:
    """One host.

    Attributes:
        links: ``database`` and ``broker``.
        extra: further variables of its processes.
    """

    name: str
    data: Path
    port: int
    links: dict[str, Link]
    environment: dict[str, str]
    extra: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Where its portal answers."""
        return f"http://127.0.0.1:{self.port}"

    def begin(self) -> None:
        """Switch it on."""
        inside = 'hostname "$0"; exec "$@"'
        command = [
            *("unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"),
            *("sh", "-c", inside, self.name, sys.executable, "-m", "portal.supervisor"),
            *("--data-dir", str(self.data), "--port", str(self.port), "--no-demo"),
        ]
        with self.data.with_name(f"{self.name}.out").open("a") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=PROJECT_ROOT,
                env=self.environment | self.extra,
            )  # fmt: skip

    def kill(self) -> None:
        """Switch it off: all its processes are gone at once."""
        assert self.process is not None
        members = self.members()
        self.process.kill()
        self.process.wait(timeout=60)
        self.process = None
        wait_until(lambda: not any(map(is_alive, members)), 60, f"the end of {self.name}")

    def end(self) -> None:
        """Stop it in order."""
        for pid in self.members():
            with suppress(OSError):
                if b"portal.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGTERM)
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=60)
                self.process = None
        if self.process is not None:
            self.kill()

    def members(self) -> list[int]:
        """Its processes, by the ids of the machine; the supervisor first."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        if not children.split():
            return []
        first = children.split()[0]
        space = Path(f"/proc/{first}/ns/pid").readlink()
        found = [int(first)]
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                mine = entry.name.isdigit() and (entry / "ns/pid").readlink() == space
                if mine and entry.name != first:
                    found.append(int(entry.name))
        return found

    def send_to_all(self, number: signal.Signals) -> None:
        """Freeze or thaw it."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_one(self, rng: random.Random) -> None:
        """Kill any of its processes but the supervisor."""
        assert self.process is not None
        others = self.members()[1:]
        if others:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(others), signal.SIGKILL)


@dataclass
class TwoHosts(WholePortal):
    """An installation on two hosts; whoever is asked for the portal gets any that answers."""

    hosts: list[Host] = field(default_factory=list)
    server: Postgres = field(kw_only=True)
    broker: int = 0
    database: str = "tessera_faults"
    logins: dict[str, str] = field(default_factory=dict)

    def client(self, user: str) -> Client:
        """A client of a demo user, at a host that runs."""
        token = self.token(user)
        running = [host for host in self.hosts if host.process is not None]
        return Client(random.choice(running or self.hosts).url, token, timeout_seconds=15.0)

    def _make_token(self, user: str) -> str:
        keys: list[str] = []

        def is_made() -> bool:
            with suppress(ClientError), Client(self.hosts[0].url, timeout_seconds=30.0) as client:
                token = client.create_token(
                    name="faults", scopes=["jobs:read", "jobs:write"],
                    user=user, password=self.logins[user],
                )  # fmt: skip
                keys.append(token.key)
            return bool(keys)

        wait_until(is_made, 60, "a token")
        return keys[-1]

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Ask the database, past all links."""
        with self.ask() as connection:
            return list(connection.execute(query, values))  # type: ignore[call-overload]

    def ask(self, name: str = "") -> "psycopg.Connection[dict[str, Any]]":
        """A connection of its own."""
        return psycopg.connect(
            host="127.0.0.1", port=self.server.port, user="tessera",
            dbname=name or self.database, autocommit=True, row_factory=dict_row,
        )  # fmt: skip

    def variables(self) -> dict[str, str]:
        """The environment of a process that works on this installation."""
        known = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
        return known | {
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "TESSERA_DATA_DIR": str(self.data),
            "TESSERA_ROUND_SECONDS": "2",
            "TESSERA_DATABASE_URL": self.database_url(self.server.port),
            "TESSERA_REDIS_URL": f"redis://127.0.0.1:{self.broker}/0",
        }

    def database_url(self, port: int) -> str:
        """The database by a port of loopback."""
        return f"postgresql://tessera@127.0.0.1:{port}/{self.database}"

    def strangers(self) -> dict[int, str]:
        """Nothing: what a host leaves behind ends with its namespace."""
        return {}

    def is_ready(self) -> bool:
        """Whether all hosts say that every part works."""
        return all(_status(host) == 200 for host in self.hosts)

    def carriers(self) -> dict[str, int]:
        """How many nodes are carried by the processes of each host, by valid leases."""
        found = dict.fromkeys((host.name for host in self.hosts), 0)
        rows = self.rows("SELECT owner FROM workers_nodelease WHERE expires_at > now()")
        for row in rows:
            for name in found:
                found[name] += name in row["owner"]
        return found

    def logs(self) -> str:
        """The ends of what all hosts have said."""
        return "\n".join(
            f"== {host.name} {path.name}\n{path.read_text()[-1000:]}"
            for host in self.hosts
            for path in sorted((host.data / "processes").glob("*.log"))
        )


@contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Both hosts, up; at the end nothing of them and of their jobs is left."""
    data = folder / "host-a"
    with ExitStack() as stack:
        server = Postgres()
        stack.callback(server.stop)
        portal = TwoHosts(data, free_port(), server=server)
        portal.broker = stack.enter_context(_broker())
        with portal.ask("postgres") as connection:
            connection.execute(f"CREATE DATABASE {portal.database}")
        _furnish(portal, stack)
        _make_hosts(portal, folder)
        try:
            for host in portal.hosts:
                host.begin()
            wait_until(portal.is_ready, START_SECONDS, "both hosts")
            yield portal
        finally:
            for host in portal.hosts:
                if host.process is not None:
                    host.send_to_all(signal.SIGCONT)
                    host.end()
                for link in host.links.values():
                    link.close()
            for pid in portal.processes_of_runs():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def can_make_hosts() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.getuid() != 0:
        return "namespaces of hosts need root"
    if not list(POSTGRES.glob("*/bin/initdb")):
        return "PostgreSQL is not installed"
    missing = [name for name in ("unshare", "setpriv", "redis-server") if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _make_hosts(portal: TwoHosts, folder: Path) -> None:
    for name in ("host-a", "host-b"):
        data = folder / name
        if data != portal.data:
            data.mkdir(mode=0o700)
            for key in ("secret_key", "ssh"):
                subprocess.run(["cp", "-a", str(portal.data / key), str(data)], check=True)
            (portal.data / "logs").mkdir(exist_ok=True)
            (data / "logs").symlink_to(portal.data / "logs")
        links = {"database": Link(portal.server.port), "broker": Link(portal.broker)}
        environment = portal.variables() | {
            "TESSERA_DATABASE_URL": portal.database_url(links["database"].port),
            "TESSERA_REDIS_URL": f"redis://127.0.0.1:{links['broker'].port}/0",
            "TESSERA_IMAGES": "ignore",
            "TESSERA_ADMIN_PASSWORD": ADMIN_PASSWORD,
        }
        del environment["TESSERA_DATA_DIR"]
        portal.hosts.append(Host(name, data, free_port(), links, environment))


def _furnish(portal: TwoHosts, stack: ExitStack) -> None:
    """Make tables, keys, people and nodes; the nodes belong to no host."""
    made = portal.manage("set_up")
    assert made.returncode == 0, made.stderr
    demo = portal.data / "demo"
    demo.mkdir(mode=0o755)
    key = next((portal.data / "ssh").glob("*.pub"))
    command = [sys.executable, "-m", "portal.supervisor.demo_nodes", str(demo)]
    nodes = subprocess.Popen(
        [*command, "--authorized-key", str(key)], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT_ROOT,
        env={**os.environ, "TESSERA_DATA_DIR": str(portal.data)},
    )  # fmt: skip
    stack.callback(_stop, nodes)
    listing = demo / "nodes.json"
    wait_until(listing.exists, 60, "the nodes")
    order, answer = portal.data / "order", portal.data / "answer"
    wanted = {"admin_password": ADMIN_PASSWORD, "is_chosen": True, "demo_nodes": str(listing)}
    order.write_text(json.dumps(wanted))
    made = portal.manage("set_up", "--order", str(order), "--answer", str(answer))
    assert made.returncode == 0, made.stderr
    portal.logins = json.loads(answer.read_text())["logins"]


@contextmanager
def _broker() -> Iterator[int]:
    port = free_port()
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/tmp",
    )  # fmt: skip

    def answers() -> bool:
        with suppress(redis.RedisError), redis.Redis(port=port) as broker:
            return bool(broker.ping())
        return False

    try:
        wait_until(answers, 30, "Redis")
        yield port
    finally:
        _stop(server)


def _status(host: Host) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", host.port, timeout=5)) as line:
        try:
            line.request("GET", "/readyz?strict=1")
            return line.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
    process.wait()
