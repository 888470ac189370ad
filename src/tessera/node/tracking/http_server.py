"""A small HTTP server in the loop of a runner, for the processes of its job.

Each turn reads and answers at most one request of each connection. Requests have a bounded size
and must arrive in time; their number and bytes have a rate, above which they wait in the sockets.
"""

from __future__ import annotations

import json
import re
import select
import socket
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import parse_qsl, unquote

from tessera.node.tracking.mlflow_api import NO_ARTIFACTS, Answer

MOST_CONNECTIONS = 32
MOST_HEAD_BYTES, MOST_BODY_BYTES = 16 << 10, 1 << 20
MOST_DROPPED_BYTES = 64 << 20
"""Bytes of a refused body that are read, so that the client gets the answer."""
REQUEST_SECONDS, IDLE_SECONDS = 10.0, 120.0
RATE, BURST = 100.0, 500.0
"""Requests per second, and at once; each 16 KiB of a body or an answer count as one more."""
CONNECTION_COST, LEAST_COST = 10.0, 0.05
BYTES_A_REQUEST = 16 << 10
READ_BYTES = 64 << 10
_REQUEST_LINE = re.compile(r"([A-Z]{3,7}) (/[\x21-\x7e]*) HTTP/1\.[01]")
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 501: "Not Implemented"}

Handler = Callable[[str, str, Dict[str, str], bytes], Answer]


class Request(NamedTuple):
    """A request without its body."""

    method: str
    path: str
    query: Dict[str, str]
    length: int


