"""Random faults by a seed; then ledger, rows, logs, events and process table are compared.

    pytest -m redis tests/faults/test_nemesis.py                                    # 8 actions
    FAULTS_SEED=11 FAULTS_ACTIONS=200 pytest -m soak tests/faults/test_nemesis.py

Actions and figures are printed as one line of JSON (``pytest -rP``), which also goes to
``FAULTS_REPORT``.
"""

import os
import random
from pathlib import Path

import pytest

from tests.faults.accounts import compare
from tests.faults.conftest import MakeScene
from tests.faults.nemesis import Nemesis, measured, told, write_report
from tests.faults.promises import check_promises, read_ledger
from tests.support.whole_portal import WholePortal

pytestmark = pytest.mark.timeout(7200)

SEED = int(os.environ.get("FAULTS_SEED", "7"))
ACTIONS = int(os.environ.get("FAULTS_ACTIONS", "60"))
REPORT = Path(os.environ["FAULTS_REPORT"]) if "FAULTS_REPORT" in os.environ else None
LOST = frozenset({"node"})
"""Failures that are excused: runners are killed, too."""


@pytest.mark.redis
def test_eight_random_faults_break_no_promise(portal: WholePortal, make_scene: MakeScene) -> None:
    hurt(portal, make_scene, seed=SEED, actions=8, longest=6)


@pytest.mark.soak
def test_random_faults_break_no_promise(portal: WholePortal, make_scene: MakeScene) -> None:
    hurt(portal, make_scene, seed=SEED, actions=ACTIONS, longest=15)


def hurt(
    portal: WholePortal, make_scene: MakeScene, *, seed: int, actions: int, longest: float
) -> None:
    """Let jobs run while the nemesis acts, and check all that was promised."""
    rng = random.Random(seed)
    crowd, drawing, path = make_scene(rng, f"nemesis-{seed}", longest=longest)
    nemesis = Nemesis(portal, rng, crowd, drawing, longest=longest)

    crowd.want(drawing.twenty())
    with crowd.trickle(drawing):
        nemesis.act(actions)
    accepted = crowd.wait()

    try:
        figures, broken = str(check_promises(portal, accepted, path, excused=LOST)), ""
    except AssertionError as error:
        figures, broken = "", str(error)
    account = compare(portal, read_ledger(path))
    report = {"seed": seed, **measured(nemesis.done, nemesis.ready)}
    write_report(REPORT, {**report, **told(figures, account, broken)})
    assert not broken, broken
    assert account.wrong == []
