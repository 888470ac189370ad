"""Processor time of a node for the start and end of a job at each isolation level.

The jobs are all ``true``. The processor time is that of the whole machine, which must have no
other work: a log writer does not reap its runner, so no process has the total time of all others.
The
difference to level ``none`` is the cost of the sandbox, with the network of the node or an own
network, without and with a published port. As root it also measures runners of an ordinary
account: at level ``none``, and at level ``user`` through the helper and sudo.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.entries import entry

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "node"))

from session import ORDINARY, SUDO, Session, declare_isolation, make_spec, node

from tessera.isolation import NONE, OWN_NETWORK, PLAIN_LEVELS, SHARED_NETWORK, USER
from tessera.job_networks import CONNECTED, ISOLATED
from tessera.node import networks

JOBS = 60
UID = 71_001
OWN: dict[str, Any] = {"network": OWN_NETWORK, "job_network": ISOLATED}
NETWORKS: dict[str, dict[str, Any]] = {
    "": {},
    "_own_network": OWN,
    "_published_port": {**OWN, "ports": [28_417]},
}


def main() -> None:
    """Print the entries of each level and network."""
    levels = [level for level in PLAIN_LEVELS if level != USER or os.getuid() == 0]
    account = "root" if os.getuid() == 0 else "an ordinary user"
    network = next(found.detail for found in networks.known() if found.network == CONNECTED)
    context = f"{JOBS} jobs `true` one after the other, runner is {account}; network: {network}"
    base = 0.0
    for level in levels:
        for name, job in NETWORKS.items() if level != NONE else [("", {})]:
            processor, wall = measure(level, job)
            base = base or processor
            show(f"{level}{name}", processor, wall, base, context)
    if os.getuid() == 0:
        show_ordinary(f"{JOBS} jobs `true` one after the other, runner is an ordinary account")


def show_ordinary(context: str) -> None:
    """Print the entries of runners that are not root, on a node of the bundle."""
    with node(NONE, ORDINARY) as session:
        base, wall = measure_in(session, NONE, {})
    show("ordinary_none", base, wall, base, context)
    with node(USER, SUDO) as session:
        for name, job in NETWORKS.items():
            show(f"helper_user{name}", *measure_in(session, USER, job), base, context)


def show(name: str, processor: float, wall: float, base: float, context: str) -> None:
    """Print the entries of one variant; ``base`` is the processor time without a sandbox."""
    figures = {"processor": processor, "wall": wall, "overhead": processor - base}
    for figure, seconds in figures.items():
        if figure != "overhead" or processor != base:
            of = f"isolation_start_{name}_{figure}"
            print(json.dumps(entry(of, seconds * 1000, "ms", "lower", context)))


def measure(level: str, job: dict[str, Any]) -> tuple[float, float]:
    """Seconds of processor and wall time of one job, from prepare to its end."""
    home = Path(tempfile.mkdtemp())
    declare_isolation(home, strongest=level)
    session = Session(home)
    try:
        return measure_in(session, level, job)
    finally:
        session.close()
        shutil.rmtree(home)


def measure_in(session: Session, level: str, job: dict[str, Any]) -> tuple[float, float]:
    """Measure in a session."""
    for _ in range(3):
        run(session, level, job)  # the levels are probed with the first job
    before, begun = spent(), time.monotonic()
    for _ in range(JOBS):
        run(session, level, job)
    wall = time.monotonic() - begun
    return (spent() - before) / JOBS, wall / JOBS


def run(session: Session, level: str, job: dict[str, Any]) -> None:
    """Run one job to its end."""
    spec = make_spec("true", isolation=level, uid=UID if level == USER else None, **job)
    session.start(spec)
    found = session.exit_of(spec)
    assert (found.isolation, found.network) == (level, job.get("network", SHARED_NETWORK))


def spent() -> float:
    """Processor time of the machine since boot, in seconds: user, nice, system, interrupts."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    used = [*fields[1:4], *fields[6:8]]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
