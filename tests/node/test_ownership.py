"""Files are given to a job's user while others replace them."""

import itertools
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.node import ownership, system
from tessera.node.ownership import Receiver

ME = Receiver(os.getuid(), os.getgid(), frozenset({os.getuid()}))


def given(path: Path) -> bytes:
    """Give a directory away; returns the messages to the runner."""
    reader, writer = os.pipe()
    ownership.give(str(path), ME, writer)
    os.close(writer)
    return system.read_all(reader, 1 << 16)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def opens_only_places(monkeypatch: pytest.MonkeyPatch, at_open: Callable[[str], None]) -> None:
    """Call something after each opening, and fail if a name is opened as more than a place."""
    opening = os.open

    def checked(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        assert path == "." or flags & os.O_PATH, path
        found = opening(path, flags, mode, dir_fd=dir_fd)
        at_open(path)
        return found

    monkeypatch.setattr(os, "open", checked)


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [link, pipe])
def test_nothing_is_opened_that_replaces_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Path, Path], None]
) -> None:
    top, victim, moved = tmp_path / "top", tmp_path / "victim", tmp_path / "moved"
    for directory in (top / "inner", victim):
        directory.mkdir(parents=True)
        (directory / "file").touch(mode=0o600)

    def swap(name: str) -> None:
        if name == "inner":
            (top / "inner").rename(moved)
            replace(top / "inner", victim)

    opens_only_places(monkeypatch, swap)
    given(top)

    assert mode_of(victim / "file") == 0o600
    assert (mode_of(moved), mode_of(moved / "file")) == (0o2770, 0o660)


def test_pipes_and_links_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "file").touch(mode=0o600)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "lost").symlink_to("missing")
    opens_only_places(monkeypatch, lambda _: None)

    given(tmp_path)

    assert mode_of(tmp_path / "pipe") == 0o600
    assert mode_of(tmp_path / "file") == 0o660


def test_deep_directories_are_given_without_recursion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deepest = tmp_path.joinpath(*["d"] * 200)
    deepest.mkdir(parents=True)
    (deepest / "file").touch(mode=0o600)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(list(frames())) + 60)
    try:
        said = given(tmp_path)
    finally:
        sys.setrecursionlimit(limit)

    assert mode_of(deepest / "file") == 0o660
    assert said == b""


def frames() -> list[object]:
    here, found = sys._getframe(), []
    while here is not None:
        found.append(here)
        here = here.f_back  # type: ignore[assignment]
    return found


def test_the_runner_gets_progress_of_long_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0.0, ownership.PROGRESS_SECONDS)
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    (tmp_path / "file").touch()

    assert given(tmp_path).startswith(b"giving\n")