class MalformedError(Exception):
    """A request is not valid; the connection is closed after this answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"error_code": code, "message": message})


class _Connection:
    """One client; ``since`` is the start of a request, or of the wait for one."""

    def __init__(self, line: socket.socket, now: float) -> None:
        self.line, self.since = line, now
        self.received = bytearray()
        self.request: Optional[Request] = None
        self.to_send = b""
        self.dropped = 0
        self.is_last = False


class HttpServer:
    """Serves a listening socket without blocking.

    Args:
        listener: of loopback.
        handler: answers a request.
        is_allowed: whether a client with this address may connect.
        clock: seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        handler: Handler,
        is_allowed: Callable[[Tuple[str, int]], bool],
        clock: Callable[[], float],
    ) -> None:
        self._listener, self._handler = listener, handler
        self._is_allowed, self._clock = is_allowed, clock
        self._connections: Dict[int, _Connection] = {}
        self._budget, self._filled_at = BURST, clock()
        listener.setblocking(False)

    def interests(self, *, accepts: bool) -> List[Tuple[int, int]]:
        """Return descriptors and events to wait for.

        Args:
            accepts: whether reports can be sent now; requests wait otherwise.
        """
        reads = select.POLLIN if accepts and self._refill() > 0 else 0
        found = [(self._listener.fileno(), reads)]
        for number, one in self._connections.items():
            found.append((number, select.POLLOUT if one.to_send else reads))
        return found

    def next_at(self) -> float:
        """Return the seconds until the next deadline or request within the rate."""
        return 1.0 if self._budget > 0 else min(1.0, (1.0 - self._budget) / RATE)

    def serve(self, ready: List[int]) -> None:
        """Serve the descriptors that are ready, and close connections that are late."""
        now = self._clock()
        had_budget = self._budget > 0
        for number in ready:
            one = self._connections.get(number)
            if number == self._listener.fileno():
                self._accept(now)
            elif one is not None and (one.to_send or self._budget > 0 or not had_budget):
                # Without budget at first, only ended connections are ready.
                self._serve_one(number, one, now)
        for number, one in list(self._connections.items()):
            is_idle = not one.received and one.request is None and not one.to_send
            if now - one.since > (IDLE_SECONDS if is_idle else REQUEST_SECONDS):
                self._close(number)

    def close(self) -> None:
        """Close all sockets."""
        for number in list(self._connections):
            self._close(number)
        self._listener.close()

    def _refill(self) -> float:
        now = self._clock()
        self._budget = min(BURST, self._budget + (now - self._filled_at) * RATE)
        self._filled_at = now
        return self._budget

    def _accept(self, now: float) -> None:
        try:
            line, address = self._listener.accept()
        except OSError:
            return
        self._budget -= CONNECTION_COST
        if not self._is_allowed(address):
            line.close()
            return
        line.setblocking(False)
        if len(self._connections) >= MOST_CONNECTIONS:
            self._close(min(self._connections, key=lambda one: self._connections[one].since))
        self._connections[line.fileno()] = _Connection(line, now)

    def _close(self, number: int) -> None:
        self._connections.pop(number).line.close()

    def _serve_one(self, number: int, one: _Connection, now: float) -> None:
        try:
            if one.to_send:
                one.to_send = one.to_send[one.line.send(one.to_send) :]
            else:
                piece = one.line.recv(READ_BYTES)
                if not piece:
                    self._close(number)
                    return
                self._budget -= max(LEAST_COST, len(piece) / BYTES_A_REQUEST)
                self._take(one, piece, now)
        except BlockingIOError:
            return
        except OSError:
            self._close(number)
            return
        if one.is_last and not one.to_send and not self._is_draining(one):
            self._close(number)

    @staticmethod
    def _is_draining(one: _Connection) -> bool:
        """Return whether the rest of a refused body is still to be read."""
        left = 0 if one.request is None else one.request.length - one.dropped
        return left > 0 and one.dropped < MOST_DROPPED_BYTES

    def _take(self, one: _Connection, piece: bytes, now: float) -> None:
        if one.is_last:
            one.dropped += len(piece)
            return
        if not one.received and one.request is None:
            one.since = now
        one.received += piece
        try:
            self._advance(one, now)
        except MalformedError as error:
            one.is_last = True
            one.dropped = len(one.received)
            self._send(one, error.answer)

    def _advance(self, one: _Connection, now: float) -> None:
        """Answer a request once it is complete; clients do not send the next one before."""
        if one.request is None:
            head, found, rest = bytes(one.received).partition(b"\r\n\r\n")
            if not found:
                if len(one.received) > MOST_HEAD_BYTES:
                    raise MalformedError(400, "BAD_REQUEST", "The header is too long.")
                return
            one.received = bytearray(rest)
            one.request = read_head(head)
            if "artifacts" in one.request.path:
                raise MalformedError(501, "NOT_IMPLEMENTED", NO_ARTIFACTS)
            if one.request.length > MOST_BODY_BYTES:
                message = f"A body has at most {MOST_BODY_BYTES} bytes."
                raise MalformedError(400, "INVALID_PARAMETER_VALUE", message)
        request = one.request
        if len(one.received) < request.length:
            return
        body = bytes(one.received[: request.length])
        one.received, one.request = one.received[request.length :], None
        one.since = now
        self._budget -= 1
        self._send(one, self._handler(request.method, request.path, request.query, body))
        if one.received:
            one.is_last = True  # pipelined requests are not served

    def _send(self, one: _Connection, answer: Answer) -> None:
        body = json.dumps(answer.body, separators=(",", ":")).encode("ascii")
        last = "close" if one.is_last else "keep-alive"
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Error')}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"Connection: {last}\r\n\r\n"
        )
        one.to_send = head.encode("ascii") + body
        self._budget -= len(body) / BYTES_A_REQUEST


def read_head(head: bytes) -> Request:
    """Read request line and headers.

    Raises:
        MalformedError: they are not valid, or the body has no length.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if len(head) > MOST_HEAD_BYTES or found is None:
        raise MalformedError(400, "BAD_REQUEST", "The request is not valid HTTP/1.1.")
    headers: Dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    path, _, query = found[2].partition("?")
    if "transfer-encoding" in headers and "artifacts" not in path:
        raise MalformedError(400, "BAD_REQUEST", "A body needs a Content-Length.")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > 15:
        raise MalformedError(400, "BAD_REQUEST", "The Content-Length is not valid.")
    try:
        fields = dict(parse_qsl(query, max_num_fields=50))
    except ValueError:
        raise MalformedError(400, "BAD_REQUEST", "The query is not valid.") from None
    return Request(found[1], unquote(path), fields, int(length))
