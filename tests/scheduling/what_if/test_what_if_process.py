"""Processes that answer what-ifs: never more than one and one behind it."""

from pathlib import Path

import pytest

from scheduling.what_if.services import what_if
from scheduling.what_if.services.what_if import MOST_AT_ONCE, start_answering

WAITS = "import signal; signal.pause()"


@pytest.fixture
def project(tmp_path: Path):
    (tmp_path / "manage.py").write_text(WAITS)
    yield tmp_path
    for process in what_if._started:
        process.kill()
        process.wait()
    what_if._started.clear()


def test_pages_that_ask_again_start_no_crowd_of_processes(project: Path) -> None:
    for _ in range(5):
        start_answering(project=project)
    crowd = list(what_if._started)
    crowd[0].kill()
    crowd[0].wait()

    start_answering(project=project)

    assert len(crowd) == MOST_AT_ONCE
    assert [process in crowd for process in what_if._started] == [True, False]
