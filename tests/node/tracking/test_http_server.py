"""The server of the endpoint answers whole requests, and bounds clients that are not honest."""

import json
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tessera.node.tracking import http_server
from tessera.node.tracking.http_server import HttpServer, MalformedError, read_head
from tessera.node.tracking.mlflow_api import Answer


class Place:
    """A server with a clock of its own."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.now = 0.0
        self.is_allowed = True
        self.calls: list[tuple[str, str, dict[str, str], bytes]] = []
        self.padding = ""
        self.server = HttpServer(
            self.listener, self._handle, lambda _: self.is_allowed, lambda: self.now
        )
        self.clients: list[socket.socket] = []

    def _handle(self, *call: Any) -> Answer:
        self.calls.append(call)
        found = {"seen": len(call[3])}
        return Answer(200, {**found, "padding": self.padding} if self.padding else found)

    def client(self) -> socket.socket:
        found = socket.create_connection(self.listener.getsockname())
        found.setblocking(False)
        self.clients.append(found)
        return found

    def turn(self, times: int = 5, *, accepts: bool = True) -> None:
        for _ in range(times):
            poll = select.poll()
            for number, events in self.server.interests(accepts=accepts):
                poll.register(number, events)
            self.server.serve([number for number, _ in poll.poll(2)])

    def ask(self, client: socket.socket, content: bytes) -> bytes:
        client.setblocking(True)
        client.settimeout(5.0)
        client.sendall(content)
        self.turn()
        client.setblocking(False)
        return self.answer(client)

    @staticmethod
    def answer(client: socket.socket) -> bytes:
        try:
            return client.recv(1 << 16)
        except BlockingIOError:
            return b"-"
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.server.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    yield found
    found.close()


def request(path: str = "/a?b=c%20d", body: bytes = b"{}", **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_requests_of_one_connection_are_answered_in_turn(place: Place) -> None:
    client = place.client()
    place.turn()

    first, second = place.ask(client, request()), place.ask(client, request(body=b"x" * 70_000))

    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(first.partition(b"\r\n\r\n")[2]) == {"seen": 2}
    assert json.loads(second.partition(b"\r\n\r\n")[2]) == {"seen": 70_000}
    assert place.calls[0] == ("POST", "/a", {"b": "c d"}, b"{}")


def test_a_request_may_arrive_in_pieces(place: Place) -> None:
    client = place.client()
    whole = request(body=b"12345")
    for byte in whole:
        client.send(bytes([byte]))
        place.turn(2)

    assert place.answer(client).endswith(b'{"seen":5}')


def test_a_slow_request_is_ended_and_an_idle_connection_is_not(place: Place) -> None:
    slow, idle = place.client(), place.client()
    place.turn()
    slow.send(b"POST /a HT")
    place.turn()
    place.now += http_server.REQUEST_SECONDS / 2
    slow.send(b"TP")  # a byte now and then does not extend the time
    place.turn()
    place.now += http_server.REQUEST_SECONDS / 2 + 1
    place.turn()

    assert place.answer(slow) == b""
    assert place.answer(idle) == b"-"
    place.now += http_server.IDLE_SECONDS
    place.turn()
    assert place.answer(idle) == b""


def test_the_oldest_connection_makes_room(place: Place) -> None:
    clients = []
    for number in range(http_server.MOST_CONNECTIONS + 1):
        place.now = number / 10
        clients.append(place.client())
        place.turn(1)

    assert place.answer(clients[0]) == b""
    assert place.answer(clients[1]) == b"-"


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01 hello\r\n\r\n",
        b"POST a HTTP/1.1\r\n\r\n",
        b"POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        b"POST /a HTTP/1.1\r\n" + b"x: y\r\n" * 4000 + b"\r\n",
        b"x" * 20_000,
    ],
)
def test_a_request_that_is_not_valid_gets_an_error_and_no_handler(
    place: Place, content: bytes
) -> None:
    client = place.client()
    place.turn()

    answer = place.ask(client, content)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert place.calls == []


def test_a_large_artifact_is_refused_after_its_body_was_dropped(place: Place) -> None:
    client = place.client()
    place.turn()
    size = 200_000
    head = request("/api/2.0/mlflow-artifacts/artifacts/x").replace(b": 2", b": %d" % size)[:-2]

    answer = place.ask(client, head + b"z" * size)
    place.turn(20)

    assert answer.startswith(b"HTTP/1.1 501 ")
    assert place.answer(client) == b""


def test_above_the_rate_requests_wait(place: Place) -> None:
    client = place.client()
    place.turn()
    served = 0
    while place.server._refill() > 0:
        assert place.ask(client, request()).startswith(b"HTTP/1.1 200")
        served += 1

    assert served <= http_server.BURST
    assert place.ask(client, request()) == b"-"
    place.now += 1.0
    place.turn()
    assert place.answer(client).startswith(b"HTTP/1.1 200")


def test_requests_wait_while_reports_cannot_be_sent(place: Place) -> None:
    client = place.client()
    place.turn()
    client.send(request())
    place.turn(accepts=False)
    assert place.calls == []
    place.turn()
    assert len(place.calls) == 1


def test_a_foreign_client_is_closed_at_once(place: Place) -> None:
    place.is_allowed = False
    client = place.client()
    place.turn()

    assert place.answer(client) == b""


def test_a_head_has_at_most_fifty_fields() -> None:
    head = b"GET /a?" + b"&".join(b"a%d=1" % number for number in range(60)) + b" HTTP/1.1"

    with pytest.raises(MalformedError):
        read_head(head)


def test_large_answers_count_and_other_requests_of_the_turn_wait(place: Place) -> None:
    place.padding = "x" * (8 << 20)
    clients = [place.client() for _ in range(4)]
    place.turn()
    place.now += 60.0
    for client in clients:
        client.send(request())

    counts = []
    for seconds in (0.0, 0.05, 1.0):
        place.now += seconds
        place.turn(20)
        counts.append(len(place.calls))

    assert counts == [1, 1, 2]


def test_single_bytes_of_a_request_have_a_rate(place: Place) -> None:
    client = place.client()
    place.turn()
    place.now += 60.0
    most = int(http_server.BURST / http_server.LEAST_COST)
    whole = request(body=b"x" * 2 * most)
    sent = 0
    while place.server._refill() > 0 and sent < 1.1 * most:
        client.send(whole[sent : sent + 1])
        place.turn(1)
        sent += 1

    assert sent == pytest.approx(most, rel=0.01)
