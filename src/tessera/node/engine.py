"""Client of the container engine's API over its local Unix socket.

Requests are HTTP/1.0: a response ends with the connection, also one
that lasts for days (the log, the wait for the end).
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tessera import protocol
from tessera.protocol import ContainerRef, Json

ANSWER_SECONDS = 20.0
PROBE_SECONDS = 3.0
DOCKER, PODMAN = "docker", "podman"
RUN_LABEL = "tessera.run"
ROOTFUL_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock")
_USERS_SOCKETS = ("docker.sock", "podman/podman.sock")
_MAX_HEAD, _MAX_BODY = 64 << 10, 8 << 20


class EngineError(Exception):
    """The engine refused or is unreachable.

    Attributes:
        status: HTTP status of the engine; 0 if unreachable.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class EngineResponse:
    """A response that arrives in parts over a socket that can be polled."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._head = b""
        self.status = 0
        self.closed = False

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.connection.fileno()

    def receive(self) -> bytes:
        """Return received bytes of the body; empty without data, or at the end (``closed``)."""
        try:
            received = self.connection.recv(1 << 16)
        except (BlockingIOError, socket.timeout):
            return b""
        except OSError:
            received = b""
        if not received:
            self.close()
            return b""
        return received if self.status else self._take_head(received)

    def _take_head(self, received: bytes) -> bytes:
        self._head += received
        head, end, body = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(self._head) > _MAX_HEAD:
                self.close()
            return b""
        words = head.split(b" ", 2)
        good = len(words) > 1 and words[1].isdigit()
        self.status = int(words[1]) if good else 599
        return body

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.close()


def open_request(
    ref_socket: str,
    method: str,
    path: str,
    *,
    timeout: float,
    body: bytes = b"",
    content_type: str = "application/json",
) -> EngineResponse:
    """Send a request and return at once; the caller receives the response.

    Raises:
        EngineError: the socket cannot be reached.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout)
        connection.connect(ref_socket)
        head = f"{method} {path} HTTP/1.0\r\nHost: localhost\r\n"
        if body:
            head += f"Content-Type: {content_type}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode("ascii") + body)
    except (OSError, ValueError) as error:
        connection.close()
        raise EngineError(f"the container engine cannot be reached: {error}") from None
    return EngineResponse(connection)


def open_call(ref: ContainerRef, method: str, verb: str) -> EngineResponse:
    """Call a method of a container; receiving the response never blocks.

    Raises:
        EngineError: the engine cannot be reached.
    """
    path = f"/containers/{ref.name}{verb}"
    answer = open_request(ref.socket, method, path, timeout=ANSWER_SECONDS)
    answer.connection.setblocking(False)
    return answer


def call(
    ref_socket: str,
    method: str,
    path: str,
    *,
    timeout: float = ANSWER_SECONDS,
    body: Optional[Json] = None,
) -> Tuple[int, Any]:
    """Send a request and read the complete response.

    Returns:
        HTTP status and the JSON of the body (None when there is none).

    Raises:
        EngineError: the engine is unreachable, or its response is late or too long.
    """
    content = b"" if body is None else json.dumps(body).encode("ascii")
    answer = open_request(ref_socket, method, path, timeout=timeout, body=content)
    received = read_whole(answer, timeout=timeout)
    return answer.status, _json(received)


def read_whole(answer: EngineResponse, *, timeout: float) -> bytes:
    """Read the body of a response, up to the end of the connection.

    Args:
        answer: response to a request that was sent with the same timeout.
        timeout: seconds without new data after which the read fails.

    Raises:
        EngineError: the response is late, too long, or has no status.
    """
    pieces: List[bytes] = []
    try:
        while not answer.closed:
            since = time.monotonic()
            piece = answer.receive()
            pieces.append(piece)
            if sum(map(len, pieces)) > _MAX_BODY:
                raise EngineError("the engine's response is too long")
            if not piece and not answer.closed and time.monotonic() - since >= timeout:
                raise EngineError("the engine does not respond")
    finally:
        answer.close()
    if not answer.status:
        raise EngineError("the engine closed the connection")
    return b"".join(pieces)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body.strip() else None
    except ValueError:
        return None


def order(ref: ContainerRef, method: str, verb: str, *good: int) -> Any:
    """Call a method of a container and check that the status is one of ``good``.

    Raises:
        EngineError: the status is another, with the engine's own message.
    """
    status, body = call(ref.socket, method, f"/containers/{ref.name}{verb}")
    if status not in good:
        raise EngineError(message_of(status, body), status)
    return body


def message_of(status: int, body: Any) -> str:
    """Return the engine's message in a response, or its status."""
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or f"status {status}")[:2000]


def execute(ref: ContainerRef, command: List[str]) -> Tuple[int, str]:
    """Execute a command in a running container and wait for its end.

    Returns:
        Its exit code and its output.

    Raises:
        EngineError: the engine refuses, or the command takes too long.
    """
    asked = {"Cmd": command, "AttachStdout": True, "AttachStderr": True, "Tty": True}
    status, body = call(ref.socket, "POST", f"/containers/{ref.name}/exec", body=asked)
    if status != 201 or not isinstance(body, dict):
        raise EngineError(message_of(status, body), status)
    path = f"/exec/{body.get('Id')}"
    start = json.dumps({"Detach": False, "Tty": True}).encode("ascii")
    answer = open_request(ref.socket, "POST", f"{path}/start", timeout=ANSWER_SECONDS, body=start)
    output = read_whole(answer, timeout=ANSWER_SECONDS)
    status, body = call(ref.socket, "GET", f"{path}/json")
    code = body.get("ExitCode") if isinstance(body, dict) else None
    if status != 200 or not isinstance(code, int):
        raise EngineError(message_of(status, body), status)
    return code, output.decode("utf-8", "replace").strip()


