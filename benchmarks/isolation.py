"""Processor time that starting and ending a job costs a node at each isolation level.

The processor time of a session includes its runners, their sandboxes and the jobs, which all are
``true``. The difference to level ``none`` is the cost of the sandbox.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.entries import entry

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "node"))

from session import Session, declare_isolation, make_spec

from tessera.isolation import PLAIN_LEVELS, USER

JOBS = 60
UID = 71_001


def main() -> None:
    """Print one entry a level."""
    levels = [level for level in PLAIN_LEVELS if level != USER or os.getuid() == 0]
    costs = {level: measure(level) for level in levels}
    account = "root" if os.getuid() == 0 else "an ordinary user"
    context = f"{JOBS} jobs `true` one after the other, runner is {account}"
    for level, (processor, wall) in costs.items():
        more = (processor - costs["none"][0]) * 1000
        name = f"isolation_start_{level}"
        print(json.dumps(entry(f"{name}_processor", processor * 1000, "ms", "lower", context)))
        print(json.dumps(entry(f"{name}_wall", wall * 1000, "ms", "lower", context)))
        if level != "none":
            print(json.dumps(entry(f"{name}_overhead", more, "ms", "lower", context)))


def measure(level: str) -> tuple[float, float]:
    """Seconds of processor and wall time of one job, from prepare to its end."""
    home = Path(tempfile.mkdtemp())
    declare_isolation(home, strongest=level)
    session = Session(home)
    try:
        run(session, level)  # the levels are probed with the first job
        before, begun = spent(session.process.pid), time.monotonic()
        for _ in range(JOBS):
            run(session, level)
        wall = time.monotonic() - begun
        return (spent(session.process.pid) - before) / JOBS, wall / JOBS
    finally:
        session.close()
        shutil.rmtree(home)


def run(session: Session, level: str) -> None:
    """One job to its end."""
    spec = make_spec("true", isolation=level, uid=UID if level == USER else None)
    session.start(spec)
    found = session.exit_of(spec)
    assert found.isolation == level


def spent(pid: int) -> float:
    """Processor time of a process and of the children that it has reaped, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
