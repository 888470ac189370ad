"""Random faults by a seed while people submit jobs: what every installation has in common.

A fault is either done at once (a kill) or lasts: then it is ended when its time is over, while
other faults happen.
"""

import json
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis

from tests.faults.accounts import Account
from tests.faults.disks import full
from tests.faults.instants import wait_for_instant
from tests.faults.readiness import Readiness
from tests.faults.victims import (
    NODES,
    can_cut,
    log_writers,
    network_cut,
    runners,
    session,
    silence_until_an_end,
)
from tests.faults.workload import Crowd, Drawing
from tests.support.waiting import wait_until
from tests.support.whole_portal import RESTART_SECONDS, WholePortal

HEAL_EVERY: Final = 8
"""Actions between two measurements of how long the portal takes to be ready again."""


class NothingToHurtError(Exception):
    """There is no process of this kind now: another action is drawn, and this one not counted."""


Act = Callable[[], None]


@dataclass
class Lasting:
    """A fault that has not ended yet."""

    name: str
    until: float
    end: Act


@dataclass
class Nemesis:
    """Hurts an installation.

    Attributes:
        longest: upper bound of a lasting fault, in seconds.
        done: actions by name.
        ready: seconds from the end of all faults until the portal was ready.
        ready_after_each: seconds from the end of each fault, with those that followed it.
    """

    portal: WholePortal
    rng: random.Random
    crowd: Crowd
    drawing: Drawing
    longest: float = 12.0
    done: Counter[str] = field(default_factory=Counter)
    ready: list[float] = field(default_factory=list)
    ready_after_each: list[float] = field(default_factory=list)
    _lasting: list[Lasting] = field(default_factory=list)
    _hurt_runs: set[str] = field(default_factory=set)

    def kinds(self) -> dict[str, tuple[int, Act]]:
        """Weight and action by name, without those that cannot be done here."""
        found: dict[str, tuple[int, Act]] = {
            "kill_runner": (8, lambda: self._hurt_run(runners, signal.SIGKILL)),
            "freeze_runner": (3, lambda: self._hurt_run(runners, signal.SIGSTOP)),
            "kill_log_writer": (8, lambda: self._hurt_run(log_writers, signal.SIGKILL)),
            "freeze_log_writer": (3, lambda: self._hurt_run(log_writers, signal.SIGSTOP)),
            "kill_session": (8, self._kill_session),
            "end_unobserved": (8, self._end_unobserved),
            "flush_redis": (6, self._flush_redis),
            "cut_request": (8, self._cut_request),
            "same_key_twice": (8, self._same_key_twice),
        }
        if can_cut():
            found["cut_node"] = (5, self._cut_node)
        if any(home.is_mount() for home in self.portal.homes):
            found["fill_node"] = (5, self._fill_node)
        return found

    def act(self, actions: int) -> None:
        """Do so many things, and leave the portal ready."""
        kinds = self.kinds()
        weights = [weight for weight, _ in kinds.values()]
        with Readiness(self.portal.is_ready) as readiness:
            self._readiness = readiness
            for number in range(1, actions + 1):
                while not self._do(*self.rng.choices(list(kinds.items()), weights=weights)[0]):
                    pass
                wait_for_instant(self.rng, 0.2, 2)
                self.end_faults(time.monotonic())
                if number % HEAL_EVERY == 0 or number == actions:
                    self.heal()
        self.ready_after_each = readiness.seconds

    def _do(self, name: str, kind: tuple[int, Act]) -> bool:
        before = len(self._lasting)
        try:
            kind[1]()
        except NothingToHurtError:
            return False
        self.done[name] += 1
        self.portal.note(name)
        if len(self._lasting) == before:
            self._readiness.fault_ended()
        return True

    def heal(self) -> None:
        """End all faults and measure how long the portal takes to be ready."""
        self.end_faults()
        begun = time.monotonic()

        def is_ready() -> bool:
            self.revive()
            return self.portal.is_ready()

        wait_until(is_ready, RESTART_SECONDS, "readiness", every=0.1)
        self.ready.append(time.monotonic() - begun)

    def revive(self) -> None:
        """Start what no supervisor of this installation starts again."""

    def report(self) -> dict[str, Any]:
        """Actions by name, and seconds until the portal was ready again."""
        return {
            "actions": sum(self.done.values()),
            "by_kind": dict(sorted(self.done.items())),
            "ready_after_healing": quantiles(self.ready),
            "ready_after_each": quantiles(self.ready_after_each),
            "load": round(os.getloadavg()[1], 1),
        }

    # -- faults that last ------------------------------------------------------------------------

    def last(self, name: str, end: Act, *, most: float | None = None) -> None:
        """Let ``end`` be called after a time by chance."""
        if any(one.name == name for one in self._lasting):
            end()
            raise NothingToHurtError
        seconds = self.rng.uniform(1, most or self.longest)
        self._lasting.append(Lasting(name, time.monotonic() + seconds, end))

    def last_within(self, name: str, fault: AbstractContextManager[None]) -> None:
        """Let a fault last for a time by chance."""
        if any(one.name == name for one in self._lasting):
            raise NothingToHurtError
        stack = ExitStack()
        stack.enter_context(fault)
        self.last(name, stack.close)

    def end_faults(self, now: float = float("inf")) -> None:
        """End the faults whose time is over."""
        for fault in [one for one in self._lasting if one.until <= now]:
            self._lasting.remove(fault)
            fault.end()
            self.portal.note(f"end of {fault.name}")
            self._readiness.fault_ended()

    # -- nodes -----------------------------------------------------------------------------------

    def _hurt_run(
        self, find: Callable[[WholePortal], dict[int, str]], number: signal.Signals
    ) -> None:
        """Hurt the runner or the log writer of a run: not both, which may lose output."""
        found = sorted(
            (run_id, pid) for pid, run_id in find(self.portal).items()
            if run_id not in self._hurt_runs
        )  # fmt: skip
        if not found:
            raise NothingToHurtError
        run_id, pid = self.rng.choice(found)
        self._hurt_runs.add(run_id)
        self.portal.note(f"{number.name} to process {pid} of run {run_id}")
        self.freeze(pid) if number is signal.SIGSTOP else send(pid, number)

    def freeze(self, pid: int) -> None:
        """Stop a process for a while."""
        send(pid, signal.SIGSTOP)
        self.last(f"frozen process {pid}", lambda: send(pid, signal.SIGCONT))

    def _kill_session(self) -> None:
        node = self.rng.choice(NODES)
        pid = session(self.portal, node)
        if pid is None:
            raise NothingToHurtError
        self.portal.note(f"SIGKILL session on {node}")
        send(pid, signal.SIGKILL)

    def _end_unobserved(self) -> None:
        node = self.rng.choice(NODES)
        pid = silence_until_an_end(self.portal, node, self.drawing.ledger, self.longest)
        if pid is None:
            raise NothingToHurtError
        self.last(f"frozen process {pid}", lambda: send(pid, signal.SIGCONT))

    def _cut_node(self) -> None:
        node = self.rng.choice(NODES)
        self.last_within(f"cut of {node}", network_cut(self.portal, node))

    def _fill_node(self) -> None:
        home = next(home for home in self.portal.homes if home.is_mount())
        self.last_within("full node", full(home))

    # -- what all share, and clients -------------------------------------------------------------

    def _flush_redis(self) -> None:
        with suppress(redis.RedisError), self.portal.connect_broker() as broker:
            broker.flushall()

    def _cut_request(self) -> None:
        """Submit, close the connection at any byte, and submit again with the same key."""
        wish = self.drawing.single()
        body = json.dumps(wish.document).encode()
        port = self.rng.choice(self.portal.ports)
        head = (
            f"POST /api/v1/jobs/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Authorization: Token {self.portal.token(wish.user)}\r\n"
            f"Idempotency-Key: {wish.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        whole = head + body
        end = self.rng.choice([len(whole), self.rng.randrange(1, len(whole))])
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as line:
            line.sendall(whole[:end])
        self.crowd.want([wish], people=1)

    def _same_key_twice(self) -> None:
        wish = self.drawing.single(seconds=(0.5, 4))
        self.crowd.want([wish, wish], people=2)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def quantiles(found: list[float]) -> dict[str, float]:
    """Count, median, 9th decile and maximum."""
    times = sorted(found)
    if not times:
        return {"n": 0}
    return {
        "n": len(times),
        "p50": round(times[len(times) // 2], 2),
        "p90": round(times[int(0.9 * (len(times) - 1))], 2),
        "max": round(times[-1], 2),
    }


def told(figures: str, account: Account, broken: str) -> dict[str, object]:
    """What was found, for a report."""
    return {
        "jobs": figures,
        "attempts_compared": account.attempts,
        "device_seconds": {"ledger": round(account.ledger), "charged": round(account.charged)},
        "difference_s": {"most": round(account.most, 2), "least": round(account.least, 2)},
        "ends_observed_late": account.late,
        "logs": account.logs,
        "lines": account.lines,
        "marked_gaps": account.gaps,
        "lines_lost_in_marked_gaps": account.lost,
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
