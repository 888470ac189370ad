"""Random faults of one of two hosts and of what the hosts share."""

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.faults.disks import full
from tests.faults.nemesis import (
    Act,
    Nemesis,
    NothingToHurtError,
    quantiles,
    send,
)
from tests.faults.victims import can_cut, cut_from_nodes
from tests.support.shifted_clock import ShiftedClock
from tests.support.two_hosts import Host, TwoHosts
from tests.support.waiting import wait_until

TAKEN_OVER_SECONDS = 60.0


def wait_for_shares(portal: TwoHosts) -> None:
    """Wait until each host carries nodes."""
    wait_until(lambda: all(portal.carriers().values()), 120, "a share of the nodes for each host")


def seconds_until_shares(portal: TwoHosts) -> float:
    begun = time.monotonic()
    wait_for_shares(portal)
    return round(time.monotonic() - begun, 1)


def seconds_until_carried_by(portal: TwoHosts, host: Host) -> float:
    begun = time.monotonic()
    wait_until(
        lambda: portal.carriers()[host.name] == 3,
        TAKEN_OVER_SECONDS,
        "the take-over of all nodes",
        every=0.1,
    )
    return round(time.monotonic() - begun, 1)


@dataclass
class HostNemesis(Nemesis):
    """Hurts two hosts and what they share.

    Attributes:
        clock: of the second host.
        taken: seconds until the other host carried all nodes, by fault.
    """

    portal: TwoHosts
    clock: ShiftedClock = field(kw_only=True)
    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def kinds(self) -> dict[str, tuple[int, Act]]:
        found: dict[str, tuple[int, Act]] = super().kinds() | {
            "kill_process": (30, lambda: self._kill(b"")),
            "kill_beat": (5, lambda: self._kill(b"beat")),
            "freeze_process": (6, self._freeze_process),
            "kill_host": (8, self._kill_host),
            "freeze_host": (8, self._freeze_host),
            "cut_database": (8, lambda: self._cut("database")),
            "cut_broker": (8, lambda: self._cut("broker")),
            "jump_of_clock": (8, self._jump_of_clock),
            "restart_postgres": (4, self._restart_postgres),
            "end_connections": (5, self._end_connections),
            "lock_table": (5, self._lock_table),
        }
        if can_cut():
            found["cut_host_from_nodes"] = (8, self._cut_from_nodes)
        if all(host.data.is_mount() for host in self.portal.hosts):
            found["fill_data_directory"] = (5, self._fill_data_directory)
        return found

    def revive(self) -> None:
        for host in self.portal.hosts:
            # A start without the database fails; a service manager starts it again.
            if host.process is not None and host.process.poll() is not None:
                self.portal.note(f"{host.name} did not start and is started again")
                host.begin()

    def _host(self) -> Host:
        """A host that is not down."""
        self.revive()
        return self.rng.choice([host for host in self.portal.hosts if host.process is not None])

    def _kill(self, word: bytes) -> None:
        found = self._host().others(word)
        if not found:
            raise NothingToHurtError
        send(self.rng.choice(found), signal.SIGKILL)

    def _freeze_process(self) -> None:
        found = self._host().others()
        if not found:
            raise NothingToHurtError
        self.freeze(self.rng.choice(found))

    def _kill_host(self) -> None:
        with self._measured_take_over("kill_host") as host:
            host.kill()
        self.last("host down", host.begin)

    def _freeze_host(self) -> None:
        with self._measured_take_over("freeze_host") as host:
            host.send_to_all(signal.SIGSTOP)
        process = host.process

        def end() -> None:
            if host.process is process:
                host.send_to_all(signal.SIGCONT)

        self.last(f"frozen {host.name}", end)

    def _cut_from_nodes(self) -> None:
        stack = ExitStack()
        with self._measured_take_over("cut_host_from_nodes") as host:
            stack.enter_context(cut_from_nodes(self.portal, host.group))
        self.last(f"{host.name} cut from nodes", stack.close)

    def _cut(self, link: str) -> None:
        with self._measured_take_over(f"cut_{link}", is_taken=link == "database") as host:
            host.links[link].cut()
        self.last(f"{host.name} cut from {link}", host.links[link].mend)

    def _jump_of_clock(self) -> None:
        with self._measured_take_over("jump_of_clock", host=self.portal.hosts[1]):
            self.clock.set(self.rng.choice([-2, 2]))
        self.last("wrong clock", lambda: self.clock.set(0))

    @contextmanager
    def _measured_take_over(
        self, name: str, *, host: Host | None = None, is_taken: bool = True
    ) -> Iterator[Host]:
        """Begin a fault of one host alone, half of the time, and wait for the other host."""
        hurt = host or self._host()
        if any(hurt.name in fault.name or fault.name == "host down" for fault in self._lasting):
            raise NothingToHurtError
        is_alone = is_taken and self.rng.random() < 0.5
        if is_alone:
            self.heal()
            wait_for_shares(self.portal)
        yield hurt
        if is_alone:
            (other,) = [one for one in self.portal.hosts if one is not hurt]
            self.taken[name].append(seconds_until_carried_by(self.portal, other))

    def report(self) -> dict[str, Any]:
        return super().report() | {
            "taken_over": {name: quantiles(found) for name, found in sorted(self.taken.items())}
        }

    def _restart_postgres(self) -> None:
        self.portal.server.restart()

    def _end_connections(self) -> None:
        self.portal.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def _lock_table(self) -> None:
        table = self.rng.choice(["scheduling_job", "scheduling_member", "scheduling_attempt"])
        connection = self.portal.ask()

        def end() -> None:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            connection.close()

        connection.execute("SET lock_timeout = '5 s'")
        connection.execute("BEGIN")
        try:
            connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        except psycopg.Error:
            connection.close()
            raise NothingToHurtError from None
        self.last("locked table", end, most=6)

    def _fill_data_directory(self) -> None:
        self.last_within("full data directory", full(self._host().data))
