"""Every kind of process, killed and frozen at instants drawn by chance, while twenty jobs run."""

import os
import random
import signal
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.conftest import MakeScene
from tests.faults.instants import wait_for_instant
from tests.faults.promises import Line, check_promises, read_ledger
from tests.faults.workload import Drawing, Wish
from tests.support.waiting import wait_until
from tests.support.whole_portal import CHILDREN, WholePortal

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("FAULTS_SEED", "7"))
KILLS = 5
FROZEN_SECONDS = 30.0
LONGEST = 15.0
"""Seconds that a job of the crowd runs at most."""

VICTIMS = (
    ("web",),
    ("worker-nodes",),
    ("worker-rounds",),
    ("worker-default", "beat"),
    ("redis",),
    ("demo-nodes",),
)


@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_no_promise_is_broken_when_a_process_is_killed_five_times(
    victims: tuple[str, ...], portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = _chance(f"kill-{victims[0]}")
    crowd, drawing, ledger = make_scene(rng, f"kill-{victims[0]}", longest=LONGEST)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        for _ in range(KILLS):
            for victim in victims:
                wait_for_instant(rng, 0.2, 4)
                portal.send(victim, signal.SIGKILL)
    accepted = crowd.wait()

    portal.wait_until_ready()
    assert check_promises(portal, accepted, ledger).jobs > 20


@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_no_promise_is_broken_when_a_process_stops_for_thirty_seconds(
    victims: tuple[str, ...], portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = _chance(f"stop-{victims[0]}")
    crowd, drawing, ledger = make_scene(rng, f"stop-{victims[0]}", longest=LONGEST)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        wait_for_instant(rng, 0.5, 6)
        stopped = [portal.send(victim, signal.SIGSTOP) for victim in victims]
        wait_for_instant(rng, FROZEN_SECONDS, FROZEN_SECONDS)
        for pid in stopped:
            with suppress(ProcessLookupError):  # somebody has noticed and replaced it
                os.kill(pid, signal.SIGCONT)
    accepted = crowd.wait()

    portal.wait_until_ready()
    assert check_promises(portal, accepted, ledger).jobs > 20


def test_a_supervisor_that_is_killed_again_and_again_while_it_starts_leaves_nothing_undone(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = _chance("supervisor")
    crowd, drawing, ledger = make_scene(rng, "supervisor", longest=LONGEST)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        wait_for_instant(rng, 1, 5)
        portal.kill()
        for _ in range(KILLS - 2):
            portal.begin()
            wait_for_instant(rng, 0.5, 15)
            portal.kill()
        portal.up()
        wait_for_instant(rng, 0.2, 3)
        portal.kill()
        portal.up()
    accepted = crowd.wait()

    assert check_promises(portal, accepted, ledger).jobs >= 20


@pytest.mark.parametrize("how", ["crash", "end"])
def test_jobs_that_end_while_nobody_watches_have_the_right_exit_codes(
    how: str, portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = _chance(f"down-{how}")
    crowd, drawing, ledger = make_scene(rng, f"down-{how}", longest=20)
    crowd.want(_that_run_at_once(drawing))
    accepted = crowd.wait()
    wait_until(lambda: len(_noted(ledger, "start")) == 18, 120, "the start of all")

    getattr(portal, how)()
    went_on = len(_noted(ledger, "end"))
    wait_until(
        lambda: len(_noted(ledger, "end")) == 18, 60, "the end of all, with nobody watching"
    )
    assert went_on < 18
    portal.up()

    figures = check_promises(portal, accepted, ledger)
    assert figures.attempts == figures.jobs == 14


def test_everything_at_once_is_no_worse_than_one_after_the_other(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = _chance("everything")
    crowd, drawing, ledger = make_scene(rng, "everything", longest=LONGEST)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        for _ in range(3):
            wait_for_instant(rng, 1, 6)
            for victim in rng.sample(CHILDREN, len(CHILDREN)):
                portal.send(victim, signal.SIGKILL)
    accepted = crowd.wait()

    portal.wait_until_ready()
    assert check_promises(portal, accepted, ledger).jobs > 20


def _that_run_at_once(drawing: Drawing) -> list[Wish]:
    """Fourteen jobs of eighteen processes, as many as the shares hold, of 10 to 20 seconds."""
    gangs = [
        drawing.wish("alice", "vision-a", 18, instances=4),
        drawing.wish("bob", "language-a", 16, instances=2),
    ]
    singles = [drawing.wish("alice", "vision-a", 12 + n) for n in range(8)]
    singles += [drawing.wish("bob", "language-a", 14 + n) for n in range(2)]
    return [*gangs, *singles, *(drawing.wish("alice", "vision-b", 15 + n) for n in range(2))]


def _noted(ledger: Path, what: str) -> list[Line]:
    return [line for line in read_ledger(ledger) if line.what == what]


def _chance(name: str) -> random.Random:
    return random.Random(SEED + zlib.crc32(name.encode()))
