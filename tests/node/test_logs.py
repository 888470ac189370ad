"""Logical offsets never change their meaning, whatever is rotated away."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.node import logs, system

SEGMENT, CAP, RATE = 100, 400, 1 << 40


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def open_log(directory: str, **changes: int) -> logs.LogWriter:
    fields: dict[str, Any] = {"cap": CAP, "segment": SEGMENT, "rate": RATE, **changes}
    return logs.LogWriter(directory, clock=Clock(), **fields)


def read_from(directory: str, offset: int, limit: int = 1 << 30) -> tuple[int, bytes]:
    start, content = logs.read_log(directory, offset, limit)
    return start, content


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.integers(0, 250), max_size=20),
    limits=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    offset=st.integers(0, 3000),
)
def test_every_byte_that_is_kept_is_read_at_its_own_offset(
    chunks: list[int], limits: list[int], offset: int
) -> None:
    with TemporaryDirectory() as directory:
        log = open_log(directory)
        written = b""
        marker = b""
        for number, size in enumerate(chunks):
            before = log.end
            log.write(bytes([65 + number]) * size)
            if log.end - before > size:
                marker = b"[tessera]"
            written += bytes(log.end - before)
        log.close()
        end = logs.log_end(directory)

        start, everything = read_from(directory, 0)
        pieces, position = [], start
        for number in range(10_000):
            at, piece = read_from(directory, position, limits[number % len(limits)])
            if not piece:
                break
            assert at == position
            pieces.append(piece)
            position += len(piece)

        assert end == len(written) == log.end
        assert b"".join(pieces) == everything
        assert start + len(everything) == end
        assert end - start <= CAP
        at, rest = read_from(directory, offset)
        if offset < end:
            assert at == max(offset, start)
            assert rest == everything[at - start :]
        else:
            assert rest == b""
        if start == 0 and not marker:
            sizes = b"".join(bytes([65 + number]) * size for number, size in enumerate(chunks))
            assert everything == sizes


def test_what_was_read_once_reads_the_same_after_rotation(tmp_path: Path) -> None:
    log = open_log(str(tmp_path))
    log.write(b"a" * 90)
    log.write(b"0123456789" * 20)
    _, before = read_from(str(tmp_path), 250)

    log.write(b"z" * 150)
    start, after = read_from(str(tmp_path), 250)

    assert start == 250
    assert after[: len(before)] == before


def test_a_reader_who_comes_too_late_learns_where_the_log_begins(tmp_path: Path) -> None:
    log = open_log(str(tmp_path))
    log.write(b"x" * 1000)

    start, content = read_from(str(tmp_path), 10)

    assert start > 10
    assert start == logs.segments(str(tmp_path))[0][0]
    assert start + len(content) == log.end
    assert log.end > 1000  # a line about it is in the log


def test_a_flood_is_dropped_with_a_marker_and_then_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    log = logs.LogWriter(str(tmp_path), cap=1 << 20, segment=1 << 19, rate=1000, clock=clock)

    log.write(b"x" * 5000)
    log.write(b"y" * 5000)
    clock.now = 4.0
    log.write(b"back\n")
    log.close()

    _, content = read_from(str(tmp_path), 0)
    text = content.decode()
    assert text == (
        "x" * 4000 + "\n[tessera] output above 1000 bytes/s: 6000 bytes dropped\nback\n"
    )


def test_a_flood_that_lasts_to_the_end_is_marked_too(tmp_path: Path) -> None:
    log = open_log(str(tmp_path), cap=1 << 20, segment=1 << 19, rate=1000)

    log.write(b"x" * 5000)
    log.close()

    assert read_from(str(tmp_path), 0)[1].endswith(b": 1000 bytes dropped\n")


def test_a_disk_that_is_full_for_a_while_is_reported_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(str(tmp_path))
    log.write(b"one\n")
    real = os.write

    def full(_descriptor: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.write(b"two\n")
    log.write(b"three\n")
    monkeypatch.setattr(os, "write", real)
    log.write(b"four\n")

    _, content = read_from(str(tmp_path), 0)
    assert content == (b"one\n[tessera] the log could not be written: 10 bytes lost\nfour\n")
    assert logs.log_end(str(tmp_path)) == log.end == len(content)


@contextmanager
def full_disk(*, has_inodes: bool) -> Iterator[None]:
    """Let files take no more than the space that is allocated for them.

    Args:
        has_inodes: empty files can still be created.
    """
    really_open, really_write = os.open, os.write

    def refused(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def open_existing(path: str, flags: int, *mode: int, **place: Any) -> int:
        exists = has_inodes or Path(path).exists()
        return really_open(path, flags, *mode, **place) if exists else refused()

    def write(descriptor: int, content: Any) -> int:
        found = os.fstat(descriptor)
        room = found.st_blocks * 512 - found.st_size
        return really_write(descriptor, content[:room]) if room > 0 else refused()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_existing)
        patch.setattr(os, "write", write)
        patch.setattr(os, "mkdir", refused)
        patch.setattr(system, "allocate", refused)
        yield


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(st.integers(1, 40_000), max_size=6),
    during=st.lists(st.integers(1, 40_000), min_size=1, max_size=8),
    segment=st.integers(4_000, 300_000),
    takes_over=st.booleans(),
    has_inodes=st.booleans(),
)
def test_a_disk_that_stays_full_takes_the_reserve_and_a_mark(
    before: list[int], during: list[int], segment: int, takes_over: bool, has_inodes: bool
) -> None:
    fields = {"cap": 1 << 24, "segment": segment, "reserves": True}
    with TemporaryDirectory() as top:
        directory = str(Path(top, "log"))
        logs.reserve(directory)
        log = open_log(directory, **fields)
        for size in before:
            log.write(b"x" * size)
        with full_disk(has_inodes=has_inodes):
            if takes_over:
                log = open_log(directory, **fields, resumed=True)
            for size in during:
                log.write(b"x" * size)
            log.close()

        _, content = read_from(directory, 0)

    total, reserve = sum(before) + sum(during), logs.RESERVE_BYTES - logs.MARK_BYTES
    written = content.count(b"x")
    lost = total - written
    assert content[:written] == b"x" * written
    assert written >= min(total, sum(before) + reserve)
    assert log.end == len(content)
    mark = b"\n[tessera] the log could not be written: %d bytes lost\n" % lost
    assert content[written:] == (mark if lost else b"")


def test_a_closed_log_has_no_reserve(tmp_path: Path) -> None:
    logs.reserve(str(tmp_path / "log"))
    log = open_log(str(tmp_path / "log"), segment=100, reserves=True)
    log.write(b"x" * 250)
    log.close()

    used = [Path(path).stat().st_blocks * 512 for _, path in logs.segments(str(tmp_path / "log"))]
    assert len(used) == 3
    assert max(used) <= logs.MARK_BYTES


def test_names_that_are_no_segments_are_no_part_of_the_log(tmp_path: Path) -> None:
    for name in ("x.log", "12", "0000.log.tmp"):
        (tmp_path / name).write_text("no")

    assert logs.segments(str(tmp_path)) == []
    assert logs.log_end(str(tmp_path)) == 0
    assert read_from(str(tmp_path / "missing"), 5) == (5, b"")
