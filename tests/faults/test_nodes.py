"""What may happen to a node: its processes are killed or stand still, its network is cut."""

import os
import random
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.faults.accounts import LATE, compare
from tests.faults.conftest import MakeScene
from tests.faults.instants import wait_for_instant
from tests.faults.promises import check_promises, lost_after_start, read_ledger
from tests.faults.victims import (
    NODES,
    network_cut,
    runners,
    runs_at_work,
    send_to_session,
    silence_until_an_end,
)
from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal

pytestmark = pytest.mark.timeout(1800)

SEED = 20260302
LOST = frozenset({"node"})


@pytest.mark.redis
def test_a_job_whose_runner_is_killed_runs_again_and_nothing_runs_beside_it(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(SEED)
    crowd, drawing, ledger = make_scene(rng, "runners", longest=12)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        killed = [kill_a_runner(portal, rng, ledger) for _ in range(4)]
    accepted = crowd.wait()

    figures = check_promises(portal, accepted, ledger, excused=LOST)
    assert figures.again > 0
    assert len(set(killed)) == 4
    ended = {line.run_id for line in read_ledger(ledger) if line.what == "end"}
    assert not ended & {run_id for run_id in killed if run_id in _retried(portal)}


@pytest.mark.redis
def test_a_node_whose_session_is_killed_is_asked_again_and_its_jobs_go_on(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(SEED + 1)
    crowd, drawing, ledger = make_scene(rng, "sessions", longest=12)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        for node in (*NODES, *rng.sample(NODES, 2)):
            wait_for_instant(rng, 0.3, 2)
            send_to_session(portal, node, signal.SIGKILL)
    accepted = crowd.wait()

    assert check_promises(portal, accepted, ledger).jobs > 20


@pytest.mark.redis
def test_a_job_whose_end_nobody_observes_is_charged_to_its_end(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(SEED + 9)
    crowd, drawing, ledger = make_scene(rng, "unobserved", longest=12)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        for node in NODES:
            wait_until(partial(runs_at_work, portal, node, ledger), 60, f"jobs on {node}")
            pid = silence_until_an_end(portal, node, ledger, 15)
            assert pid is not None
            wait_for_instant(rng, 2 * LATE, 2 * LATE)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    accepted = crowd.wait()

    check_promises(portal, accepted, ledger)
    account = compare(portal, read_ledger(ledger))
    assert account.wrong == []
    assert account.late > 0


@pytest.mark.soak
@pytest.mark.parametrize("node", NODES)
def test_a_node_whose_session_stops_for_thirty_seconds_loses_no_job(
    node: str, portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(SEED + 2 + NODES.index(node))
    crowd, drawing, ledger = make_scene(rng, f"still-{node}", longest=15)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        wait_for_instant(rng, 0.5, 6)
        pid = send_to_session(portal, node, signal.SIGSTOP)
        wait_for_instant(rng, 30, 30)
        with suppress(ProcessLookupError):  # the portal may have given that session up
            os.kill(pid, signal.SIGCONT)
    accepted = crowd.wait()

    assert check_promises(portal, accepted, ledger).jobs > 20


@pytest.mark.soak
@pytest.mark.parametrize("until", ["ten seconds", "it is given up"])
def test_a_node_whose_network_is_cut_keeps_its_jobs_and_is_not_given_them_twice(
    until: str, portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(f"{SEED} {until}")
    crowd, drawing, ledger = make_scene(rng, f"cut-{len(until)}", longest=15)
    node = rng.choice(NODES)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        wait_for_instant(rng, 1, 6)
        with network_cut(portal, node):
            if until == "ten seconds":
                wait_for_instant(rng, 10, 10)
            else:
                wait_until(lambda: contacts(portal)[node] == "down", 240, "silence")
            found = contacts(portal)
    accepted = crowd.wait()

    assert {found[other] for other in NODES if other != node} == {"ready"}
    # What the node never heard of runs elsewhere once it is given up; what it runs is waited for.
    excused = LOST if until == "it is given up" else frozenset[str]()
    assert check_promises(portal, accepted, ledger, excused=excused).jobs > 20
    assert lost_after_start(portal, ledger) == []
    wait_until(lambda: {*contacts(portal).values()} == {"ready"}, 120, "the return of the node")


def contacts(portal: WholePortal) -> dict[str, str]:
    """What the portal thinks of each node."""
    return {row["name"]: row["contact"] for row in portal.rows("SELECT * FROM scheduling_node")}


# -- who is hurt ---------------------------------------------------------------------------------


def kill_a_runner(portal: WholePortal, rng: random.Random, ledger: Path) -> str:
    """Kill the runner of a run that has noted its start; the run's id."""

    def under_way() -> list[tuple[int, str]]:
        begun = {line.run_id for line in read_ledger(ledger)}
        return sorted(one for one in runners(portal).items() if one[1] in begun)

    def is_found() -> bool:
        found.extend(under_way())
        return bool(found)

    wait_for_instant(rng, 0.5, 2)
    found: list[tuple[int, str]] = []
    wait_until(is_found, 120, "a run that is under way")
    pid, run_id = rng.choice(found)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    portal.note(f"SIGKILL runner of {run_id}")
    return run_id


def _retried(portal: WholePortal) -> set[str]:
    """Ids of runs whose attempt failed with its node."""
    rows = portal.rows(
        "SELECT a.uid, m.role, m.rank FROM scheduling_member m"
        " JOIN scheduling_attempt a ON a.id = m.attempt_id WHERE a.failure_class = 'node'"
    )
    return {f"{row['uid']}.{row['role']}.{row['rank']}" for row in rows}