def import_image(ref_socket: str, archive: bytes, name: str) -> None:
    """Import a tar archive of a root directory as image ``name``, with its tag.

    Raises:
        EngineError: the engine refuses or cannot be reached.
    """
    path = f"/images/create?fromSrc=-&repo={name}"  # Podman ignores the parameter "tag"
    answer = open_request(
        ref_socket,
        "POST",
        path,
        timeout=ANSWER_SECONDS,
        body=archive,
        content_type="application/x-tar",
    )
    received = read_whole(answer, timeout=ANSWER_SECONDS)
    if answer.status != 200 or b'"error"' in received:
        raise EngineError(received.decode("utf-8", "replace")[:500], answer.status)


def inspect(ref: ContainerRef) -> "dict[str, Any]":
    """Return the engine's description of a container.

    Raises:
        EngineError: the container does not exist, or the engine cannot be reached.
    """
    body = order(ref, "GET", "/json", 200)
    if not isinstance(body, dict) or not isinstance(body.get("State"), dict):
        raise EngineError("the engine's response has no State")
    return body


def owner(ref: ContainerRef) -> str:
    """Return the run in the label of a container; empty without a label of Tessera."""
    try:
        found = inspect(ref)
    except EngineError:
        return ""
    return str((found.get("Config", {}).get("Labels") or {}).get(RUN_LABEL, ""))


def remove_own(ref: ContainerRef) -> None:
    """Delete the container and the network of a run that has not started, if they are the run's.

    Raises:
        EngineError: the engine cannot be reached or refuses.
    """
    for name in filter(None, (ref.name, ref.network)):
        one = ContainerRef(name=name, socket=ref.socket)
        if owner(one) == ref.name:
            remove(one)


def ensure_dead(ref: ContainerRef) -> bool:
    """Kill a container; return True if it certainly does not run."""
    try:
        order(ref, "POST", "/kill?signal=KILL", 204, 404, 409)
    except EngineError:
        pass  # Podman responds with 500 for an ended container; its state decides
    try:
        found = inspect(ref)
    except EngineError as error:
        return error.status == 404
    return not found["State"].get("Running")


def remove(ref: ContainerRef) -> None:
    """Delete a container that has ended, with its volumes and its network.

    A container that does not exist is not an error.

    Raises:
        EngineError: the engine cannot be reached or refuses.
    """
    order(ref, "DELETE", "?v=1&force=1", 204, 404)
    if ref.network:
        remove(ContainerRef(name=ref.network, socket=ref.socket))


class Engine(NamedTuple):
    """A container engine that responds on this node.

    Attributes:
        kind: ``docker`` or ``podman``.
        rootless: whether the engine runs without root.
        runtimes: names of its container runtimes.
        has_cdi: whether it reads specifications of the Container Device Interface.
    """

    socket: str
    kind: str
    version: str
    rootless: bool
    runtimes: Tuple[str, ...] = ()
    has_cdi: bool = False

    @property
    def release(self) -> Tuple[int, ...]:
        """First two numbers of the version; (0, 0) if it has another form."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(found.group(1)), int(found.group(2))) if found else (0, 0)

    @property
    def description(self) -> str:
        """Kind, version and rights, for people."""
        return f"{self.kind} {self.version}, {'rootless' if self.rootless else 'with root'}"


def sockets() -> List[str]:
    """Return the sockets of engines, those of this user first: they need no root."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"]
    own = [os.path.join(place, name) for place in places if place for name in _USERS_SOCKETS]
    return list(dict.fromkeys([*own, *ROOTFUL_SOCKETS]))


def find_engines(places: Sequence[str]) -> List[Engine]:
    """Return the engines that respond at the given sockets, in that order, without duplicates."""
    found: Dict[str, Engine] = {}
    for place in places:
        one = identify(place) if os.path.exists(place) else None
        if one is not None:
            found.setdefault(os.path.realpath(place), one)
    return list(found.values())


def identify(socket_path: str) -> Optional[Engine]:
    """Return kind and version of the engine at a socket; None if it does not respond."""
    try:
        _, about = call(socket_path, "GET", "/version", timeout=PROBE_SECONDS)
        _, state = call(socket_path, "GET", "/info", timeout=PROBE_SECONDS)
    except EngineError:
        return None
    if not isinstance(about, dict) or not isinstance(state, dict) or not about.get("Version"):
        return None
    kind = PODMAN if "podman" in json.dumps(about.get("Components") or "").lower() else DOCKER
    options = state.get("SecurityOptions") or ()
    rootless = any("rootless" in str(option) for option in options)
    runtimes = state.get("Runtimes")
    return Engine(
        socket_path,
        kind,
        str(about["Version"])[:128],
        rootless,
        tuple(map(str, runtimes)) if isinstance(runtimes, dict) else (),
        bool(state.get("CDISpecDirs")),
    )


def failure_of_start(error: EngineError) -> str:
    """Return the failure class of a container that does not start."""
    text = str(error).lower()
    if "executable file not found" in text or "no such file or directory" in text:
        return protocol.IMAGE
    return protocol.PLATFORM if error.status == 404 else protocol.NODE
