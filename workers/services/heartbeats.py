"""Heartbeat rows of all processes; the names show whether a process has ended."""

import os
import shutil
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from workers.models import Heartbeat


def process_name(kind: str) -> str:
    """Return ``kind@host:space:pid:start``, unique for each start of a process.

    ``space`` identifies the boot and the PID namespace; ``start`` is the start time of the process
    in clock ticks since the boot.
    """
    pid = os.getpid()
    return f"{kind}@{socket.gethostname()[:40]}:{_space()}:{pid}:{_start_of(pid) or 0}"


def has_ended(name: str) -> bool:
    """Return whether the process has certainly ended; False if unknown."""
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
    """Return the boot and the pid namespace of this process; empty if unknown."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Measurements of a host by one of its processes.

    Attributes:
        skew_seconds: lead of the host's clock over the database's clock.
        disk_free_bytes: free bytes of the file system of the data directory, for this account.
        disk_total_bytes: size of that file system.
    """

    skew_seconds: float
    disk_free_bytes: int | None
    disk_total_bytes: int | None


def host_facts(data_dir: Path, *, skew: timedelta) -> HostFacts:
    """Measure this host; sizes are None if the data directory cannot be read."""
    free, total = None, None
    with suppress(OSError):
        total, _, free = shutil.disk_usage(data_dir)
    return HostFacts(
        skew_seconds=round(skew.total_seconds(), 3), disk_free_bytes=free, disk_total_bytes=total
    )


def beat(
    *,
    process: str,
    kind: str,
    now: datetime,
    facts: HostFacts | None = None,
    refusal: str = "",
) -> None:
    """Write the heartbeat of ``process``.

    The work loop calls it, so that the heartbeats stop if the process hangs.

    Args:
        process: name of the process, unique among all processes of the installation.
        kind: web, rounds, default, nodes or beat.
        now: the database's time.
        facts: measurements of its host.
        refusal: code of the reason why it does not work; empty if it works.
    """
    values: dict[str, Any] = {"at": now, "refusal": refusal}
    if facts is not None:
        values |= asdict(facts)
    if Heartbeat.objects.filter(process=process).update(**values):
        return
    Heartbeat.objects.update_or_create(
        process=process,
        defaults={
            "kind": kind,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": now,
            **values,
        },
    )


def beats_of_host(*, host: str) -> list[tuple[int, datetime]]:
    """Return process id and last heartbeat of every process on a host."""
    return list(Heartbeat.objects.filter(host=host).values_list("pid", "at"))


def forget_processes(*, now: datetime, after: timedelta) -> int:
    """Delete rows with old heartbeats, and return their number."""
    deleted, _ = Heartbeat.objects.filter(at__lt=now - after).delete()
    return deleted


def forget(*, processes: Collection[str]) -> None:
    """Delete the rows of these processes, after a clean exit."""
    Heartbeat.objects.filter(process__in=list(processes)).delete()
