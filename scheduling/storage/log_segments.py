"""Logs in directories of fixed segments, in files named by the offset at which they begin.

Only the newest ``cap_bytes`` remain. Repeated writes are harmless.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from scheduling.storage.base import (
    OFFSET_DIGITS,
    SEGMENT_BYTES,
    Extent,
    LogRange,
    checked_name,
)


class DirectoryLogs:
    """Logs below one directory, which may be a shared file system."""

    def __init__(self, root: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Args:
        root: directory of all logs.
        segment_bytes: a property of the stored files, not a setting; tests use small ones.
        """
        self._root = root
        self._segment_bytes = segment_bytes

    def extent(self, path: str, *, first: int = 0) -> Extent:
        return self._extent(self._directory(path), first)

    def write(self, path: str, *, offset: int, data: bytes, cap_bytes: int) -> Extent:
        directory = self._directory(path)
        directory.mkdir(parents=True, exist_ok=True)
        position, rest = offset, memoryview(data)
        while rest:
            start = position - position % self._segment_bytes
            room = start + self._segment_bytes - position
            _write_at(_segment(directory, start), position - start, rest[:room])
            position += min(room, len(rest))
            rest = rest[room:]
        self._forget(directory, position - cap_bytes)
        return self._extent(directory, 0)

    def read(self, path: str, *, offset: int, limit: int, first: int = 0) -> LogRange:
        directory = self._directory(path)
        there = self._extent(directory, first)
        position = max(offset, there.first)
        start = position
        pieces: list[bytes] = []
        while position < there.end and limit > 0:
            segment = position - position % self._segment_bytes
            most = min(limit, segment + self._segment_bytes - position)
            piece = _read_at(_segment(directory, segment), position - segment, most)
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            limit -= len(piece)
        return LogRange(there, start, b"".join(pieces))

    def forget_before(self, path: str, offset: int) -> None:
        self._forget(self._directory(path), offset)

    def seal(self, path: str) -> None:
        """Do nothing: a segment is one file from the beginning."""

    def delete(self, path: str) -> None:
        shutil.rmtree(self._directory(path), ignore_errors=True)

    def job_ids(self) -> set[int]:
        try:
            return {int(path.name) for path in self._root.iterdir() if path.name.isdecimal()}
        except FileNotFoundError:
            return set()

    def paths(self, job_id: int) -> Iterator[str]:
        found = (self._root / str(job_id)).glob("*/*.log")
        return (str(path.relative_to(self._root)) for path in sorted(found) if path.is_dir())

    def delete_job(self, job_id: int) -> None:
        shutil.rmtree(self._root / str(job_id), ignore_errors=True)

    def _directory(self, path: str) -> Path:
        return self._root / checked_name(path)

    def _extent(self, directory: Path, first: int) -> Extent:
        starts = _starts(directory)
        if not starts:
            return Extent(first, first)
        begin = last = starts.pop()
        end = last + _segment(directory, last).stat().st_size
        # A missing segment is a gap, which nothing can fill any more.
        while starts and starts[-1] == begin - self._segment_bytes:
            begin = starts.pop()
        return Extent(max(first, begin), max(first, end))

    def _forget(self, directory: Path, offset: int) -> None:
        for start in _starts(directory):
            if start + self._segment_bytes <= offset:
                _segment(directory, start).unlink(missing_ok=True)


def _starts(directory: Path) -> list[int]:
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if len(name) == OFFSET_DIGITS and name.isdigit())


def _segment(directory: Path, start: int) -> Path:
    return directory / f"{start:0{OFFSET_DIGITS}d}"


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
