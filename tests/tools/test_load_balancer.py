"""The load balancer of the recipe, with the real HAProxy in front of two small servers."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.load_balancer import (
    HOST,
    LoadBalancer,
    configured,
    has_haproxy,
    load_balancer,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_haproxy(), reason="haproxy is not installed")
SWITCH_SECONDS = 12.0


class Control:
    """A server that answers with its name, and with a status at /readyz.

    Attributes:
        ready: the status of /readyz.
        hosts: names in the requests for /readyz.
        requests: headers of requests for other pages.
    """

    def __init__(self, name: str) -> None:
        self.ready = 200
        self.hosts: set[str] = set()
        self.requests: list[dict[str, str]] = []
        control = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_check = self.path == "/readyz"
                if is_check:
                    control.hosts.add(self.headers.get("Host", ""))
                else:
                    names = self.headers.items()
                    control.requests.append({name.lower(): text for name, text in names})
                body = name.encode()
                with suppress(ConnectionError):  # a check ends with the status
                    self.send_response(control.ready if is_check else 200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Refuse connections from now on."""
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def controls() -> Iterator[tuple[Control, Control]]:
    found = Control("a"), Control("b")
    with ExitStack() as stack:
        for control in found:
            stack.callback(control.close)
        yield found


@pytest.fixture
def balancer(controls: tuple[Control, Control], tmp_path: Path) -> Iterator[LoadBalancer]:
    with load_balancer(tmp_path, [control.port for control in controls]) as found:
        yield found


def wait_for_hosts(balancer: LoadBalancer, expected: set[bytes]) -> None:
    """Wait until exactly these control hosts answer."""

    def answered() -> bool:
        return {balancer.get("/")[1] for _ in range(8)} == expected

    wait_until(answered, SWITCH_SECONDS, f"requests to {expected} only")


def test_haproxy_accepts_the_configuration(tmp_path: Path) -> None:
    path = configured(tmp_path, [8000, 8001], (8443, 8080))

    checked = subprocess.run(
        ["haproxy", "-c", "-f", str(path)],
        env={**os.environ, "TESSERA_HOST": HOST},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


def test_it_starts_although_the_name_of_a_control_host_is_unknown(tmp_path: Path) -> None:
    path = configured(tmp_path, [8000, 8001], (8443, 8080))
    path.write_text(path.read_text().replace("127.0.0.1:8000", "control-a.invalid:8000"))

    checked = subprocess.run(
        ["haproxy", "-c", "-f", str(path)],
        env={**os.environ, "TESSERA_HOST": HOST},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stderr


def test_requests_go_only_to_hosts_that_are_ready(
    balancer: LoadBalancer, controls: tuple[Control, Control]
) -> None:
    first, second = controls
    wait_for_hosts(balancer, {b"a", b"b"})

    first.ready = 503
    wait_for_hosts(balancer, {b"b"})
    first.ready = 200
    wait_for_hosts(balancer, {b"a", b"b"})

    assert first.hosts == second.hosts == {HOST}


def test_both_hosts_get_requests_while_none_is_ready(
    balancer: LoadBalancer, controls: tuple[Control, Control]
) -> None:
    wait_for_hosts(balancer, {b"a", b"b"})

    for control in controls:
        control.ready = 503
    controls[0].requests.clear()
    wait_for_hosts(balancer, {b"a", b"b"})

    assert balancer.get("/")[0] == 200


def test_no_request_fails_when_a_host_refuses_connections(
    balancer: LoadBalancer, controls: tuple[Control, Control]
) -> None:
    wait_for_hosts(balancer, {b"a", b"b"})

    controls[0].close()
    answers = [balancer.get("/") for _ in range(50)]

    assert set(answers) == {(200, b"b")}


def test_hosts_get_the_address_and_the_scheme_of_the_client(
    balancer: LoadBalancer, controls: tuple[Control, Control]
) -> None:
    balancer.get("/jobs/")

    (request,) = [found for control in controls for found in control.requests][-1:]
    assert request["x-forwarded-proto"] == "https"
    assert request["x-forwarded-for"] == "127.0.0.1"
    assert request["host"] == HOST
