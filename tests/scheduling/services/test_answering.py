"""Processes that answer what-ifs: never more than one and one behind it."""

from pathlib import Path

import pytest

from scheduling.services import answering
from scheduling.services.answering import MOST_AT_ONCE, start_answering

WAITS = "import signal; signal.pause()"


@pytest.fixture
def project(tmp_path: Path):
    (tmp_path / "manage.py").write_text(WAITS)
    yield tmp_path
    for process in answering._started:
        process.kill()
        process.wait()
    answering._started.clear()


def test_pages_that_ask_again_start_no_crowd_of_processes(project: Path) -> None:
    for _ in range(5):
        start_answering(project=project)
    crowd = list(answering._started)
    crowd[0].kill()
    crowd[0].wait()

    start_answering(project=project)

    assert len(crowd) == MOST_AT_ONCE
    assert [process in crowd for process in answering._started] == [True, False]
