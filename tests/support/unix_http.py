"""HTTP over a unix socket, as container engines speak it, for tests that stand in for one."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any


class UnixHandler(BaseHTTPRequestHandler):
    """Answers with JSON, and says nothing on the console."""

    def say(self, status: int, body: bytes) -> None:
        """One whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """Clients of a unix socket have no address."""
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread until the block is left."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
