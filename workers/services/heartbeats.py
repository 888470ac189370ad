"""Heartbeats of all processes, as rows."""

import os
import shutil
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from workers.models import Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Measurements of a host by one of its processes.

    Attributes:
        skew_seconds: how far the host's clock is ahead of the database's.
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

    To be called from its work loop, so that the heartbeat stops when the process hangs.

    Args:
        process: its name, unique among all processes of the installation.
        kind: web, rounds, default, nodes or beat.
        now: the database's time.
        facts: measurements of its host.
        refusal: code of the reason for which it does no work; empty if it works.
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


def silent_processes(*, now: datetime, after: timedelta) -> list[Heartbeat]:
    """Return processes whose last heartbeat is older than ``after``."""
    return list(Heartbeat.objects.filter(at__lt=now - after).order_by("process"))


def forget_processes(*, now: datetime, after: timedelta) -> int:
    """Delete the rows of long silent processes; returns how many."""
    deleted, _ = Heartbeat.objects.filter(at__lt=now - after).delete()
    return deleted


def forget(*, processes: Collection[str]) -> None:
    """Delete the rows of processes that have ended cleanly."""
    Heartbeat.objects.filter(process__in=list(processes)).delete()
