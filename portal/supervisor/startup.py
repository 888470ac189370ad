"""Steps of a start: broker and nodes, database, web server and workers, readiness."""

import hashlib
import http.client
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from portal.supervisor.children import ChildProgram, last_lines
from portal.supervisor.files import DataDir, write_private
from portal.supervisor.options import ROOT, Options, make_password
from portal.supervisor.processes import ProcessTable
from portal.supervisor.redis_server import answers, find_redis, redis_command, socket_path
from portal.supervisor.silence import Probe
from portal.supervisor.supervisor import KilledError, StartupError, Supervisor

REDIS_SECONDS: Final = 15.0
CONTENT_SECONDS: Final = 30.0
"""Time in which the programs of a companion must be ready."""
COMMAND_SECONDS: Final = 300.0
READY_SECONDS: Final = 120.0
HOPELESS_AFTER: Final = 5
ASK_EVERY: Final = 0.4
LASTING: Final = frozenset({"clock", "disk"})
"""Parts that a start cannot repair, so it does not wait for them."""


class Companion(Protocol):
    """Programs and content that a start adds to the portal, such as the demo.

    Attributes:
        variables: default environment variables of all processes.
        content: dotted name of a function that ``set_up`` calls with ``source``. It creates
            missing content, and returns the password of each new user by name.
        source: path of the file that the function reads.
    """

    variables: Mapping[str, str]
    content: str
    source: Path

    def start(self, supervisor: "Supervisor", table: "ProcessTable") -> None:
        """Start the programs; raise ``StartupError`` if they cannot start."""

    def wait(self, supervisor: "Supervisor") -> None:
        """Wait until the programs are ready for the content; raise ``StartupError`` on failure."""

    def probes(self) -> Mapping[str, Probe]:
        """Return the health checks of programs without heartbeats, by name."""

    def lines(self) -> Sequence[str]:
        """Return lines for the console, printed when the portal is ready."""


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, which the supervisor holds across restarts of web processes.

    Raises:
        StartupError: the address is in use, or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host}:{port}: {error.strerror}. If another process uses the "
            f"port, choose another one with --port N."
        ) from error
    return listener


def start_redis(supervisor: Supervisor, table: ProcessTable, unix_socket: Path) -> None:
    """Start the embedded Redis and wait until it replies."""
    child = supervisor.add(table.redis(redis_command(find_redis(), table.data.redis, unix_socket)))
    if not supervisor.wait_until(lambda: answers(unix_socket), REDIS_SECONDS):
        raise StartupError("Redis does not respond", last_lines(child.log))


def prepare_database(
    supervisor: Supervisor, table: ProcessTable, options: Options, companion: Companion | None
) -> dict[str, Any]:
    """Migrate the database, and create the admin and the companion's content if missing.

    Secrets are passed in a file that only its owner can read, and that is deleted at once. The
    programs of the companion (demo nodes) start while the tables are created.

    Returns:
        ``admin`` (created, kept or changed), and ``logins`` (password of each new user by name).
    """
    order = table.data.run / f"order-{secrets.token_hex(4)}.json"
    answer = order.with_suffix(".answer")
    wanted = {
        "admin_password": options.admin_password or make_password(),
        "is_chosen": bool(options.admin_password),
        "content": companion and {"create": companion.content, "source": str(companion.source)},
    }

    def give_order() -> None:
        if companion is not None:
            companion.wait(supervisor)
        write_private(order, json.dumps(wanted))

    try:
        command = table.manage("set_up", "--order", str(order), "--answer", str(answer))
        run_to_its_end(supervisor, command, give_order)
        made: dict[str, Any] = json.loads(answer.read_text())
    finally:
        order.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
    return made


def run_to_its_end(
    supervisor: Supervisor, command: ChildProgram, meanwhile: Callable[[], None]
) -> None:
    """Run an idempotent command, up to 3 times if signals end it."""
    for tries_left in (2, 1, 0):
        try:
            supervisor.run_once(command, seconds=COMMAND_SECONDS, meanwhile=meanwhile)
        except KilledError:
            if not tries_left:
                raise
        else:
            return


