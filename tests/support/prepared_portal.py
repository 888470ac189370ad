"""A portal with prepared responses on a real socket, and the command line as its client."""

import io
import json
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tessera.cli.exits import run_and_exit
from tessera.cli.main import app


@dataclass(frozen=True)
class Asked:
    """One received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Portal:
    """Sends the prepared responses in their order, by method and path.

    The first ``cuts`` requests are received, and their connections end without a response.
    """

    url: str = ""
    cuts: int = 0
    asked: list[Asked] = field(default_factory=list)
    answers: dict[tuple[str, str], deque[tuple[int, Any]]] = field(default_factory=dict)

    def answer(self, method: str, path: str, *bodies: Any, status: int = 200) -> None:
        queue = self.answers.setdefault((method, f"/api/v1/{path}"), deque())
        queue.extend((status, body) for body in bodies)

    def next_answer(self, method: str, path: str) -> tuple[int, Any]:
        queue = self.answers.get((method, path.partition("?")[0]))
        if not queue:
            return 404, {"code": "not-found", "title": f"nothing prepared for {method} {path}"}
        return queue.popleft() if len(queue) > 1 else queue[0]


@contextmanager
def serve_prepared() -> Iterator[Portal]:
    prepared = Portal()

    class Handler(BaseHTTPRequestHandler):
        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            prepared.asked.append(Asked(self.command, self.path, dict(self.headers), body))
            if prepared.cuts > 0:
                prepared.cuts -= 1
                self.close_connection = True
                return
            status, answer = prepared.next_answer(self.command, self.path)
            encoded = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_DELETE = do_GET = do_PATCH = do_POST = do_PUT = do_any  # noqa: N815 names that the server asks for

        def log_message(self, *_: object) -> None:
            """Suppress the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    prepared.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield prepared
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass(frozen=True)
class Ran:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


@dataclass
class CommandLine:
    """Runs the program ``tessera`` in this process."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *words: str, stdin: str = "") -> Ran:
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            run_and_exit(partial(app, args=list(words), prog_name="tessera"))
        said = self.capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)
