"""Two hosts of one installation with PostgreSQL, Redis and the demo's nodes; only for root.

Each host is a supervisor with its processes in a separate UTS and PID namespace, so that it has no
access to processes of the other host. It has a separate data directory and a shared directory of
logs. It reaches PostgreSQL and Redis by links that a test can break.
"""

import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import psycopg
import redis
from psycopg.rows import dict_row

from tessera.client import Client, ClientError
from tests.conftest import PROJECT_ROOT
from tests.support.servers import POSTGRES, Link, Postgres, broker, stop
from tests.support.waiting import is_alive, wait_until
from tests.support.whole_portal import ADMIN_PASSWORD, START_SECONDS, WholePortal, free_port

FIRST_GROUP: Final = 64_101
"""Unix group of the processes of the first host."""


class Breakable(Protocol):
    """The way of a host to a part that hosts share."""

    def cut(self) -> None:
        """Break it."""

    def mend(self) -> None:
        """Repair it."""

    def close(self) -> None:
        """End it with the host."""


class Database(Protocol):
    """The PostgreSQL server that accepts writes."""

    @property
    def port(self) -> int:
        """Return its port on loopback."""

    def restart(self) -> None:
        """Crash it and restart it at once."""


@dataclass
class Host:
    """One host.

    Attributes:
        links: ``database`` and ``broker``.
        group: the Unix group of its processes, which identifies its packets.
        extra: further environment variables of its processes.
        tree: the source tree of its version.
    """

    name: str
    data: Path
    port: int
    links: Mapping[str, Breakable]
    environment: dict[str, str]
    group: int
    extra: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    tree: Path = PROJECT_ROOT

    @property
    def url(self) -> str:
        """Return the URL of its portal."""
        return f"http://127.0.0.1:{self.port}"

    def begin(self) -> None:
        """Start the host."""
        inside = 'hostname "$0"; exec "$@"'
        command = [
            # First: a process that changes its group loses the signal of --kill-child.
            *("setpriv", f"--regid={self.group}", "--clear-groups"),
            *("unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"),
            *("sh", "-c", inside, self.name, sys.executable, "-m", "portal.supervisor"),
            *("--data-dir", str(self.data), "--port", str(self.port)),
        ]
        with self.data.with_name(f"{self.name}.out").open("a") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.tree,
                env=self.environment | self.extra | imports_of(self.tree),
            )  # fmt: skip

    def kill(self) -> None:
        """Kill all its processes at once, like a power cut."""
        assert self.process is not None
        members = self.members()
        self.process.kill()
        self.process.wait(timeout=60)
        self.process = None
        wait_until(lambda: not any(map(is_alive, members)), 60, f"the end of {self.name}")

    def end(self) -> None:
        """Shut it down cleanly."""
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
        """Return the IDs of its processes on the machine; the supervisor first."""
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
        """Suspend or resume it."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def others(self, word: bytes = b"") -> list[int]:
        """Return its processes except the supervisor; with a word, those with this argument."""
        found = []
        for pid in self.members()[1:] if self.process is not None else []:
            with suppress(OSError):
                if not word or word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found


@dataclass
class TwoHosts(WholePortal):
    """An installation on two hosts; requests go to any host that responds."""

    hosts: list[Host] = field(default_factory=list)
    server: Database = field(kw_only=True)
    broker: int = 0
    database: str = "tessera_faults"
    tree: Path = PROJECT_ROOT
    logins: dict[str, str] = field(default_factory=dict)

    def manage(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a management command of the version in ``tree``."""
        return manage_from(self.tree, self.variables(), *arguments)

    def client(self, user: str) -> Client:
        """Return a client of a demo user, at a running host."""
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
        """Query the database without the links."""
        with self.ask() as connection:
            return list(connection.execute(query, values))  # type: ignore[call-overload]

    def ask(self, name: str = "") -> "psycopg.Connection[dict[str, Any]]":
        """Return a separate connection."""
        return psycopg.connect(
            host="127.0.0.1", port=self.server.port, user="tessera",
            dbname=name or self.database, autocommit=True, row_factory=dict_row,
        )  # fmt: skip

    def variables(self) -> dict[str, str]:
        """Return the environment of a process that uses this installation."""
        known = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
        return known | {
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "TESSERA_DATA_DIR": str(self.data),
            "TESSERA_ROUND_SECONDS": "2",
            "TESSERA_DATABASE_URL": self.database_url(self.server.port),
            "TESSERA_REDIS_URL": f"redis://127.0.0.1:{self.broker}/0",
        }

    def database_url(self, port: int) -> str:
        """Return the URL of the database at a port on loopback."""
        return f"postgresql://tessera@127.0.0.1:{port}/{self.database}"

    def connect_broker(self) -> redis.Redis:
        """Return a connection to the broker without the links."""
        return redis.Redis(port=self.broker, socket_timeout=2)

    @property
    def ports(self) -> list[int]:
        """Return the ports of the web servers."""
        return [host.port for host in self.hosts]

    def strangers(self) -> dict[int, str]:
        """Return nothing: remaining processes of a host end with its namespace."""
        return {}

    def is_ready(self) -> bool:
        """Return whether all hosts report that every part works."""
        return all(_status(host) == 200 for host in self.hosts)

    def carriers(self) -> dict[str, int]:
        """Return the number of nodes that each host manages, by valid leases."""
        found = dict.fromkeys((host.name for host in self.hosts), 0)
        rows = self.rows("SELECT owner FROM workers_nodelease WHERE expires_at > now()")
        for row in rows:
            for name in found:
                found[name] += name in row["owner"]
        return found

    def logs(self) -> str:
        """Return the last output of all hosts."""
        return "\n".join(
            f"== {host.name} {path.name}\n{path.read_text()[-1000:]}"
            for host in self.hosts
            for path in sorted((host.data / "processes").glob("*.log"))
        )


