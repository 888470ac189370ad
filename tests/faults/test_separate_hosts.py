"""Two hosts with separate data directories, a standby, Sentinels and an object store.

FAULTS_SEED=31 FAULTS_ACTIONS=1000 pytest -m soak tests/faults/test_separate_hosts.py
"""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.accounts import compare
from tests.faults.host_nemesis import HostNemesis, wait_for_shares
from tests.faults.instants import wait_for_instant
from tests.faults.nemesis import Act, NothingToHurtError, write_report
from tests.faults.nemesis_runs import ACTIONS, REPORT, SEED, check_promises_under_faults
from tests.faults.promises import check_promises, read_ledger
from tests.faults.victims import can_cut, cut_from_nodes
from tests.faults.workload import Scene, make_scene_at
from tests.support.load_balancer import has_haproxy, load_balancer
from tests.support.separate_hosts import SeparateHosts, separate_hosts
from tests.support.shifted_clock import ShiftedClock, can_shift
from tests.support.two_hosts import can_make_hosts
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(bool(can_make_hosts()), reason=can_make_hosts() or "it can be done"),
    pytest.mark.skipif(not can_cut(), reason="packets cannot be dropped here"),
]

WHOLE_AGAIN_SECONDS = 20.0
FAIL_OVER_SECONDS = 60.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> ShiftedClock:
    if can_shift():
        pytest.skip(can_shift())
    return ShiftedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def portal(
    tmp_path_factory: pytest.TempPathFactory, clock: ShiftedClock
) -> Iterator[SeparateHosts]:
    folder = tmp_path_factory.mktemp("hosts")
    with separate_hosts(folder, extra={"host-b": clock.variables}) as made:
        made.stop_examples()
        yield made


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


@pytest.fixture
def scene(portal: SeparateHosts, rng: random.Random, tmp_path: Path) -> Scene:
    for host in portal.hosts:
        if host.process is None:
            host.begin()
    portal.wait_until_ready()
    tag = f"separate-{SEED}-{time.monotonic():.0f}"
    return make_scene_at(portal, tmp_path, rng, tag, longest=12)


def test_hosts_share_no_files(portal: SeparateHosts) -> None:
    first, second = portal.hosts

    assert not [path for host in portal.hosts for path in host.data.rglob("*.log.zst")]
    assert not (first.data / "logs").is_symlink()
    assert not (second.data / "logs").is_symlink()
    assert list(portal.storage.files("rounds"))


@pytest.mark.parametrize("number", [0, 1])
def test_the_other_host_is_whole_within_twenty_seconds(
    number: int, portal: SeparateHosts, rng: random.Random, scene: Scene
) -> None:
    crowd, drawing, ledger = scene
    wait_for_shares(portal)
    # Few, so that the job after the kill finds free devices.
    crowd.want([drawing.single(seconds=(4, 8)) for _ in range(4)])
    accepted = crowd.wait()
    lost = portal.hosts[number]
    left = portal.hosts[1 - number]

    lost.kill()
    begun = time.monotonic()
    wish = drawing.single(seconds=(0.5, 1))
    crowd.want([wish], people=1)
    wait_until(
        lambda: portal.carriers()[left.name] == 3, 60, "the take-over of all nodes", every=0.1
    )
    carried = time.monotonic() - begun
    wait_until(lambda: wish.key in accepted.jobs, 60, "the acceptance of a job", every=0.1)
    with portal.client(wish.user) as owner:
        wait_until(
            lambda: "line 0" in owner.logs(accepted.jobs[wish.key]).text,
            60,
            "the log of a new job",
            every=0.1,
        )
    whole = time.monotonic() - begun
    lost.begin()
    accepted = crowd.wait()

    figures = {"carried_s": round(carried, 1), "log_of_a_new_job_s": round(whole, 1)}
    write_report(REPORT, {"test": f"{lost.name} killed", **figures})
    assert whole <= WHOLE_AGAIN_SECONDS
    assert check_promises(portal, accepted, ledger).jobs == 5
    assert compare(portal, read_ledger(ledger)).wrong == []


