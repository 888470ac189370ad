"""Homes and sessions of nodes that are really there, and gone afterwards."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from session import Session, declare_isolation, end_everything


@contextmanager
def opened(home: Path) -> Iterator[Session]:
    """A session that is open for a while."""
    found = Session(home)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The home directory of a node's user; no process of it survives the test."""
    path = tmp_path / "home"
    path.mkdir()
    yield path
    end_everything(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A home on a file system of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=2m tmpfs {disk} 2>/dev/null") != 0:
        pytest.skip("this user may not mount a small file system")
    yield disk
    os.system(f"umount -l {disk}")


@pytest.fixture
def session(home: Path) -> Iterator[Session]:
    """A session of the test's own."""
    with opened(home) as found:
        yield found


@pytest.fixture
def plain(home: Path) -> Iterator[Session]:
    """A session whose jobs run without isolation, so that a test sees their process ids."""
    declare_isolation(home, strongest="none")
    with opened(home) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session for all tests of a module that do it no harm."""
    path = tmp_path_factory.mktemp("home")
    with opened(path) as found:
        yield found
    end_everything(path)
