"""Clean-up after a killed supervisor: find its processes by pid and start time, and end them."""

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from portal.supervisor.files import write_private

PATIENCE: Final = 5.0


def record_children(path: Path, pids: Mapping[str, int]) -> None:
    """Record the running children: name, process id and start time."""
    known = {name: {"pid": pid, "started": start_ticks(pid)} for name, pid in pids.items()}
    write_private(path, json.dumps(known, indent=2) + "\n")


def end_leftovers(path: Path) -> list[str]:
    """End remaining processes of an earlier supervisor, as groups.

    A process is one of them only if its start time is the recorded one, since process ids are
    reused.

    Returns:
        Their names.
    """
    left = {name: pid for name, pid in _recorded(path).items() if pid}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(_is_alive(pid) for pid in left.values()):
            time.sleep(0.05)
    path.unlink(missing_ok=True)
    return sorted(left)


def start_ticks(pid: int) -> int:
    """Return the start of a process, in the kernel's ticks since boot; 0 if unknown."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _recorded(path: Path) -> dict[str, int]:
    """Return recorded processes that still run; their pid, by name."""
    try:
        known = json.loads(path.read_text())
        found = {str(name): (int(one["pid"]), int(one["started"])) for name, one in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name: pid
        for name, (pid, started) in found.items()
        if pid > 1 and started and start_ticks(pid) == started
    }


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name (with blanks and brackets)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
