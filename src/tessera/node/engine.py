"""A few words of the container engine's API over its local unix socket.

Requests are HTTP/1.0, so that an answer is everything up to the end of the connection, also one
that goes on for days (the log, the wait for the end).
"""

from __future__ import annotations

import json
import socket
from typing import Any, List, Optional, Tuple

from tessera import protocol
from tessera.protocol import ContainerRef

ANSWER_SECONDS = 20.0
DEFAULT_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")
_MAX_HEAD, _MAX_BODY = 64 << 10, 8 << 20


class EngineError(Exception):
    """The engine refused or could not be reached.

    Attributes:
        status: its HTTP status; 0 when it could not be reached.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Answer:
    """An answer that comes in bit by bit over a socket that can be polled."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._head = b""
        self.status = 0
        self.closed = False

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self.connection.fileno()

    def receive(self) -> bytes:
        """What has come in of the body; empty when nothing has, or at the end (see ``closed``)."""
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
        """Let go of the connection."""
        if not self.closed:
            self.closed = True
            self.connection.close()


def open_request(ref_socket: str, method: str, path: str, *, timeout: float) -> Answer:
    """Send a request and return at once; the answer is received by the caller.

    Raises:
        EngineError: the socket cannot be reached.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout)
        connection.connect(ref_socket)
        head = f"{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        connection.sendall(head.encode("ascii"))
    except (OSError, ValueError) as error:
        connection.close()
        raise EngineError(f"the container engine cannot be reached: {error}") from None
    return Answer(connection)


def call(
    ref_socket: str, method: str, path: str, *, timeout: float = ANSWER_SECONDS
) -> Tuple[int, Any]:
    """Send a request and read the whole answer.

    Returns:
        HTTP status and the JSON of the body (None when there is none).

    Raises:
        EngineError: the engine cannot be reached or answers too late or too much.
    """
    answer = open_request(ref_socket, method, path, timeout=timeout)
    pieces: List[bytes] = []
    try:
        while not answer.closed:
            piece = answer.receive()
            pieces.append(piece)
            if sum(map(len, pieces)) > _MAX_BODY:
                raise EngineError("the engine's answer is too long")
            if not piece and not answer.closed and not answer.status:
                raise EngineError("the engine does not answer")
    finally:
        answer.close()
    if not answer.status:
        raise EngineError("the engine closed the connection")
    return answer.status, _json(b"".join(pieces))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body.strip() else None
    except ValueError:
        return None


def order(ref: ContainerRef, method: str, verb: str, *good: int) -> Any:
    """Call something on a container and see that the status is one of ``good``.

    Raises:
        EngineError: it is another, with the engine's own message.
    """
    status, body = call(ref.socket, method, f"/containers/{ref.name}{verb}")
    if status not in good:
        message = body.get("message") if isinstance(body, dict) else None
        raise EngineError(str(message or f"status {status}")[:2000], status)
    return body


def inspect(ref: ContainerRef) -> "dict[str, Any]":
    """What the engine knows of a container.

    Raises:
        EngineError: there is none, or the engine cannot be reached.
    """
    body = order(ref, "GET", "/json", 200)
    if not isinstance(body, dict) or not isinstance(body.get("State"), dict):
        raise EngineError("the engine's answer has no State")
    return body


def ensure_dead(ref: ContainerRef) -> bool:
    """Kill a container; True when it surely does not run."""
    try:
        order(ref, "POST", "/kill?signal=KILL", 204, 404, 409)
        found = inspect(ref)
    except EngineError as error:
        return error.status == 404
    return not found["State"].get("Running")


def remove(ref: ContainerRef) -> None:
    """Delete a container that has ended, with its volumes; one that is gone is fine.

    Raises:
        EngineError: the engine cannot be reached or refuses.
    """
    order(ref, "DELETE", "?v=1&force=1", 204, 404)


def version(ref_socket: str) -> Optional[str]:
    """The engine's version, or None when nothing answers there."""
    try:
        status, body = call(ref_socket, "GET", "/version", timeout=3.0)
    except EngineError:
        return None
    found = body.get("Version") if status == 200 and isinstance(body, dict) else None
    return str(found)[:128] if found else None


def failure_of_start(error: EngineError) -> str:
    """Whose fault it is that a container does not start."""
    text = str(error).lower()
    if "executable file not found" in text or "no such file or directory" in text:
        return protocol.IMAGE
    return protocol.PLATFORM if error.status == 404 else protocol.NODE
