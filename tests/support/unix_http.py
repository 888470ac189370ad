"""HTTP over a unix socket, for tests that simulate a container engine."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any


class UnixHandler(BaseHTTPRequestHandler):
    """Responds with JSON, and logs nothing."""

    def say(self, status: int, body: bytes) -> None:
        """Send one complete response."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """Return an empty address: clients of a unix socket have none."""
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the log."""


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread inside the block."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
