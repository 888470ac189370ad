"""Separate PostgreSQL and Redis servers for tests, and links that tests can break."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import redis

from tests.support.waiting import wait_until
from tests.support.whole_portal import free_port

POSTGRES: Final = Path("/usr/lib/postgresql")
NOBODY: Final = 65_534
CHUNK: Final = 1 << 16


class Link:
    """A port on loopback that forwards connections until the link is broken."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Forward no bytes; connections stay open."""
        self._whole.clear()

    def mend(self) -> None:
        """Forward all bytes again, including delayed ones."""
        self._whole.set()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(line,), daemon=True).start()

    def _join(self, line: socket.socket) -> None:
        self._whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=10)
        except OSError:
            line.close()
            return
        far.settimeout(None)
        threading.Thread(target=self._carry, args=(far, line), daemon=True).start()
        self._carry(line, far)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._whole.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Postgres:
    """A separate PostgreSQL server, run by an ordinary user."""

    def __init__(self) -> None:
        self.port = free_port()
        self._programs = max(POSTGRES.glob("*/bin"))
        # Not below pytest's directories, which other users cannot enter.
        self._folder = Path(tempfile.mkdtemp(prefix="tessera-postgres-"))
        os.chown(self._folder, NOBODY, NOBODY)
        made = ("-U", "tessera", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        self._run("initdb", *made)
        self._start()

    @property
    def pid(self) -> int:
        """Return the process ID of the server."""
        return int((self._folder / "data/postmaster.pid").read_text().split()[0])

    def restart(self) -> None:
        """Crash the server and restart it at once."""
        self._control("-m", "immediate", "stop")
        self._start()

    def stop(self) -> None:
        """Stop the server and remove its files."""
        self._control("-m", "immediate", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._control("-l", str(self._folder / "log"), "-o", options, "start")

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-w", "-s", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        who = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        subprocess.run(
            [*who, str(self._programs / program), "-D", str(self._folder / "data"), *arguments],
            check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip


@contextmanager
def broker() -> Iterator[int]:
    """Run a Redis server; yield its port on loopback."""
    port = free_port()
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/tmp",
    )  # fmt: skip

    def answers() -> bool:
        with suppress(redis.RedisError), redis.Redis(port=port) as broker:
            return bool(broker.ping())
        return False

    try:
        wait_until(answers, 30, "Redis")
        yield port
    finally:
        stop(server)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Terminate a process; kill it after 30 s."""
    process.terminate()
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
    process.wait()
