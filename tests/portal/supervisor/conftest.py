"""Children that end with their test."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from portal.supervisor.children import Child, ChildProgram
from portal.supervisor.supervisor import SignalWatch, Supervisor

MakeChild = Callable[..., Child]


@pytest.fixture
def make_child(tmp_path: Path) -> Iterator[MakeChild]:
    """Makes children that run Python code; whatever is left of them ends with the test."""
    made: list[Child] = []

    def make(
        code: str, *, name: str = "one", clock: Callable[[], float] = time.monotonic
    ) -> Child:
        program = ChildProgram(
            name=name,
            command=(sys.executable, "-c", code),
            environment={"PATH": "/usr/bin:/bin"},
            folder=tmp_path,
        )
        child = Child(program=program, log=tmp_path / f"{name}.log", clock=clock)
        made.append(child)
        return child

    yield make
    for child in made:
        process = child.process
        child.kill()
        if process is not None:
            process.wait()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[tuple[Supervisor, list[str]]]:
    """A supervisor and what it says; its children end with the test."""
    said: list[str] = []
    signals = SignalWatch()
    made = Supervisor(
        logs=tmp_path, record=tmp_path / "children.json", signals=signals, say=said.append
    )
    yield made, said
    for child in made.children.values():
        child.kill()
        if child.process is not None:
            child.process.wait()
    for end in (signals._reader, signals._writer):
        end.close()
