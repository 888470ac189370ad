"""The images of a container engine and of a registry behind it, in memory."""

import base64
import json
import socketserver
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.unix_http import UnixHandler


@dataclass
class Registry:
    """The content of a registry.

    Attributes:
        images: the id of the image behind each reference.
        logins: logins that may pull a reference, as ``user:password``; without an entry, no login
            is needed.
        answers: False while it is unreachable.
    """

    images: dict[str, str] = field(default_factory=dict)
    logins: dict[str, set[str]] = field(default_factory=dict)
    answers: bool = True

    def refusal(self, reference: str, login: str) -> str:
        """Return the reason why a pull fails; empty if it succeeds."""
        if not self.answers:
            return "Get https://registry.example.org/v2/: dial tcp: connect: connection refused"
        if reference not in self.images or login not in self.logins.get(reference, {login}):
            return f"pull access denied for {reference}: denied"
        return ""


class ImageEngine(socketserver.ThreadingUnixStreamServer):
    """An engine that pulls from the registry and records its requests.

    Attributes:
        cached: IDs by reference; ``local`` has those that did not come from a registry.
        silent_seconds: seconds of a pull without output.
    """

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.registry = Registry()
        self.cached: dict[str, str] = {}
        self.local: set[str] = set()
        self.silent_seconds = 0.0
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        super().__init__(str(path), _Handler)

    @property
    def pulls(self) -> int:
        """Number of requests to the registry."""
        return sum("/images/create" in path for path, _, _ in self.asked)


class _Handler(UnixHandler):
    server: ImageEngine

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, dict(self.headers), body))

    def do_GET(self) -> None:  # noqa: N802 (the server asks for it by this name)
        self._take()
        name = unquote(self.path.partition("/images/")[2].removesuffix("/json"))
        found = self.server.cached.get(name, name if name in self.server.cached.values() else "")
        if not found:
            self.say(404, b'{"message": "no such image"}')
            return
        digests = [] if found in self.server.local else [f"{name}@{found}"]
        self.say(200, json.dumps({"Id": found, "RepoDigests": digests}).encode())

    def do_POST(self) -> None:  # noqa: N802 (see above)
        self._take()
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/tag"):
            found = unquote(parts.path.partition("/images/")[2].removesuffix("/tag"))
            self.server.cached[f"{asked['repo']}:{asked['tag']}"] = found
            with suppress(BrokenPipeError):  # a client that has seen the status closes at once
                self.say(201, b"")
            return
        reference = f"{asked['fromImage']}:{asked['tag']}"
        refusal = self.server.registry.refusal(reference, self._login())
        if refusal:
            self.say(200, json.dumps({"error": refusal}).encode())
            return
        threading.Event().wait(self.server.silent_seconds)
        self.server.cached[reference] = self.server.registry.images[reference]
        self.say(200, b'{"status": "done"}')

    def _login(self) -> str:
        header = self.headers.get("X-Registry-Auth") or ""
        found = json.loads(base64.urlsafe_b64decode(header) or b"{}")
        return f"{found['username']}:{found['password']}" if found else ""
