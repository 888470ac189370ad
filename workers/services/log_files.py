"""Logs on disk: fixed segments by logical offset, so that repeated writes are harmless.

A log is a directory ``<job>/<attempt>/<role>-<rank>.log`` whose files are named by the offset at
which they begin. Only the newest ``cap_bytes`` remain.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEGMENT_BYTES: Final = 4 << 20
DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Extent:
    """Stored part of a log: logical offsets from ``first`` up to ``end``."""

    first: int
    end: int


def relative_path(job_id: int, attempt_number: int, role: str, rank: int) -> str:
    """Path of a member's log below the logs' directory."""
    return f"{job_id}/{attempt_number}/{role}-{rank}.log"


def extent(directory: Path, *, first: int = 0) -> Extent:
    """Return the stored part of a log, without bytes before ``first``."""
    starts = _starts(directory)
    if not starts:
        return Extent(first, first)
    last = starts[-1]
    end = last + _segment(directory, last).stat().st_size
    return Extent(max(first, starts[0]), max(first, end))


def write(directory: Path, *, offset: int, data: bytes, cap_bytes: int) -> Extent:
    """Write ``data`` at its offset and delete bytes beyond ``cap_bytes``."""
    directory.mkdir(parents=True, exist_ok=True)
    position, rest = offset, memoryview(data)
    while rest:
        start = position - position % SEGMENT_BYTES
        room = start + SEGMENT_BYTES - position
        _write_at(_segment(directory, start), position - start, rest[:room])
        position += min(room, len(rest))
        rest = rest[room:]
    _forget_before(directory, position - cap_bytes)
    return extent(directory)


def forget_before(directory: Path, offset: int) -> None:
    """Delete the segments that end before ``offset``."""
    _forget_before(directory, offset)


def read(directory: Path, *, offset: int, limit: int, first: int = 0) -> tuple[int, bytes]:
    """Return up to ``limit`` bytes from ``offset``, or from the log's beginning.

    Returns:
        The offset of the bytes, and the bytes.
    """
    there = extent(directory, first=first)
    position = max(offset, there.first)
    start = position
    pieces: list[bytes] = []
    while position < there.end and limit > 0:
        segment = position - position % SEGMENT_BYTES
        most = min(limit, segment + SEGMENT_BYTES - position)
        piece = _read_at(_segment(directory, segment), position - segment, most)
        if not piece:
            break
        pieces.append(piece)
        position += len(piece)
        limit -= len(piece)
    return start, b"".join(pieces)


def delete(directory: Path) -> None:
    """Delete a whole log."""
    shutil.rmtree(directory, ignore_errors=True)


def _starts(directory: Path) -> list[int]:
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if len(name) == DIGITS and name.isdigit())


def _segment(directory: Path, start: int) -> Path:
    return directory / f"{start:0{DIGITS}d}"


def _write_at(path: Path, position: int, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while data:
            written = os.pwrite(descriptor, data, position)
            position += written
            data = data[written:]
    finally:
        os.close(descriptor)


def _read_at(path: Path, position: int, most: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, most, position)
    finally:
        os.close(descriptor)


def _forget_before(directory: Path, offset: int) -> None:
    for start in _starts(directory):
        if start + SEGMENT_BYTES <= offset:
            _segment(directory, start).unlink(missing_ok=True)
