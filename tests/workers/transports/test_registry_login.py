"""The login of a registry: in one header of one request to the engine, and nowhere else."""

import base64
import json
import logging
import socketserver
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.unix_http import UnixHandler, served
from workers.transports.base import Container, Preparation, PrepareError
from workers.transports.docker import _pull

SECRET = "hunter2:with:colons"


class Engine(socketserver.ThreadingUnixStreamServer):
    """An engine without images, which notes what it is asked."""

    daemon_threads = True
    answer = b'{"status": "done"}'

    def __init__(self, path: Path) -> None:
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        super().__init__(str(path), _Handler)


class _Handler(UnixHandler):
    server: Engine

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, dict(self.headers), body))

    def do_GET(self) -> None:  # noqa: N802 (the server asks for it by this name)
        self._take()
        self.say(404, b'{"message": "no such image"}')

    def do_POST(self) -> None:  # noqa: N802 (see above)
        self._take()
        self.say(200, self.server.answer)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    found = Engine(tmp_path / "engine.sock")
    with served(found):
        yield found


@pytest.fixture
def client(engine: Engine) -> Iterator[docker.APIClient]:
    found = docker.APIClient(base_url=f"unix://{engine.server_address}", version="1.41")
    yield found
    found.close()


def test_a_login_goes_into_the_header_of_the_pull_and_nowhere_else(
    engine: Engine, client: docker.APIClient, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    container = Container(image="registry.example.org/team/train:1", login=f"alice:{SECRET}")

    with caplog.at_level(logging.DEBUG):
        _pull(client, "run", container, lambda run, text: said.append(text))

    (path, headers, body) = engine.asked[-1]
    login = json.loads(base64.urlsafe_b64decode(headers["X-Registry-Auth"]))
    assert (login["username"], login["password"]) == ("alice", SECRET)
    assert not [first for first in engine.asked[:-1] if "X-Registry-Auth" in first[1]]
    shown = "".join([path, body.decode(), *said, caplog.text, repr(container)])
    assert SECRET not in shown
    assert SECRET not in repr(Preparation(run=None, container=container))  # type: ignore[arg-type]


def test_without_a_login_nothing_is_sent(engine: Engine, client: docker.APIClient) -> None:
    _pull(client, "run", Container(image="team/train:1"), lambda run, text: None)

    assert "X-Registry-Auth" not in engine.asked[-1][1]


def test_a_refused_login_does_not_tell_it(engine: Engine, client: docker.APIClient) -> None:
    engine.answer = b'{"error": "denied: wrong password"}'
    container = Container(image="team/train:1", login=f"alice:{SECRET}")

    with pytest.raises(PrepareError, match="denied") as refused:
        _pull(client, "run", container, lambda run, text: None)

    assert SECRET not in str(refused.value)
