"""Children that end with their test."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from portal.supervisor.children import Child, Program

MakeChild = Callable[..., Child]


@pytest.fixture
def make_child(tmp_path: Path) -> Iterator[MakeChild]:
    """Makes children that run Python code; whatever is left of them ends with the test."""
    made: list[Child] = []

    def make(
        code: str, *, name: str = "one", clock: Callable[[], float] = time.monotonic
    ) -> Child:
        program = Program(
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