@pytest.mark.skipif(not has_haproxy(), reason="haproxy is not installed")
def test_one_retry_cures_each_request_behind_the_load_balancer_when_a_host_is_killed(
    portal: SeparateHosts, scene: Scene, tmp_path: Path
) -> None:
    del scene  # both hosts are ready
    with load_balancer(tmp_path, portal.ports, host="localhost") as balancer:
        wait_until(lambda: balancer.get("/login/")[0] == 200, 30, "the login page")
        lost = portal.hosts[0]

        lost.kill()
        begun = time.monotonic()
        failed: list[float] = []
        requests = 0
        while time.monotonic() - begun < WHOLE_AGAIN_SECONDS:
            requests += 1
            if balancer.get("/login/")[0] != 200:
                failed.append(round(time.monotonic() - begun, 1))
                assert balancer.get("/login/")[0] == 200, "the retry failed as well"
        lost.begin()
        portal.wait_until_ready()

    figures = {"requests": requests, "failed_once_after_s": failed}
    write_report(REPORT, {"test": "a host behind HAProxy killed", **figures})
    assert len(failed) <= 1


def test_random_faults_of_all_parts_break_no_promise(
    portal: SeparateHosts, clock: ShiftedClock, rng: random.Random, scene: Scene
) -> None:
    nemesis = PartsNemesis(portal, rng, *scene[:2], clock=clock)
    try:
        check_promises_under_faults(nemesis, scene, ACTIONS, seed=SEED, hosts=2, parts="separate")
    finally:
        print(*portal.notes, sep="\n")
    wait_until(
        lambda: portal.storage.state().spooled_bytes == 0, 60, "the upload of all spooled files"
    )
    stored = {found.name for found in portal.storage.files("rounds")}
    named = portal.rows("SELECT snapshot_path FROM scheduling_round WHERE snapshot_path <> ''")
    assert {row["snapshot_path"] for row in named} <= stored


@dataclass
class PartsNemesis(HostNemesis):
    """Hurts two hosts, and all parts that they share."""

    portal: SeparateHosts

    def kinds(self) -> dict[str, tuple[int, Act]]:
        return super().kinds() | {
            "cut_store": (8, lambda: self._cut("store")),
            "store_away": (8, self._store_away),
            "isolate_host": (8, self._isolate_host),
            "promote_standby": (8, self._promote_standby),
            "fail_over_redis": (8, self._fail_over_redis),
        }

    def _store_away(self) -> None:
        if any("store" in fault.name for fault in self._lasting):
            raise NothingToHurtError
        for host in self.portal.hosts:
            host.links["store"].cut()

        def end() -> None:
            for host in self.portal.hosts:
                host.links["store"].mend()

        self.last("object store away", end)

    def _isolate_host(self) -> None:
        """Cut a host from the nodes and from all parts; its processes continue."""
        stack = ExitStack()
        with self._measured_take_over("isolate_host") as host:
            stack.enter_context(cut_from_nodes(self.portal, host.group))
            for link in host.links.values():
                link.cut()
                stack.callback(link.mend)
        self.last(f"{host.name} cut from everything", stack.close)

    def _promote_standby(self) -> None:
        """Kill the primary and promote the standby; later, the killed server is the standby."""
        server = self.portal.server
        if not server.has_standby():
            raise NothingToHurtError
        server.kill_primary()
        wait_for_instant(self.rng, 0, 2)
        server.promote_standby()
        self.last("database without standby", server.rejoin)

    def _fail_over_redis(self) -> None:
        """Kill the Redis master and wait for another one; later, the killed one is a replica."""
        servers = self.portal.sentinels
        if not servers.has_replica():
            raise NothingToHurtError
        killed = servers.kill_master()
        wait_until(lambda: servers.master() != killed, FAIL_OVER_SECONDS, "another Redis master")
        self.last("Redis without replica", lambda: servers.restart(killed))
