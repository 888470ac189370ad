"""Hurts a whole portal at random, by a seed, while people submit jobs; writes down what it did."""

import json
import os
import random
import signal
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis

from tests.faults.accounts import Account
from tests.faults.instants import wait_for_instant
from tests.faults.test_nodes import NODES, runners, send_to_session
from tests.faults.workload import Crowd, Drawing
from tests.support.whole_portal import CHILDREN, WholePortal

HEAL_EVERY: Final = 8
"""Actions between two measurements of how long the portal takes to be ready again."""

WEIGHTS: Final = {
    "kill_child": 30,
    "kill_children": 5,
    "freeze_child": 8,
    "kill_runner": 8,
    "freeze_runner": 3,
    "kill_session": 8,
    "kill_supervisor": 3,
    "crash": 2,
    "flush_redis": 6,
    "lock_database": 3,
    "cut_request": 12,
    "same_key_twice": 12,
}


@dataclass
class Nemesis:
    """What is done to a portal.

    Attributes:
        longest: seconds for which something stands still or is locked at most.
        done: actions by name.
        ready: seconds from the end of a fault until the portal was ready.
    """

    portal: WholePortal
    rng: random.Random
    crowd: Crowd
    drawing: Drawing
    longest: float = 12.0
    done: Counter[str] = field(default_factory=Counter)
    ready: list[float] = field(default_factory=list)
    _frozen: dict[int, float] = field(default_factory=dict)

    def act(self, actions: int) -> None:
        """Do so many things, one after the other, and leave the portal ready."""
        for number in range(1, actions + 1):
            (name,) = self.rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
            action: Callable[[], None] = getattr(self, f"_{name}")
            action()
            self.done[name] += 1
            wait_for_instant(self.rng, 0.2, 2.5)
            self._thaw(time.monotonic())
            if number % HEAL_EVERY == 0 or number == actions:
                self.heal()

    def heal(self) -> None:
        """End all faults and measure how long the portal takes to be ready."""
        self._thaw(float("inf"))
        begun = time.monotonic()
        self.portal.wait_until_ready()
        self.ready.append(time.monotonic() - begun)

    # -- processes -------------------------------------------------------------------------------

    def _kill_child(self) -> None:
        self._send(self.rng.choice(CHILDREN), signal.SIGKILL)

    def _kill_children(self) -> None:
        for name in self.rng.sample(CHILDREN, self.rng.randint(2, len(CHILDREN))):
            self._send(name, signal.SIGKILL)

    def _freeze_child(self) -> None:
        pid = self._send(self.rng.choice(CHILDREN), signal.SIGSTOP)
        if pid is not None:
            self._frozen[pid] = time.monotonic() + self.rng.uniform(1, self.longest)

    def _send(self, name: str, number: signal.Signals) -> int | None:
        pid = self.portal.children().get(name)
        if pid is None:
            return None  # it is being started again
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        self.portal.note(f"{number.name} {name}")
        return pid

    def _kill_runner(self) -> None:
        for pid in self._any_runner():
            _signal(pid, signal.SIGKILL)

    def _freeze_runner(self) -> None:
        for pid in self._any_runner():
            _signal(pid, signal.SIGSTOP)
            self._frozen[pid] = time.monotonic() + self.rng.uniform(1, self.longest)

    def _any_runner(self) -> list[int]:
        found = sorted(runners(self.portal).items())
        if not found:
            return []
        pid, run_id = self.rng.choice(found)
        self.portal.note(f"runner of {run_id}")
        return [pid]

    def _kill_session(self) -> None:
        if "demo-nodes" in self.portal.children() and not self._frozen:
            send_to_session(self.portal, self.rng.choice(NODES), signal.SIGKILL)

    def _kill_supervisor(self) -> None:
        self._thaw(float("inf"))
        self.portal.kill()
        wait_for_instant(self.rng, 0.2, 5)
        self.portal.up()

    def _crash(self) -> None:
        self._thaw(float("inf"))
        self.portal.crash()
        wait_for_instant(self.rng, 0.2, 5)
        self.portal.up()

    def _thaw(self, now: float) -> None:
        for pid, until in list(self._frozen.items()):
            if until <= now:
                del self._frozen[pid]
                _signal(pid, signal.SIGCONT)

    # -- what all share --------------------------------------------------------------------------

    def _flush_redis(self) -> None:
        with (
            suppress(redis.RedisError),
            redis.Redis.from_url(self.portal.redis_url, socket_timeout=2) as broker,
        ):
            broker.flushall()
        self.portal.note("FLUSHALL")

    def _lock_database(self) -> None:
        path = self.portal.data / "db.sqlite3"
        with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            self.portal.note("database locked")
            wait_for_instant(self.rng, 1, self.longest / 2)
            database.execute("ROLLBACK")

    # -- clients ---------------------------------------------------------------------------------

    def _cut_request(self) -> None:
        """Submit, hang up at any byte, and submit again with the same key."""
        wish = self.drawing.single()
        body = json.dumps(wish.document).encode()
        head = (
            f"POST /api/v1/jobs/ HTTP/1.1\r\nHost: 127.0.0.1:{self.portal.port}\r\n"
            f"Authorization: Token {self.portal.token(wish.user)}\r\n"
            f"Idempotency-Key: {wish.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        whole = head + body
        end = self.rng.choice([len(whole), self.rng.randrange(1, len(whole))])
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.portal.port), 2) as line,
        ):
            line.sendall(whole[:end])
        self.crowd.want([wish], people=1)

    def _same_key_twice(self) -> None:
        wish = self.drawing.single(seconds=(0.5, 4))
        self.crowd.want([wish, wish], people=2)


def measured(done: Counter[str], ready: list[float]) -> dict[str, object]:
    """Actions by name, and seconds until the portal was ready again, for a report."""
    times = sorted(ready)
    return {
        "actions": sum(done.values()),
        "by_kind": dict(sorted(done.items())),
        "ready_p50": round(times[len(times) // 2], 2),
        "ready_p90": round(times[int(0.9 * (len(times) - 1))], 2),
        "ready_max": round(times[-1], 2),
    }


def told(figures: str, account: Account, broken: str) -> dict[str, object]:
    """What was found, for a report."""
    return {
        "jobs": figures,
        "attempts_compared": account.attempts,
        "device_seconds": {"ledger": round(account.ledger), "charged": round(account.charged)},
        "worst_difference_s": round(account.worst, 2),
        "logs": account.logs,
        "lines": account.lines,
        "events": account.events,
        "violations": [*broken.splitlines()[:20], *account.wrong[:20]],
    }


def write_report(path: Path | None, report: dict[str, object]) -> None:
    """Print a report as one line of JSON, and append it to a file if one is named."""
    text = json.dumps(report, sort_keys=True)
    print(text)
    if path is not None:
        with path.open("a") as file:
            file.write(text + "\n")


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