@contextmanager
def two_hosts(
    folder: Path,
    *,
    extra: Mapping[str, dict[str, str]] = MappingProxyType({}),
    tree: Path = PROJECT_ROOT,
) -> Iterator[TwoHosts]:
    """Run both hosts inside the block; remove them and their jobs afterwards.

    Args:
        folder: parent of the data directories.
        tree: the source tree of the version that both hosts run.
        extra: further environment variables of the processes of ``host-a`` and ``host-b``.
    """
    data = folder / "host-a"
    with ExitStack() as stack:
        server = Postgres()
        stack.callback(server.stop)
        portal = TwoHosts(data, free_port(), server=server, tree=tree)
        portal.broker = stack.enter_context(broker())
        with portal.ask("postgres") as connection:
            connection.execute(f"CREATE DATABASE {portal.database}")
        furnish(portal, stack)
        _make_hosts(portal, folder, extra)
        with running_hosts(portal):
            yield portal


@contextmanager
def running_hosts(portal: TwoHosts) -> Iterator[None]:
    """Start all hosts; at the end, remove them and their jobs."""
    try:
        for host in portal.hosts:
            host.begin()
        wait_until(portal.is_ready, START_SECONDS, "both hosts")
        yield
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


def imports_of(tree: Path) -> dict[str, str]:
    """Return the variables with which Python imports the modules of a source tree."""
    return {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'src'}"}


def manage_from(
    tree: Path, variables: Mapping[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """Run a management command of a source tree."""
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        capture_output=True, text=True, check=False, cwd=tree, timeout=300,
        env={**variables, **imports_of(tree)},
    )  # fmt: skip


def can_make_hosts() -> str:
    """Return the reason why hosts cannot run here; empty if they can."""
    if os.getuid() != 0:
        return "namespaces of hosts need root"
    if not list(POSTGRES.glob("*/bin/initdb")):
        return "PostgreSQL is not installed"
    missing = [name for name in ("unshare", "setpriv", "redis-server") if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _make_hosts(portal: TwoHosts, folder: Path, extra: Mapping[str, dict[str, str]]) -> None:
    for name in ("host-a", "host-b"):
        data = folder / name
        if data != portal.data:
            data.mkdir(mode=0o700, exist_ok=True)
            for key in ("seal_secret", "secret_key", "ssh"):
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
        group = FIRST_GROUP + len(portal.hosts)
        host = Host(name, data, free_port(), links, environment, group)
        host.extra, host.tree = extra.get(name, {}), portal.tree
        portal.hosts.append(host)


def furnish(portal: TwoHosts, stack: ExitStack) -> None:
    """Create tables, keys, users and nodes; the nodes do not belong to a host."""
    made = portal.manage("set_up")
    assert made.returncode == 0, made.stderr
    demo = portal.data / "demo"
    demo.mkdir(mode=0o755, exist_ok=True)
    demo.chmod(0o755)
    key = next((portal.data / "ssh").glob("*.pub"))
    command = [sys.executable, "-m", "demo.nodes", str(demo)]
    nodes = subprocess.Popen(
        [*command, "--authorized-key", str(key)], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT_ROOT,
        env={**os.environ, "TESSERA_DATA_DIR": str(portal.data)},
    )  # fmt: skip
    stack.callback(stop, nodes)
    listing = demo / "nodes.json"
    wait_until(listing.exists, 60, "the nodes")
    order, answer = portal.data / "order", portal.data / "answer"
    content = {"create": "demo.content.seed", "source": str(listing)}
    wanted = {"admin_password": ADMIN_PASSWORD, "is_chosen": True, "content": content}
    order.write_text(json.dumps(wanted))
    made = portal.manage("set_up", "--order", str(order), "--answer", str(answer))
    assert made.returncode == 0, made.stderr
    portal.logins = json.loads(answer.read_text())["logins"]


def _status(host: Host) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", host.port, timeout=5)) as line:
        try:
            line.request("GET", "/readyz?strict=1")
            return line.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
