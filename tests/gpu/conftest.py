"""Real GPUs for the questions of the recorded machines; a report at the end.

``make gpu`` runs these tests. Without a driver, each test is skipped with the reason.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tessera.isolation import NAMESPACE
from tessera.node import driver
from tessera.node.gpus import Reading
from tests.gpu.not_measured import NOT_MEASURED

sys.path.insert(0, str(Path(__file__).parents[1] / "node"))

from session import ORDINARY, ROOT, Session, end_everything
from session import node as isolated_node

_LINES: list[tuple[str, str]] = []
Report = Callable[[str, object], None]


@pytest.fixture(scope="session")
def answer(tmp_path_factory: pytest.TempPathFactory) -> driver.Answer:
    """What the driver of this machine reports."""
    if not driver.has_driver():
        pytest.skip("no NVIDIA driver: neither /proc/driver/nvidia nor nvidia-smi exists")
    try:
        found = driver.read(str(tmp_path_factory.mktemp("root")), in_detail=True)
    except driver.DriverHungError as error:
        pytest.skip(f"the NVIDIA driver does not respond: {error}")
    if found is None or not found.reading.gpus:
        pytest.skip("the NVIDIA driver reports no GPU")
    return found


@pytest.fixture(scope="session")
def reading(answer: driver.Answer) -> Reading:
    return answer.reading


@pytest.fixture
def report() -> Report:
    """Add a line to the report, which ``pytest`` prints at the end."""

    def add(question: str, found: object) -> None:
        _LINES.append((question, str(found)))

    return add


@pytest.fixture
def node(reading: Reading, tmp_path: Path) -> Iterator[Session]:
    """A session with the node program of this machine, in a home directory of its own."""
    home = tmp_path / "home"
    home.mkdir()
    session = Session(home)
    try:
        yield session
    finally:
        session.close()
        end_everything(home)


@pytest.fixture
def isolated(reading: Reading) -> Iterator[Session]:
    """A session with a node that isolates plain jobs by namespaces; skipped without them."""
    with isolated_node(NAMESPACE, ROOT if os.getuid() == 0 else ORDINARY) as session:
        yield session


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the answers of this machine, and what no test measures."""
    if not _LINES:
        return
    terminalreporter.section("GPU report")
    for question, found in _LINES:
        terminalreporter.write_line(f"{question}: {found}")
    terminalreporter.write_line("")
    terminalreporter.write_line("Not measured on a GPU:")
    for item in NOT_MEASURED:
        terminalreporter.write_line(f"- {item}")
