"""Seconds until a portal on one machine has recovered from a fault, one fault at a time.

Run by hand on an idle machine: ``python -m benchmarks.recovery --cycles 5``. Each cycle kills
every child of the supervisor (``kill-NAME``), kills three at once, stops one until it has been
replaced (``freeze``), and kills the supervisor with all children (``crash``). A child is killed
again only after ``STEADY_SECONDS``, so that no restart is delayed by an earlier one.

A fault ends when the signal has been sent, when the hanging child has been replaced, or at the
next ``up``. Then two times are measured: until ``/readyz?strict=1`` answers 200 with all children
running, and until a job that is submitted as soon as the portal accepts it has succeeded.
"""

import argparse
import json
import math
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.entries import entry
from portal.supervisor.children import STEADY_SECONDS
from tessera.client_errors import ApiError, UnreachableError

RESTART_SECONDS = 180.0
JOB = {
    "name": "recovery",
    "virtual_cluster": "vision-a",
    "roles": {"worker": {"devices": 1, "command": "true"}},
}


class Recovery(NamedTuple):
    """Seconds from the end of a fault until the portal was ready, and until a job succeeded."""

    ready_after: float
    job_after: float


def measure(cycles: int, seed: int) -> list[dict[str, Any]]:
    """Return percentiles over all faults, and the median of each kind, as benchmark entries."""
    from tests.support.whole_portal import whole_portal

    found: dict[str, list[Recovery]] = {}
    with tempfile.TemporaryDirectory() as place, whole_portal(Path(place)) as portal:
        portal.stop_examples()
        for kind, recovered in _faults(portal, cycles, random.Random(seed)):
            found.setdefault(kind, []).append(recovered)
            print(kind, recovered, file=sys.stderr, flush=True)
    return _entries(found)


def _faults(portal: Any, cycles: int, rng: random.Random) -> Iterator[tuple[str, Recovery]]:
    """Cause the faults of all cycles; yield the kind of each, and its recovery in seconds."""
    from tests.support.waiting import wait_until
    from tests.support.whole_portal import CHILDREN

    killed_at = dict.fromkeys(CHILDREN, -math.inf)

    def kill(*names: str) -> Recovery:
        steady = max(killed_at[name] for name in names) + STEADY_SECONDS + 2
        wait_until(lambda: time.monotonic() > steady, 2 * STEADY_SECONDS, "a steady run")
        for name in names:
            portal.send(name, signal.SIGKILL)
            killed_at[name] = time.monotonic()
        return _recover(portal)

    def freeze(name: str) -> Recovery:
        pid = portal.send(name, signal.SIGSTOP)
        wait_until(lambda: portal.children().get(name) != pid, RESTART_SECONDS, "a replacement")
        killed_at[name] = time.monotonic()
        return _recover(portal)

    def crash() -> Recovery:
        portal.crash()
        portal.begin()
        killed_at.update(dict.fromkeys(CHILDREN, time.monotonic()))
        return _recover(portal)

    portal.wait_until_ready()
    for _ in range(cycles):
        actions: list[tuple[str, Callable[[], Recovery]]] = [
            *((f"kill-{name}", partial(kill, name)) for name in CHILDREN),
            ("kill-three", partial(kill, *rng.sample(CHILDREN, 3))),
            ("freeze", partial(freeze, rng.choice(CHILDREN))),
            ("crash", crash),
        ]
        for kind, act in actions:
            yield kind, act()


def _recover(portal: Any) -> Recovery:
    """Wait until the portal is ready and a new job has succeeded."""
    from tests.support.waiting import wait_until

    began = time.monotonic()
    ready_after = job_after = math.inf
    job_id: int | None = None

    def is_recovered() -> bool:
        nonlocal ready_after, job_after, job_id
        if ready_after == math.inf and portal.is_ready():
            ready_after = time.monotonic() - began
        try:
            with portal.client("alice") as client:
                if job_id is None:
                    job_id = client.submit(JOB).id
                elif job_after == math.inf and client.job(job_id).state == "succeeded":
                    job_after = time.monotonic() - began
        except UnreachableError:
            pass
        except ApiError as error:
            if error.status < 500:
                raise
        return max(ready_after, job_after) < math.inf

    wait_until(is_recovered, RESTART_SECONDS, "the recovery", every=0.05)
    return Recovery(ready_after, job_after)


def _entries(found: dict[str, list[Recovery]]) -> list[dict[str, Any]]:
    everything = [one for recoveries in found.values() for one in recoveries]
    context = f"{len(everything)} faults, one at a time; SQLite, demo cluster"
    entries = []
    for name in Recovery._fields:
        values = sorted(getattr(one, name) for one in everything)
        p90 = values[math.ceil(0.9 * len(values)) - 1]
        entries += [
            entry(f"{name}_p50", statistics.median(values), "s", "lower", context),
            entry(f"{name}_p90", p90, "s", "lower", context),
            entry(f"{name}_max", values[-1], "s", "lower", context),
        ]
        entries += [
            entry(f"{name}_{kind}", statistics.median(getattr(one, name) for one in ones),
                  "s", "lower", "median")
            for kind, ones in found.items()
        ]  # fmt: skip
    return entries


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print(json.dumps(measure(options.cycles, options.seed), indent=2))
