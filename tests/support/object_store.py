"""An S3 server on loopback for tests, behind a gate that can close, delay, fail and cut."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import boto3
import pytest

from scheduling.storage.config import StorageConfig
from tests.support.waiting import wait_until
from tests.support.whole_portal import free_port

CHUNK: Final = 1 << 16
REGION: Final = "us-east-1"
ACCESS_KEY: Final = "tessera-test"
SECRET_KEY: Final = "not-a-secret-of-anyone"
_ERROR: Final = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/xml\r\n"
    b"Content-Length: 51\r\nConnection: close\r\n\r\n"
    b"<Error><Code>InternalError</Code><Message/></Error>"
)


class StoreGate:
    """A port that forwards connections to the S3 server, one request each, with faults.

    Attributes:
        delay: seconds before each request is forwarded.
        failing: number of next requests that get the answer 500.
        cut_after: forward at most this many bytes of the next requests, then drop them.
        cutting: number of next requests that are cut.
        requests: number of requests so far.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self.delay = 0.0
        self.failing = 0
        self.cutting = 0
        self.cut_after = 0
        self.requests = 0
        self._lines: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._closing = threading.Event()
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Start the server again on its port."""
        if self._listener is None:
            self._closing.clear()
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Kill the server: open requests break, and new ones are refused."""
        self._closing.set()
        if self._listener is not None:
            listener, self._listener = self._listener, None
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for line in list(self._lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """End all faults."""
        self.delay, self.failing, self.cutting = 0.0, 0, 0
        self.open()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        self._lines.add(line)
        try:
            with line:
                self._forward(line)
        except OSError:
            return
        finally:
            self._lines.discard(line)

    def _forward(self, line: socket.socket) -> None:
        """Forward one request; the header asks the server to close the connection after it."""
        head = b""
        while b"\r\n\r\n" not in head:
            piece = line.recv(CHUNK)
            if not piece:
                return
            head += piece
        self.requests += 1
        self._closing.wait(self.delay)
        if self.failing > 0:
            self.failing -= 1
            line.sendall(_ERROR)
            return
        first, _, rest = head.partition(b"\r\n")
        request = first + b"\r\nConnection: close\r\n" + rest
        most: int | None = None
        if self.cutting > 0:
            self.cutting -= 1
            most = self.cut_after
        with socket.create_connection(("127.0.0.1", self._target), timeout=10) as far:
            far.settimeout(None)
            far.sendall(request[:most] if most is not None else request)
            if most is not None:
                return
            threading.Thread(target=_pump, args=(line, far), daemon=True).start()
            _pump(far, line)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(CHUNK):
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class ObjectStoreServer:
    """A running S3 server; each bucket is independent."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.gates: list[StoreGate] = []

    def new_bucket(self, data_dir: Path, *, gate: StoreGate | None = None) -> StorageConfig:
        """Create an empty bucket, and return the settings of a host that uses it."""
        config = StorageConfig(
            data_dir=data_dir,
            bucket=f"tessera-{uuid4().hex[:12]}",
            prefix="cluster-a/",
            endpoint=gate.url if gate is not None else f"http://127.0.0.1:{self.port}",
            region=REGION,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
        )
        boto3.session.Session().client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        ).create_bucket(Bucket=config.bucket)
        return config

    def new_gate(self) -> StoreGate:
        gate = StoreGate(self.port)
        self.gates.append(gate)
        return gate


@contextmanager
def running_object_store() -> Iterator[ObjectStoreServer]:
    """Run an S3 server in its own process until the end of the block."""
    port = free_port()
    code = "from moto.server import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _answers(port), what="the S3 server responds")
        server = ObjectStoreServer(port)
        yield server
        for gate in server.gates:
            gate.close()
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStoreServer]:
    with running_object_store() as running:
        yield running


@pytest.fixture
def store_gate(object_store: ObjectStoreServer) -> Iterator[StoreGate]:
    found = object_store.new_gate()
    yield found
    found.close()
