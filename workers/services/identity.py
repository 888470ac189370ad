"""Process names by which another process of the host can detect that they have ended."""

import os
import socket
from functools import cache
from pathlib import Path


def process_name(kind: str) -> str:
    """``kind@host:space:pid:start``, unique for each start of a process.

    ``space`` names the boot and the namespace in which ``pid`` means something, ``start`` is when
    the process began, in clock ticks since the boot.
    """
    pid = os.getpid()
    return f"{kind}@{socket.gethostname()[:40]}:{_space()}:{pid}:{_start_of(pid) or 0}"


def has_ended(name: str) -> bool:
    """Return whether the named process is proved to have ended; False if unknown."""
    try:
        _, space, pid, start = name.rsplit(":", 3)
        number, began = int(pid), int(start)
    except ValueError:
        return False
    if space != _space() or not space or not began:
        return False
    return _start_of(number) != began


@cache
def _space() -> str:
    """The boot and the pid namespace of this process; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return ""
    return boot[:8] + "-" + "".join(letter for letter in namespace if letter.isdigit())


def _start_of(pid: int) -> int | None:
    """Start of a live process in clock ticks; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
