"""Two hosts with PostgreSQL and Redis: one is killed, frozen or cut off while jobs run.

FAULTS_SEED=21 FAULTS_ACTIONS=100 pytest -m soak tests/faults/test_two_hosts.py
"""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.accounts import compare
from tests.faults.disks import small_disk
from tests.faults.host_nemesis import (
    HostNemesis,
    seconds_until_carried_by,
    seconds_until_shares,
    wait_for_shares,
)
from tests.faults.instants import wait_for_instant
from tests.faults.nemesis import (
    write_report,
)
from tests.faults.nemesis_runs import ACTIONS, REPORT, SEED, check_promises_under_faults
from tests.faults.promises import check_promises, read_ledger
from tests.faults.victims import can_cut, cut_from_nodes
from tests.faults.workload import Scene, make_scene_at
from tests.support.shifted_clock import ShiftedClock, can_shift
from tests.support.two_hosts import TwoHosts, can_make_hosts, two_hosts
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(bool(can_make_hosts()), reason=can_make_hosts() or "it can be done"),
]

AWAY_SECONDS = 60.0
DISKS = {"host-a": 400, "host-a/demo": 400, "host-a/demo/demo-2/home": 96, "host-b": 200}
"""Sizes of small file systems in MiB, by folder."""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> ShiftedClock:
    if can_shift():
        pytest.skip(can_shift())
    return ShiftedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory, clock: ShiftedClock) -> Iterator[TwoHosts]:
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as disks:
        for place, size in DISKS.items():
            disks.enter_context(small_disk(folder / place, size))
        with two_hosts(folder, extra={"host-b": clock.variables}) as made:
            made.stop_examples()
            yield made


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


@pytest.fixture
def scene(portal: TwoHosts, rng: random.Random, tmp_path: Path) -> Scene:
    for host in portal.hosts:
        if host.process is None:
            host.begin()
    portal.wait_until_ready()
    tag = f"hosts-{SEED}-{time.monotonic():.0f}"
    return make_scene_at(portal, tmp_path, rng, tag, longest=12)


def test_the_nodes_of_a_host_that_is_killed_are_taken_over(portal: TwoHosts, scene: Scene) -> None:
    crowd, drawing, ledger = scene
    wait_for_shares(portal)
    crowd.want(drawing.twenty())
    accepted = crowd.wait()

    lost, left = portal.hosts
    lost.kill()
    seconds = seconds_until_carried_by(portal, left)
    lost.begin()

    write_report(REPORT, {"test": "take-over", "taken_over_s": seconds})
    assert check_promises(portal, accepted, ledger).jobs == 20
    assert compare(portal, read_ledger(ledger)).wrong == []


def test_the_nodes_of_a_host_that_cannot_reach_them_are_taken_over(
    portal: TwoHosts, scene: Scene
) -> None:
    if not can_cut():
        pytest.skip("packets cannot be dropped here: run in an own network namespace")
    crowd, drawing, ledger = scene
    crowd.want(drawing.twenty())
    taken, returned = [], []
    for lost, left in (portal.hosts, portal.hosts[::-1]):
        wait_for_shares(portal)
        with cut_from_nodes(portal, lost.group):
            taken.append(seconds_until_carried_by(portal, left))
        returned.append(seconds_until_shares(portal))
    accepted = crowd.wait()

    figures = {"taken_over_s": taken, "shared_again_s": returned}
    write_report(REPORT, {"test": "hosts cut from nodes", **figures})
    print(figures)
    assert max(taken) <= 15
    assert check_promises(portal, accepted, ledger).jobs == 20
    assert compare(portal, read_ledger(ledger)).wrong == []


def test_jobs_are_submitted_start_and_end_while_the_broker_is_away(
    portal: TwoHosts, rng: random.Random, scene: Scene
) -> None:
    crowd, drawing, ledger = scene
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
    portal: TwoHosts, clock: ShiftedClock, rng: random.Random, scene: Scene
) -> None:
    nemesis = HostNemesis(portal, rng, *scene[:2], clock=clock)
    try:
        check_promises_under_faults(nemesis, scene, ACTIONS, seed=SEED, hosts=2)
    finally:
        print(*portal.notes, sep="\n")
