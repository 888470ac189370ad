"""Each kind of process is killed once while twenty jobs run: the short form of the matrix."""

import random
import signal

import pytest

from tests.faults.conftest import MakeScene
from tests.faults.instants import wait_for_instant
from tests.faults.promises import check_promises
from tests.support.whole_portal import WholePortal

pytestmark = [pytest.mark.redis, pytest.mark.timeout(900)]

SEED = 20260302


def test_no_promise_is_broken_when_each_process_is_killed_once_while_twenty_jobs_run(
    portal: WholePortal, make_scene: MakeScene
) -> None:
    rng = random.Random(SEED)
    crowd, drawing, ledger = make_scene(rng, "quick", longest=12)
    victims = ["web", "worker-nodes", "worker-rounds", "redis", "demo-nodes"]
    rng.shuffle(victims)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        for victim in victims:
            wait_for_instant(rng, 0.5, 3)
            portal.send(victim, signal.SIGKILL)
    accepted = crowd.wait()

    portal.wait_until_ready()
    figures = check_promises(portal, accepted, ledger)
    assert figures.jobs >= 20