def start_portal(supervisor: Supervisor, table: ProcessTable, handle: int) -> None:
    for program in (table.web(handle), *table.workers(), table.beat()):
        supervisor.add(program)


def await_ready(supervisor: Supervisor, address: tuple[str, int], name: str) -> Mapping[str, Any]:
    """Wait until the portal reports that it is ready.

    Args:
        supervisor: supervises the processes meanwhile.
        address: host and port of the portal.
        name: a host name that the portal accepts.

    Returns:
        The failing parts; empty if every part works.

    Raises:
        StartupError: a process ends repeatedly.
    """
    last: dict[str, Any] = {"web": "does not respond"}
    asked_at = float("-inf")

    def is_ready() -> bool:
        nonlocal asked_at
        for child in supervisor.children.values():
            if child.failures >= HOPELESS_AFTER:
                raise StartupError(f"{child.program.name} does not start", last_lines(child.log))
        if time.monotonic() - asked_at < ASK_EVERY:
            return False
        asked_at = time.monotonic()
        status, body = ask(*address, "/readyz?strict=1", name=name)
        failing = failing_parts(body)
        if failing or status == 200:
            last.clear()
            last.update(failing)
        return status == 200 or (bool(failing) and failing.keys() <= LASTING)

    supervisor.wait_until(is_ready, READY_SECONDS)
    return last


def failing_parts(body: Mapping[str, Any]) -> dict[str, str]:
    """Return names and codes of the failing parts in a response of ``/readyz``."""
    found = body.get("parts")
    if not isinstance(found, dict):
        return {}
    return {name: str(part["detail"]) for name, part in found.items() if not part["ok"]}


def ask(host: str, port: int, path: str, *, name: str) -> tuple[int, dict[str, Any]]:
    """Return status and body of a small JSON resource; status 0 without a response."""
    with closing(http.client.HTTPConnection(host, port, timeout=2)) as line:
        try:
            line.request("GET", path, headers={"Host": name})
            response = line.getresponse()
            body = json.loads(response.read(65536))
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
    return response.status, body if isinstance(body, dict) else {}


def redis_socket(data: DataDir) -> Path:
    return socket_path(data.redis)


def probes(unix_socket: Path | None, companion: Companion | None) -> dict[str, Probe]:
    """Return the health checks of programs without heartbeats, by name."""
    found: dict[str, Probe] = {}
    if unix_socket is not None:
        found["redis"] = partial(answers, unix_socket)
    if companion is not None:
        found |= companion.probes()
    return found


ROOMS: Final = ("portal", "scheduling", "tenants", "workers")


def fingerprint(data_dir: Path, environment: Mapping[str, str], root: Path = ROOT) -> str:
    """Return a hash of migrations, package locks, and the identity of the database.

    Args:
        data_dir: directory of the SQLite file if no other database is set.
        environment: environment of the children.
        root: root directory of the project.
    """
    found = hashlib.sha256()
    migrations = (path for room in ROOMS for path in (root / room).glob("migrations/*.py"))
    for path in (root / "requirements" / "server.txt", *sorted(migrations)):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    found.update(_database(data_dir, environment).encode())
    return found.hexdigest()


def is_prepared(stamp: Path, wanted: str) -> bool:
    """Return whether ``set_up`` has succeeded for this fingerprint."""
    try:
        return bool(json.loads(stamp.read_text())["fingerprint"] == wanted)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def note_prepared(stamp: Path, found: str) -> None:
    """Store the fingerprint; if the disk is full, the next start runs ``set_up`` again."""
    with suppress(OSError):
        write_private(stamp, json.dumps({"fingerprint": found}) + "\n")


def _database(data_dir: Path, environment: Mapping[str, str]) -> str:
    url = environment.get("TESSERA_DATABASE_URL", "")
    if url:
        return url
    # A file that was removed or restored gets another identity.
    try:
        status = (data_dir / "db.sqlite3").stat()
    except OSError:
        return "missing"
    return f"{status.st_dev}:{status.st_ino}"
