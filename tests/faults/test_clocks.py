"""Two hosts of which one has a wrong clock, dies, or has a frozen beat.

pytest -m soak -rP tests/faults/test_clocks.py
"""

import http.client
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tessera.client import Client
from tests.support.shifted_clock import ShiftedClock, can_shift
from tests.support.two_hosts import Host, TwoHosts, can_make_hosts, two_hosts
from tests.support.waiting import is_alive, wait_until

REASON = can_make_hosts() or can_shift()
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(REASON), reason=REASON or "it can be done"),
]
START_SECONDS = 240.0
TAKEOVER_SECONDS = 15.0
BEAT_SECONDS = 15.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> ShiftedClock:
    return ShiftedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, clock: ShiftedClock) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        hosts.stop_examples()
        yield hosts


@pytest.fixture
def hosts(made: TwoHosts, clock: ShiftedClock) -> TwoHosts:
    """Both hosts with right clocks; that of the second one can be set."""
    clock.set(0)
    made.hosts[1].extra = clock.variables
    if made.hosts[1].process is not None and not moves(made.hosts[1], clock):
        made.hosts[1].kill()
    for host in made.hosts:
        if host.process is None:
            host.begin()
    wait_until(made.is_ready, START_SECONDS, "both hosts")
    wait_until(lambda: all(made.carriers().values()), START_SECONDS, "a share for each host")
    return made


def moves(host: Host, clock: ShiftedClock) -> bool:
    """Whether a host was started with the clock that can be set."""
    mark = clock.variables["LD_PRELOAD"].encode()
    pids = [pid for pid in host.members() if is_alive(pid)]
    return any(mark in Path(f"/proc/{pid}/environ").read_bytes() for pid in pids[:3])


@pytest.mark.parametrize("hours", [2, -2])
def test_a_host_that_starts_with_a_wrong_clock_and_dies_costs_nothing(
    hosts: TwoHosts, clock: ShiftedClock, hours: int
) -> None:
    right, wrong = hosts.hosts
    wrong.kill()
    clock.set(hours)
    wrong.begin()
    wait_until(lambda: refuses(hosts, hours), START_SECONDS, "the refusal")
    wait_until(lambda: carries_all(hosts, right), START_SECONDS, "all nodes")
    wait_until(lambda: part(right, "clock") == "clock-skew", 30, "the part")

    wrong.kill()

    taken = seconds_until(lambda: carries_all(hosts, right), "all nodes", TAKEOVER_SECONDS)
    ended = job_ends(hosts, right)
    print(f"started {hours:+d} h off, killed: all nodes after {taken:.1f} s, job in {ended:.1f} s")


@pytest.mark.parametrize("hours", [2, -2])
def test_a_clock_that_jumps_on_a_host_that_carries_nodes(
    hosts: TwoHosts, clock: ShiftedClock, hours: int
) -> None:
    right, wrong = hosts.hosts
    clock.set(hours)

    taken = seconds_until(lambda: carries_all(hosts, right), "all nodes", TAKEOVER_SECONDS)
    wait_until(lambda: refuses(hosts, hours), 15, "the refusal")
    ended = job_ends(hosts, wrong)

    print(f"jump of {hours:+d} h: all nodes after {taken:.1f} s, a job in {ended:.1f} s")
    assert longest_lease(hosts) <= 12.0
    wrong.kill()
    assert job_ends(hosts, right) < 60


def test_a_host_that_is_killed_as_its_clock_jumps_is_followed(
    hosts: TwoHosts, clock: ShiftedClock
) -> None:
    right, wrong = hosts.hosts
    clock.set(2)
    wrong.kill()

    taken = seconds_until(lambda: carries_all(hosts, right), "all nodes", TAKEOVER_SECONDS)
    print(f"killed: all nodes after {taken:.1f} s")
    assert job_ends(hosts, right) < 60


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_whose_beat_dies_or_freezes_is_followed(
    hosts: TwoHosts, number: signal.Signals
) -> None:
    active, other = hosts.hosts
    if beat_of(hosts) != active.name:
        active, other = other, active
    if number is signal.SIGKILL:
        active.kill()
    else:
        active.send_to_all(number)

    taken = seconds_until(lambda: beat_of(hosts) == other.name, "the other beat", BEAT_SECONDS)
    print(f"{number.name}: the other beat after {taken:.1f} s")
    if number is signal.SIGSTOP:
        active.send_to_all(signal.SIGCONT)
        wait_until(hosts.is_ready, START_SECONDS, "both hosts")
        assert beat_of(hosts) == other.name


def seconds_until(condition: Callable[[], bool], what: str, limit: float) -> float:
    """Wait for a condition; returns how long it took."""
    begun = time.monotonic()
    wait_until(condition, limit, what)
    return time.monotonic() - begun


def carries_all(hosts: TwoHosts, host: Host) -> bool:
    """Whether a host carries all nodes, by leases that end when they should."""
    return hosts.carriers()[host.name] == 3 and longest_lease(hosts) <= 12.0


def longest_lease(hosts: TwoHosts) -> float:
    """Seconds until the last lease of a node ends, by the database's clock."""
    left = "extract(epoch FROM max(expires_at) - clock_timestamp())::float8"
    return float(hosts.rows(f"SELECT {left} AS seconds FROM workers_nodelease")[0]["seconds"])


def refuses(hosts: TwoHosts, hours: int) -> bool:
    """Whether a living node service says that its host's clock is so far off."""
    found = hosts.rows(
        "SELECT skew_seconds FROM workers_heartbeat WHERE kind = 'nodes'"
        " AND refusal = 'clock-skew' AND at > clock_timestamp() - interval '15 s'"
    )
    return any(round(row["skew_seconds"] / 3600) == hours for row in found)


def beat_of(hosts: TwoHosts) -> str:
    """The host whose beat is active; empty if none is."""
    found = hosts.rows(
        "SELECT owner FROM workers_dutylease"
        " WHERE name = 'beat' AND expires_at > clock_timestamp()"
    )
    return next(
        (host.name for host in hosts.hosts if found and host.name in found[0]["owner"]), ""
    )


def job_ends(hosts: TwoHosts, host: Host) -> float:
    """Seconds from the submit of a job at a host to its end."""
    role = {"instances": 1, "devices": 1, "command": "echo hello"}
    spec = {"name": "hello", "virtual_cluster": "vision-a", "roles": {"worker": role}}
    with Client(host.url, hosts.token("alice"), timeout_seconds=60.0) as line:
        job = line.submit(spec).id
    query = "SELECT state FROM scheduling_job WHERE id = %s"
    return seconds_until(
        lambda: hosts.rows(query, job)[0]["state"] == "succeeded",
        f"the end of job {job}",
        90,
    )


def part(host: Host, name: str) -> Any:
    """What a host says of a part."""
    with closing(http.client.HTTPConnection("127.0.0.1", host.port, timeout=10)) as line:
        line.request("GET", "/readyz")
        return json.loads(line.getresponse().read())["parts"][name]["detail"]
