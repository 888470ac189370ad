"""Waits for a condition with a deadline, and checks of processes."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(
    condition: Callable[[], object],
    seconds: float = 60.0,
    what: str = "it",
    *,
    every: float = 0.02,
) -> None:
    """Wait until the condition holds; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(every)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; zombies do not count."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z"
