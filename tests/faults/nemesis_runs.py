"""Jobs run while random faults happen; afterwards all promises are checked."""

import os
from pathlib import Path
from typing import Any

from tests.faults.accounts import compare
from tests.faults.nemesis import Nemesis, told, write_report
from tests.faults.promises import check_promises, read_ledger
from tests.faults.workload import Scene

SEED = int(os.environ.get("FAULTS_SEED", "7"))
ACTIONS = int(os.environ.get("FAULTS_ACTIONS", "60"))
REPORT = Path(os.environ["FAULTS_REPORT"]) if "FAULTS_REPORT" in os.environ else None
EXCUSED_FAILURES = frozenset({"node"})
"""Failures that are excused: runners are killed, too."""
SUBMIT_SECONDS = 2.5
"""Seconds between two submits while faults happen."""


def check_promises_under_faults(
    nemesis: Nemesis, scene: Scene, actions: int, **report: Any
) -> None:
    """Let jobs run while the nemesis acts, and check all that was promised."""
    crowd, drawing, path = scene
    portal, figures, broken = nemesis.portal, "", ""
    try:
        crowd.want(drawing.twenty())
        with crowd.trickle(drawing, every=SUBMIT_SECONDS):
            nemesis.act(actions)
        accepted = crowd.wait()
        figures = str(check_promises(portal, accepted, path, excused=EXCUSED_FAILURES))
    except AssertionError as error:
        broken = str(error)
        print(broken)
        nemesis.end_faults()
    account = compare(portal, read_ledger(path))
    write_report(REPORT, {**report, **nemesis.report(), **told(figures, account, broken)})
    assert not broken, broken
    assert account.wrong == []
