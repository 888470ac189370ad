"""Real servers on loopback for outgoing notifications: one for webhooks, one for mail."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class HookServer:
    """Responds with the given statuses in order, then with 204.

    Attributes:
        heard: path, headers (names in lower case) and body of each request.
    """

    port: int = 0
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    heard: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    holds: threading.Event | None = None

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return f"http://127.0.0.1:{self.port}/hook?key=x"


@contextmanager
def hook_server() -> Iterator[HookServer]:
    """Run a webhook server inside the block."""
    state = HookServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.heard.append((self.path, headers, self.rfile.read(length)))
            if state.holds is not None:
                state.holds.wait(60)
                return
            self.send_response(state.answers.pop(0) if state.answers else 204)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            if state.holds is not None:
                state.holds.set()
            server.shutdown()
            thread.join()


@dataclass
class MailServer:
    """Implements the part of SMTP that the reception of a mail needs.

    Attributes:
        mails: sender, receivers and text of each.
        refuses: unknown receivers.
    """

    port: int = 0
    mails: list[tuple[str, list[str], str]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)


@contextmanager
def mail_server() -> Iterator[MailServer]:  # noqa: C901 a protocol in one place
    """Run a mail server inside the block."""
    state = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self) -> None:
            sender, receivers = "", []
            self.say("220 mail.example.org")
            for raw in self.rfile:
                line = raw.decode().strip()
                verb = line[:4].upper()
                if verb == "MAIL":
                    sender = line.partition(":")[2].split()[0].strip("<>")
                    self.say("250 ok")
                elif verb == "RCPT":
                    address = line.partition(":")[2].strip("<> ")
                    if address in state.refuses:
                        self.say("550 nobody of this name")
                        continue
                    receivers.append(address)
                    self.say("250 ok")
                elif verb == "DATA":
                    self.say("354 go on")
                    text = []
                    for part in self.rfile:
                        if part == b".\r\n":
                            break
                        text.append(part.decode())
                    state.mails.append((sender, receivers, "".join(text)))
                    self.say("250 taken")
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 ok")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
