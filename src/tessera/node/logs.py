"""A run's output as segments named by logical offset: bounded on disk, readable at any offset."""

from __future__ import annotations

import errno
import itertools
import os
import re
from typing import Callable, List, Tuple

from tessera.node import system

Clock = Callable[[], float]
_SEGMENT = re.compile(r"([0-9]{16})\.log")
RESERVE_BYTES = 68 << 10
"""Space allocated behind the end of a log: on a full disk, it takes the content of a pipe."""
MARK_BYTES = 4 << 10
"""Part of the reserve for the marks at the end of the log."""
MOST_NAMES = 4096
"""Directory entries read in one pass, so that a directory full of files costs milliseconds."""


def segments(directory: str) -> List[Tuple[int, str]]:
    """Return the existing segments: (logical offset of the first byte, path), in order."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_NAMES)]
    except OSError:
        return []
    found = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(
        (int(match.group(1)), os.path.join(directory, match.group())) for match in found if match
    )


def log_end(directory: str) -> int:
    """Return the logical size of a log: the offset of the next byte."""
    for start, path in reversed(segments(directory)):
        size = system.regular_size(path)
        if size is not None:
            return start + size
    return 0


def read_log(directory: str, offset: int, limit: int) -> Tuple[int, bytes]:
    """Read from a logical offset, or from the first remaining byte after it.

    Returns:
        The offset of the bytes, and the bytes (none at the end).
    """
    begin, size = offset, 0
    pieces: List[bytes] = []
    for start, path in segments(directory):
        position = begin + size
        piece, length = _read_piece(path, max(0, position - start), limit - size)
        if start + length <= position:
            continue
        if start > position:
            if pieces:
                break
            begin = start
        pieces.append(piece)
        size += len(piece)
        if size >= limit:
            break
    return begin, b"".join(pieces)


def _read_piece(path: str, skip: int, limit: int) -> Tuple[bytes, int]:
    """Read a segment and its length; return nothing when it was dropped meanwhile."""
    try:
        descriptor = system.open_regular(path)
    except OSError:
        return b"", 0
    try:
        piece = os.pread(descriptor, max(0, limit), skip)
        return piece, max(os.fstat(descriptor).st_size, skip + len(piece) if piece else 0)
    finally:
        os.close(descriptor)


def reserve(directory: str) -> None:
    """Create the first segment of a log with its reserve, before the first output.

    Raises:
        OSError: the disk is full. Other errors do not matter here: a log needs no reserve.
    """
    flags = os.O_WRONLY | os.O_CREAT | system.SAFE_OPEN
    try:
        os.mkdir(directory, 0o700)
        descriptor = os.open(_path(directory, 0), flags, 0o600)
        try:
            system.allocate(descriptor, RESERVE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in system.DISK_FULL:
            raise


def _path(directory: str, offset: int) -> str:
    return os.path.join(directory, f"{offset:016d}.log")


class LogWriter:
    """Appends output to segments, drops the oldest beyond the cap, and limits the rate.

    Above ``rate`` bytes a second (after a burst of four seconds' worth) output is dropped, and a
    line in the log has the amount. A full disk never raises here: output that cannot
    be written is counted and mentioned once there is room. With ``reserves``, a full disk still
    takes ``RESERVE_BYTES``, and the log at least mentions the loss when it is closed.

    With ``resumed`` it continues after the existing segments. Without ``marks``, it does not write
    marker lines.

    Attributes:
        end: logical offset of the next byte.
        dropping: output is being dropped now.
    """

    def __init__(
        self,
        directory: str,
        *,
        cap: int,
        segment: int,
        rate: int,
        clock: Clock,
        resumed: bool = False,
        marks: bool = True,
        reserves: bool = False,
    ) -> None:
        self._directory = directory
        self._marks = marks
        self._reserves = reserves
        self._cap = cap
        self._segment = min(segment, cap // 2)
        self._rate = rate
        self._burst = 4 * rate
        self._tokens = float(self._burst)
        self._clock = clock
        self._filled_at = clock()
        self._descriptor = -1
        self._start = self._room = self._allocated = 0
        self._sizes: List[Tuple[int, int]] = []
        self._flooded = self._unwritable = 0
        self._capped = False
        self._line_open = False
        self.end = 0
        self.dropping = False
        if resumed:
            self.end = log_end(directory)
            self._line_open = read_log(directory, max(0, self.end - 1), 1)[1] not in (b"", b"\n")
            if reserves:
                self._reopen()

    def write(self, output: bytes) -> None:
        """Append output, or count it as dropped."""
        self._refill()
        if self.dropping and self._tokens < self._burst / 8:
            self._flooded += len(output)
            return
        self.dropping = False
        allowed = output[: int(self._tokens)]
        self._report_dropped()
        self._append(allowed)
        self._tokens -= len(allowed)
        if len(allowed) < len(output):
            self.dropping = True
            self._flooded += len(output) - len(allowed)

    def close(self) -> None:
        """Log the bytes dropped last, and close the file."""
        self._report_dropped(left=0)
        self._close_segment()

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now

    def _report_dropped(self, *, left: int = MARK_BYTES) -> None:
        if self._flooded:
            count, self._flooded = self._flooded, 0
            self.mark(f"output above {self._rate} bytes/s: {count} bytes dropped", left=left)
        lost = self._unwritable
        if lost:
            self.mark(f"the log could not be written: {lost} bytes lost", left=left)
            self._unwritable = 0 if self._unwritable == lost else lost

    def mark(self, text: str, *, left: int = MARK_BYTES) -> None:
        """Write a line with the prefix ``[tessera]`` into the log.

        Args:
            text: the line.
            left: bytes of the reserve that it must not use.
        """
        if not self._marks:
            return
        start = "\n" if self._line_open else ""
        self._append(f"{start}[tessera] {text}\n".encode(), left=left)

    def _append(self, output: bytes, *, left: int = MARK_BYTES) -> None:
        view = memoryview(output)
        while view:
            try:
                most = self._writable(len(view), left)  # may change the descriptor
                written = os.write(self._descriptor, view[:most])
            except OSError:
                written = 0
            if not written:
                self._unwritable += len(view)
                return
            self._room -= written
            self.end += written
            self._line_open = view[written - 1] != 10
            view = view[written:]

    # -- segments --------------------------------------------------------------------------------

    def _writable(self, wanted: int, left: int) -> int:
        """Return how many bytes the current segment takes, after ``left`` of its reserve.

        On a full disk, the last segment goes on with its reserve, since there is no next one.
        """
        if self._room <= 0:
            try:
                self._rotate()
            except OSError:
                return min(wanted, self._reserved(left))
        wanted = min(wanted, self._room)
        return wanted if self._reserve(wanted) else min(wanted, self._reserved(left))

    def _reserved(self, left: int) -> int:
        return max(0, self._allocated - (self.end - self._start) - left)

    def _reserve(self, wanted: int) -> bool:
        """Allocate space behind the next bytes; returns whether the disk has room for both."""
        end = self.end - self._start + wanted
        if not self._reserves or self._allocated >= end + RESERVE_BYTES:
            return True
        try:
            system.allocate(self._descriptor, end + 2 * RESERVE_BYTES)
        except OSError as error:
            self._reserves = error.errno in system.DISK_FULL
            return not self._reserves
        self._allocated = end + 2 * RESERVE_BYTES
        return True

    def _rotate(self) -> None:
        path = _path(self._directory, self.end)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.SAFE_OPEN
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:  # no output yet
            os.mkdir(self._directory, 0o700)
            descriptor = os.open(path, flags, 0o600)
        if self._descriptor >= 0 and not self._can_replace(descriptor):
            os.close(descriptor)
            system.remove_quietly(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._close_segment()
        self._open_segment(descriptor, self.end)
        self._drop_oldest()

    def _can_replace(self, descriptor: int) -> bool:
        """Allocate the reserve of the next segment, before that of this one is freed."""
        try:
            if self._reserves:
                system.allocate(descriptor, 2 * RESERVE_BYTES)
        except OSError as error:
            return error.errno not in system.DISK_FULL
        return True

    def _reopen(self) -> None:
        """Continue the last segment, which may have a reserve."""
        for start, path in segments(self._directory)[-1:]:
            size = system.regular_size(path)
            if size is None or start + size != self.end:
                return
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | system.SAFE_OPEN)
            except OSError:
                return
            self._open_segment(descriptor, start)

    def _open_segment(self, descriptor: int, start: int) -> None:
        self._descriptor, self._start = descriptor, start
        self._room = self._segment - (self.end - start)
        self._allocated = system.allocated_bytes(descriptor) if self._reserves else 0

    def _close_segment(self) -> None:
        """Close the segment, and free the rest of its reserve."""
        if self._descriptor < 0:
            return
        try:
            if self._reserves:
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)
        except OSError:
            pass  # freed with the file
        os.close(self._descriptor)
        self._descriptor = -1

    def _drop_oldest(self) -> None:
        found = segments(self._directory)
        dropped = False
        while len(found) > 1 and self.end - found[0][0] > self._cap - self._segment:
            system.remove_quietly(found.pop(0)[1])
            dropped = True
        if dropped and not self._capped:
            self._capped = True
            self.mark(
                f"the log exceeds its limit of {self._cap} bytes: the oldest output is deleted"
            )
