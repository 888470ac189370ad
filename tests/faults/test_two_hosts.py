"""Two hosts with PostgreSQL and Redis: one is killed, frozen or cut off while jobs run.

FAULTS_SEED=21 FAULTS_ACTIONS=100 pytest -m soak tests/faults/test_two_hosts.py
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
import redis

from tests.faults.accounts import compare
from tests.faults.instants import wait_for_instant
from tests.faults.nemesis import measured, told, write_report
from tests.faults.promises import check_promises, read_ledger
from tests.faults.test_nemesis import ACTIONS, LOST, REPORT, SEED
from tests.faults.workload import Crowd, Drawing, new_ledger
from tests.support.two_hosts import Host, TwoHosts, can_make_hosts, two_hosts
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(bool(can_make_hosts()), reason=can_make_hosts() or "it can be done"),
]

TAKEN_OVER_SECONDS = 60.0
AWAY_SECONDS = 60.0


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    folder = tmp_path_factory.mktemp("hosts")
    with two_hosts(folder) as made:
        made.stop_examples()
        yield made


@pytest.fixture
def scene(portal: TwoHosts, tmp_path: Path) -> tuple[random.Random, Crowd, Drawing, Path]:
    portal.begin_notes()
    portal.show_to_jobs(tmp_path)
    for host in portal.hosts:
        if host.process is None:
            host.begin()
    portal.wait_until_ready()
    rng, ledger = random.Random(SEED), new_ledger(tmp_path / "hosts.ledger")
    tag = f"hosts-{SEED}-{time.monotonic():.0f}"
    return rng, Crowd(portal), Drawing(rng, ledger, tag, longest=15), ledger


def test_the_nodes_of_a_host_that_is_killed_are_taken_over(
    portal: TwoHosts, scene: tuple[random.Random, Crowd, Drawing, Path]
) -> None:
    _, crowd, drawing, ledger = scene
    wait_until(lambda: all(portal.carriers().values()), 120, "a share of the nodes for each host")
    crowd.want(drawing.twenty())
    accepted = crowd.wait()

    lost, left = portal.hosts
    lost.kill()
    begun = time.monotonic()
    wait_until(
        lambda: portal.carriers()[left.name] == 3, TAKEN_OVER_SECONDS, "the take-over of all nodes"
    )
    seconds = time.monotonic() - begun
    lost.begin()

    write_report(REPORT, {"test": "take-over", "taken_over_s": round(seconds, 1)})
    assert check_promises(portal, accepted, ledger).jobs == 20
    assert compare(portal, read_ledger(ledger)).wrong == []


def test_jobs_are_submitted_start_and_end_while_the_broker_is_away(
    portal: TwoHosts, scene: tuple[random.Random, Crowd, Drawing, Path]
) -> None:
    rng, crowd, drawing, ledger = scene
    for host in portal.hosts:
        host.links["broker"].cut()
    try:
        begun = time.monotonic()
        crowd.want([drawing.single(seconds=(1, 3)) for _ in range(6)])
        with crowd.trickle(drawing, every=5):
            wait_until(
                lambda: any(line.what == "end" for line in read_ledger(ledger)),
                AWAY_SECONDS,
                "the end of a job without the broker",
            )
            first = time.monotonic() - begun
            wait_for_instant(rng, AWAY_SECONDS - first, AWAY_SECONDS - first)
    finally:
        for host in portal.hosts:
            host.links["broker"].mend()
    accepted = crowd.wait()

    write_report(REPORT, {"test": "broker away", "first_job_ended_after_s": round(first, 1)})
    portal.wait_until_ready()
    assert check_promises(portal, accepted, ledger).jobs > 6
    assert compare(portal, read_ledger(ledger)).wrong == []


def test_random_faults_of_hosts_break_no_promise(
    portal: TwoHosts, scene: tuple[random.Random, Crowd, Drawing, Path]
) -> None:
    rng, crowd, drawing, ledger = scene
    nemesis = HostNemesis(portal, rng)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        nemesis.act(ACTIONS)
    accepted = crowd.wait()

    try:
        figures, broken = str(check_promises(portal, accepted, ledger, excused=LOST)), ""
    except AssertionError as error:
        figures, broken = "", str(error)
    account = compare(portal, read_ledger(ledger))
    report = {"seed": SEED, "hosts": 2, **measured(nemesis.done, nemesis.ready)}
    write_report(REPORT, {**report, **told(figures, account, broken)})
    assert not broken, broken
    assert account.wrong == []


class HostNemesis:
    """What is done to two hosts and to what they share; one thing at a time."""

    def __init__(self, portal: TwoHosts, rng: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self.ready: list[float] = []
        self._portal, self._rng = portal, rng
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "kill_process": (30, self._kill_process),
            "kill_host": (6, self._kill_host),
            "freeze_host": (6, self._freeze_host),
            "cut_database": (8, lambda: self._cut("database")),
            "cut_broker": (8, lambda: self._cut("broker")),
            "flush_redis": (6, self._flush),
            "restart_postgres": (4, self._restart_postgres),
            "end_connections": (6, self._end_connections),
            "lock_table": (6, self._lock_table),
        }

    def act(self, actions: int) -> None:
        """Do so many things; every eighth time wait until everything works again."""
        weights = [weight for weight, _ in self._kinds.values()]
        for number in range(1, actions + 1):
            (name,) = self._rng.choices(list(self._kinds), weights=weights)
            self._portal.note(name)
            self._kinds[name][1]()
            self.done[name] += 1
            wait_for_instant(self._rng, 0.2, 2)
            if number % 8 == 0 or number == actions:
                begun = time.monotonic()
                self._portal.wait_until_ready()
                self.ready.append(time.monotonic() - begun)

    def _host(self) -> Host:
        return self._rng.choice(self._portal.hosts)

    def _kill_process(self) -> None:
        self._host().kill_one(self._rng)

    def _kill_host(self) -> None:
        host = self._host()
        host.kill()
        wait_for_instant(self._rng, 1, 20)
        host.begin()

    def _freeze_host(self) -> None:
        host = self._host()
        host.send_to_all(signal.SIGSTOP)
        wait_for_instant(self._rng, 2, 20)
        host.send_to_all(signal.SIGCONT)

    def _cut(self, link: str) -> None:
        with cut(self._host(), link):
            wait_for_instant(self._rng, 2, 20)

    def _flush(self) -> None:
        with suppress(redis.RedisError), redis.Redis(port=self._portal.broker) as broker:
            broker.flushall()

    def _restart_postgres(self) -> None:
        self._portal.server.restart()

    def _end_connections(self) -> None:
        self._portal.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def _lock_table(self) -> None:
        table = self._rng.choice(["scheduling_job", "scheduling_member", "scheduling_attempt"])
        with suppress(psycopg.OperationalError), self._portal.ask() as connection:
            connection.execute("BEGIN")
            connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            wait_for_instant(self._rng, 1, 6)
            connection.execute("ROLLBACK")


@contextmanager
def cut(host: Host, link: str) -> Iterator[None]:
    """A host cannot reach the database or the broker, and is not told so."""
    host.links[link].cut()
    try:
        yield
    finally:
        host.links[link].mend()
