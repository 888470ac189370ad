"""``python -m demo`` and ``python -m portal.supervisor`` as a whole: started, hurt, and ended."""

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import PROJECT_ROOT
from tests.support.waiting import is_alive, wait_until

START_SECONDS = 200.0
PASSWORD = "a password for trials"

pytestmark = pytest.mark.timeout(400)


@dataclass
class Up:
    """A running supervisor and what it has said."""

    process: "subprocess.Popen[str]"
    data: Path
    output: Path
    seen: set[int] = field(default_factory=set)

    @property
    def said(self) -> str:
        return self.output.read_text()

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.said)
        assert found, self.said
        return int(found[1])

    def children(self) -> dict[str, int]:
        record = json.loads((self.data / "run" / "children.json").read_text())
        found = {name: one["pid"] for name, one in record.items()}
        self.seen.update(found.values())
        return found

    def is_ready(self) -> bool:
        return "Tessera is ready" in self.said or self.process.poll() is not None

    def get(self, path: str, seconds: float = 30.0) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)) as line:
            line.request("GET", path)
            return line.getresponse().status

    def last_round(self) -> int:
        with closing(sqlite3.connect(self.data / "db.sqlite3", timeout=20)) as database:
            return database.execute("SELECT max(number) FROM scheduling_round").fetchone()[0] or 0

    def end(self, number: int = signal.SIGTERM) -> int:
        self.children()
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


def start(data: Path, *options: str, program: str = "demo", **environment: str) -> Up:
    output = data.with_name(f"{data.name}.{len(list(data.parent.iterdir()))}.out")
    known = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", program, "--data-dir", str(data), *options],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True, cwd=PROJECT_ROOT,
            env=known | environment,
        )  # fmt: skip
    return Up(process, data, output)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    """One portal for the tests of this module; the last of them ends it."""
    running = start(
        folder / "var", "--port", "0", TESSERA_ADMIN_PASSWORD=PASSWORD, TESSERA_ROUND_SECONDS="2"
    )
    try:
        wait_until(running.is_ready, START_SECONDS, "the start")
        assert running.process.poll() is None, running.said
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        wait_until(lambda: not any(map(is_alive, running.seen)), 30, "the children's end")


def test_the_portal_reports_where_it_is_and_is_ready(up: Up) -> None:
    assert (up.get("/healthz"), up.get("/readyz")) == (200, 200)
    assert set(up.children()) == {
        "redis", "demo-nodes", "web", "worker-rounds", "worker-nodes", "worker-default", "beat",
    }  # fmt: skip
    assert re.search(r"alice +\S{12}", up.said)


def test_the_admins_password_is_in_no_argument_environment_log_or_file(up: Up) -> None:
    for pid in [up.process.pid, *up.children().values()]:
        assert PASSWORD.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for pid in up.children().values():
        assert PASSWORD.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    read, found = 0, []
    for path in up.data.rglob("*"):
        with suppress(FileNotFoundError):  # the portal goes on: uploads get their final names
            if path.is_file() and not path.is_symlink():
                read += 1
                found += [path] if PASSWORD.encode() in path.read_bytes() else []
    assert read > 20
    assert found == []
    assert PASSWORD not in up.said


def test_a_second_start_on_the_same_data_is_refused(up: Up) -> None:
    second = start(up.data, "--port", "0")

    assert second.process.wait(timeout=60) == 1
    assert f"another `tessera up` (process {up.process.pid})" in second.said


def test_a_busy_port_is_reported_before_anything_is_started(up: Up, folder: Path) -> None:
    second = start(folder / "other", "--port", str(up.port), program="portal.supervisor")

    assert second.process.wait(timeout=60) == 1
    assert f"cannot listen on 127.0.0.1:{up.port}" in second.said
    assert "--port" in second.said
    assert not (folder / "other" / "run" / "children.json").exists()


def test_an_unknown_variable_stops_the_start_with_its_name(folder: Path) -> None:
    other = start(folder / "wrong", "--port", "0", TESSERA_COLOUR="red")

    assert other.process.wait(timeout=60) == 2
    assert "TESSERA_COLOUR" in other.said


def test_a_killed_web_process_comes_back_and_no_connection_is_refused(up: Up) -> None:
    before = up.children()["web"]

    os.kill(before, signal.SIGKILL)
    status = up.get("/healthz", seconds=60)

    assert status == 200
    assert up.children()["web"] != before
    assert "web ended (signal SIGKILL); starting it again" in up.said


def test_a_killed_redis_and_a_killed_worker_come_back_and_rounds_go_on(up: Up) -> None:
    before = up.children()

    os.kill(before["redis"], signal.SIGKILL)
    os.kill(before["worker-rounds"], signal.SIGKILL)

    def all_new() -> bool:
        now = up.children()
        return all(
            now.get(name) not in {None, before[name]} for name in ("redis", "worker-rounds")
        )

    wait_until(all_new, 30, "the restart")
    last = up.last_round()
    wait_until(lambda: up.last_round() > last, 60, "a new round")
    assert up.get("/readyz") == 200


def test_term_ends_every_process_in_order_and_keeps_the_data(up: Up) -> None:
    assert up.end() == 0

    assert not any(map(is_alive, up.seen))
    assert "all processes have ended" in up.said
    assert (up.data / "db.sqlite3").exists()
    assert not (up.data / "run" / "children.json").exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", up.port)) != 0


@pytest.mark.redis
def test_a_supervisor_that_is_killed_leaves_nobody_and_the_next_start_keeps_everything(
    up: Up,
) -> None:
    if up.process.poll() is None:  # the test that ends it may not have been chosen
        up.end()
    killed = start(up.data, "--port", "0", TESSERA_ROUND_SECONDS="2")
    wait_until(killed.is_ready, START_SECONDS, "the second start")
    assert killed.process.poll() is None, killed.said
    killed.children()

    killed.process.kill()
    killed.process.wait()

    wait_until(lambda: not any(map(is_alive, killed.seen)), 30, "the children's end")
    assert "Sign in as admin with your existing password" in killed.said
    assert not re.search(r"alice +\S{12}", killed.said)
