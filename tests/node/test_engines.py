"""The container engines of a node: found at their sockets, and told apart."""

import json
import os
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tessera import protocol
from tessera.node import engine, probe

DOCKER = {"Version": "27.0.1", "Components": [{"Name": "Engine"}]}
PODMAN = {"Version": "5.2.0", "Components": [{"Name": "Podman Engine"}]}


class _Engine(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    about: Mapping[str, object]
    options: list[str]


class _Request(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Engine)
        path = self.rfile.readline().decode().split(" ")[1]
        answers = {
            "/version": self.server.about,
            "/info": {"SecurityOptions": self.server.options},
        }
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(answers[path]).encode())


@contextmanager
def listening(path: Path, about: Mapping[str, object], *, rootless: bool) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _Engine(str(path), _Request) as server:
        server.about, server.options = about, ["name=rootless"] if rootless else ["name=seccomp"]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


def test_engines_are_distinguished(tmp_path: Path) -> None:
    docker, podman = tmp_path / "docker.sock", tmp_path / "podman" / "podman.sock"
    with listening(docker, DOCKER, rootless=False), listening(podman, PODMAN, rootless=True):
        found = engine.find_engines([str(podman), str(docker), str(tmp_path / "none.sock")])

    assert [(one.kind, one.version, one.rootless) for one in found] == [
        ("podman", "5.2.0", True),
        ("docker", "27.0.1", False),
    ]


def test_sockets_of_the_user_come_before_those_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/71000")

    places = engine.sockets()

    assert places[:2] == ["/run/user/71000/docker.sock", "/run/user/71000/podman/podman.sock"]
    assert places.index("/var/run/docker.sock") > places.index(
        f"/run/user/{os.getuid()}/podman/podman.sock"
    )


@pytest.mark.parametrize(
    ("uid", "rootless", "warned"), [(1000, False, True), (1000, True, False), (0, False, False)]
)
def test_an_open_socket_of_an_engine_that_runs_as_root_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, rootless: bool, warned: bool
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: uid)
    warnings: list[str] = []
    with listening(tmp_path / "docker.sock", DOCKER, rootless=rootless):
        chosen = probe.chosen_engine(warnings)

    assert chosen is not None
    assert (chosen.kind, chosen.rootless) == ("docker", rootless)
    assert chosen.socket == str(tmp_path / "docker.sock")
    assert (protocol.ENGINE_SOCKET_OPEN in warnings) is warned
