"""A large installation with its web process, in a separate folder and on a separate port."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.stage import ROOT, prepare

START_SECONDS = 120.0
NODES, LIVE, FINISHED = 250, 10_000, 100_000
SIZE = f"{8 * NODES} devices, {NODES} nodes, {LIVE} live and {FINISHED} finished jobs, SQLite"


@dataclass(frozen=True)
class Site:
    """A running site: its address, its folder and its processes by name."""

    url: str
    folder: Path
    pids: dict[str, int]

    def cpu_seconds(self, name: str) -> float:
        """The processor time that a process has used, user and system."""
        text = Path(f"/proc/{self.pids[name]}/stat").read_text().rpartition(")")[2].split()
        return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self, name: str) -> float:
        """Peak memory of a process."""
        for line in Path(f"/proc/{self.pids[name]}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise LookupError(name)

    def resident_mib(self, name: str) -> float:
        """Current memory of a process."""
        pages = int(Path(f"/proc/{self.pids[name]}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@contextlib.contextmanager
def site(*, rounds: bool = False) -> Iterator[Site]:
    """Fill an installation, start Redis and the web process, and the rounds if wanted.

    It sets the environment and Django settings of this process, once per process.
    """
    folder = Path(tempfile.mkdtemp(prefix="tessera-site-"))
    children: list[subprocess.Popen[bytes]] = []
    try:
        environment = prepare(folder)
        yield _start(folder, environment, children, rounds=rounds)
    finally:
        for child in reversed(children):
            _end(child)
        shutil.rmtree(folder, ignore_errors=True)


def fill_installation() -> None:
    """Create the reference size of all performance promises."""
    from demo.management.commands.seed_scale import fill

    fill(nodes=NODES, live=LIVE, ended=FINISHED)


def session_cookie(username: str) -> str:
    """The cookie of a session of a signed-in person."""
    from django.conf import settings
    from django.test import Client

    from tenants.models import User

    client = Client()
    client.force_login(User.objects.get(username=username))
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"


def _start(
    folder: Path,
    environment: dict[str, str],
    children: "list[subprocess.Popen[bytes]]",
    *,
    rounds: bool,
) -> Site:
    from portal.supervisor.redis_server import find_redis, redis_command

    def start(name: str, *command: str, **options: Any) -> int:
        with (folder / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, **options
            )
        children.append(child)
        return child.pid

    redis = folder / "redis.sock"
    pids = {"redis": start("redis", *redis_command(find_redis(), folder, redis))}
    _wait(redis.exists, "Redis")
    fill_installation()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    web = (sys.executable, "-m", "portal.supervisor.web", "--fd", str(listener.fileno()))
    pids["web"] = start("web", *web, pass_fds=(listener.fileno(),))
    if rounds:
        worker = ("-m", "celery", "-A", "portal.celery", "worker", "--without-gossip")
        queue = ("--without-mingle", "--queues", "rounds", "--hostname", "rounds@site", "-c", "1")
        pids["rounds"] = start("rounds", sys.executable, *worker, *queue)
    _wait(lambda: _answers(f"{url}/healthz"), "the web process")
    listener.close()
    return Site(url, folder, pids)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _wait(condition: Any, what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {START_SECONDS:g} s for {what}")
        time.sleep(0.05)


def _end(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(15)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
