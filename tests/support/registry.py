"""A real registry of container images on loopback, with or without a login."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

LOGIN = "alice:hunter2"
_HASHED = "alice:$2y$05$abcdefghijklmnopqrstuuoXuKqgZXLiJqzfmMXDDhSFPIvxV7t8.\n"
_CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {place}/images}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
_AUTH = "auth: {{htpasswd: {{realm: tests, path: {place}/htpasswd}}}}\n"


@dataclass(frozen=True)
class RealRegistry:
    """A running registry."""

    host: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Stop the registry."""
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def registry(place: Path, *, with_login: bool) -> Iterator[RealRegistry]:
    """Serve inside the block; skip the test if the program is missing."""
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("needs docker-registry")
    place.mkdir()
    (place / "htpasswd").write_text(_HASHED)
    port = _free_port()
    text = _CONFIG + (_AUTH if with_login else "")
    (place / "config.yml").write_text(text.format(place=place, port=port))
    with (place / "log").open("wb") as log:
        command = [program, "serve", str(place / "config.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: _is_open(port), 30, "the registry")
            yield RealRegistry(f"127.0.0.1:{port}", process)
        finally:
            process.kill()
            process.wait(30)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_open(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
