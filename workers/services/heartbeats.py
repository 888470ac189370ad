"""Signs of life of every process, as rows."""

import os
import socket
from collections.abc import Collection
from datetime import datetime, timedelta

from workers.models import Heartbeat


def beat(*, process: str, kind: str, now: datetime) -> None:
    """Say that ``process`` is alive. To be called from the loop that does its work, so that a
    process that is there but stuck falls silent.

    Args:
        process: its name, unique among all processes of the installation.
        kind: web, rounds, default, nodes or beat.
        now: the instant.
    """
    if Heartbeat.objects.filter(process=process).update(at=now):
        return
    Heartbeat.objects.update_or_create(
        process=process,
        defaults={
            "kind": kind,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": now,
            "at": now,
        },
    )


def beats_of_host(*, host: str) -> list[tuple[int, datetime]]:
    """Process id and last sign of life of every process on one machine."""
    return list(Heartbeat.objects.filter(host=host).values_list("pid", "at"))


def silent_processes(*, now: datetime, after: timedelta) -> list[Heartbeat]:
    """Processes whose last sign of life is older than ``after``."""
    return list(Heartbeat.objects.filter(at__lt=now - after).order_by("process"))


def forget_processes(*, now: datetime, after: timedelta) -> int:
    """Delete the rows of processes that have been silent for long; returns how many."""
    deleted, _ = Heartbeat.objects.filter(at__lt=now - after).delete()
    return deleted


def forget(*, processes: Collection[str]) -> None:
    """Delete the rows of processes that have ended in order."""
    Heartbeat.objects.filter(process__in=list(processes)).delete()
