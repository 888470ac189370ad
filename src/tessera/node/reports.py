"""Storage of a job's reports in the run directory, where the job cannot change them.

A line arrives as a datagram that begins with the token of the attempt, or the job appends it to
its own file. The socket and the journal belong to the runner and to the log writer, so either
may be killed: the next collector completes the interrupted step.
"""

from __future__ import annotations

import hmac
import mmap
import os
import socket
from typing import Callable, Optional

from tessera import isolation, protocol
from tessera.node import logs, system
from tessera.node.runs import Run
from tessera.protocol import RunSpec

LONGEST_LINE = 64 << 10
LOOK_SECONDS = 0.25
CAP_BYTES, SEGMENT_BYTES = 64 << 20, 8 << 20
RATE_BYTES = 256 << 10
"""Stored bytes per second; above it, datagrams wait in the socket and lines in the file."""
BURST_BYTES = 4 * RATE_BYTES
LEAST_COST = 256
MOST_AT_ONCE = 64
MOST_LAST_BYTES = 4 << 20
_NO_LIMIT = 1 << 50
_PAGE = 4096
_BUFFER = LONGEST_LINE + 256
_IDLE, _READING, _RECEIVING, _STORING = range(4)
_STATE, _BEFORE, _START, _SIZE, _OFFSET, _NEXT, _REJECTED = range(7)
_REJECTION = f"a report with a wrong token or above {LONGEST_LINE} bytes was rejected"


class Journal:
    """The step in progress, in memory shared by all collectors.

    ``buffer`` is zero except for the bytes of the step in progress. ``numbers`` holds:

    - ``_STATE``: ``_RECEIVING`` while a datagram and ``_READING`` while a piece of the file is
      read into the buffer; ``_STORING`` while bytes of the buffer are stored; else ``_IDLE``;
    - ``_BEFORE``: end of the stored reports before the step; ``_START``, ``_SIZE``: the bytes of
      the buffer to store;
    - ``_OFFSET``: bytes of the job's file that are stored; ``_NEXT``: the same after the step;
    - ``_REJECTED``: count of rejected lines.

    Each number is written by one instruction, and ``_STATE`` last.
    """

    def __init__(self) -> None:
        whole = memoryview(mmap.mmap(-1, _PAGE + _BUFFER))
        self.numbers = whole[:_PAGE].cast("Q")
        self.buffer = whole[_PAGE:]

    def reset(self) -> None:
        """Prepare for another run, whose collector has not started yet."""
        if self.numbers[_STATE] != _IDLE:
            self.clear(_BUFFER)
        for number in range(_REJECTED + 1):
            self.numbers[number] = 0

    def clear(self, size: int) -> None:
        self.buffer[:size] = bytes(size)
        self.numbers[_STATE] = _IDLE

    def received(self) -> int:
        """Return the size of the datagram in the buffer: lines of reports contain no zero byte."""
        found = bytes(self.buffer).find(b"\0")
        return found if found >= 0 else _BUFFER


class Inbox:
    """Socket and file of a run's reports; opened by the runner before the job starts.

    Args:
        line: the socket.

    Attributes:
        socket: datagram socket; None if it cannot be created, and only the file counts.
        owners: allowed owners of the job's file.
    """

    def __init__(
        self, run: Run, spec: RunSpec, journal: Journal, line: Optional[socket.socket]
    ) -> None:
        self.run = run
        self.token = _token(run)
        self.socket = line
        self.journal = journal
        self.owners = {os.geteuid(), isolation.SHARED_UID, spec.uid}

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 without."""
        return -1 if self.socket is None else self.socket.fileno()

    def close(self) -> None:
        """Close the socket; later senders get an error."""
        if self.socket is not None:
            self.socket.close()


def open_inbox(run: Run, spec: RunSpec, journal: Journal) -> Optional[Inbox]:
    """Open the inbox of a run; None if the reports cannot be stored, since the disk is full."""
    try:
        os.mkdir(run.file(protocol.REPORTS_DIR), 0o700)
    except FileExistsError:
        pass
    except OSError:
        return None
    return Inbox(run, spec, journal, _bound(run) if _token(run) else None)


def _token(run: Run) -> bytes:
    return system.read_file(run.file(protocol.REPORTS_TOKEN), 128)


def _bound(run: Run) -> Optional[socket.socket]:
    """Bind the socket through a descriptor, since a path has at most 107 bytes."""
    folder, name = os.path.split(run.file(protocol.REPORTS_SOCKET))
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.setblocking(False)
    try:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory = os.open(folder, flags)
        mask = os.umask(0o111)  # the token authenticates, and the directory is private
        try:
            found.bind(f"/proc/self/fd/{directory}/{name}")
        finally:
            os.umask(mask)
            os.close(directory)
    except OSError:
        found.close()
        return None
    return found


class Collector:
    """Stores the reports of an inbox. One process at a time collects.

    Args:
        inbox: inbox of the run.
        clock: seconds, for the rate.
        warn: gets a message for the job's log.
        cap: stored bytes; the oldest segment is removed above it.
        segment: bytes of a file.
    """

    def __init__(
        self,
        inbox: Inbox,
        clock: Callable[[], float],
        warn: Callable[[str], None],
        *,
        cap: int = CAP_BYTES,
        segment: int = SEGMENT_BYTES,
    ) -> None:
        self._inbox, self._journal = inbox, inbox.journal
        self._numbers = inbox.journal.numbers
        self._clock, self._warn = clock, warn
        self._cap, self._segment = cap, segment
        self._file = inbox.run.file(protocol.REPORTS_FILE)
        self._directory = inbox.run.file(protocol.REPORTS_DIR)
        self._stored: Optional[logs.LogWriter] = None
        self._burst = BURST_BYTES
        self._budget: float = self._burst
        self._filled_at = clock()
        self._looked_at = 0.0
        self._recover()

    @property
    def end(self) -> int:
        """Logical size of the stored reports."""
        return 0 if self._stored is None else self._stored.end

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 without."""
        return self._inbox.fileno()

    def accepts(self) -> bool:
        """Return whether rate and disk space allow further reports now."""
        now = self._clock()
        self._budget = min(self._burst, self._budget + (now - self._filled_at) * RATE_BYTES)
        self._filled_at = now
        return self._budget > 0 and self._is_idle()

    def _is_idle(self) -> bool:
        """Return whether no step is in progress; a step stopped by a full disk is retried."""
        return self._numbers[_STATE] == _IDLE or self._store()

    # -- datagrams -------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Store the next datagram; False if none is waiting or accepted now."""
        line = self._inbox.socket
        if line is None or not self.accepts():
            return False
        self._numbers[_STATE] = _RECEIVING
        try:
            size = line.recv_into(self._journal.buffer)
        except OSError:
            self._numbers[_STATE] = _IDLE
            return False
        self._take(size)
        return True

    def receive_all(self) -> None:
        """Store the datagrams that are waiting, within bounds."""
        for _ in range(MOST_AT_ONCE):
            if not self.receive():
                break

    def _take(self, size: int) -> None:
        """Check the datagram in the buffer, and store its line."""
        self._budget -= max(size, LEAST_COST)
        start = self._start_of_line(bytes(self._journal.buffer[:size]))
        if not start:
            self._reject()
            self._journal.clear(size)
            return
        if self._journal.buffer[size - 1] != 10:
            self._journal.buffer[size] = 10
            size += 1
        self._begin(start, size - start, self._numbers[_OFFSET])
        self._store()

    def _start_of_line(self, datagram: bytes) -> int:
        """Return the start of the line behind the token; 0 if the datagram is not valid."""
        token, _, line = datagram.partition(b" ")
        is_valid = hmac.compare_digest(token, self._inbox.token)
        is_line = line.strip() and len(line) <= LONGEST_LINE
        is_line = is_line and b"\n" not in line[:-1] and b"\0" not in line
        return len(token) + 1 if is_valid and is_line else 0

    def _reject(self) -> None:
        self._numbers[_REJECTED] += 1
        if self._numbers[_REJECTED] == 1:
            self._warn(f"{_REJECTION}; further rejections are only counted")

    # -- lines of this process -------------------------------------------------------------------

    def add(self, line: bytes) -> bool:
        """Store a line that this process has written; False if a step is in progress.

        The rate is not checked: call ``accepts`` before reading the source of further lines.

        Args:
            line: at most ``LONGEST_LINE`` bytes, with its line end.
        """
        if not self._is_idle():
            return False
        self._budget -= max(len(line), LEAST_COST)
        self._numbers[_STATE] = _READING
        self._journal.buffer[: len(line)] = line
        self._begin(0, len(line), self._numbers[_OFFSET])
        self._store()
        return True

    # -- the job's file --------------------------------------------------------------------------

    def look(self) -> None:
        """Store the lines that the job has appended to its file, if a check is due.

        Datagrams come first: a script appends to the file after the library has sent them.
        """
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self.receive_all()
            self._take_lines(last=False)

    def _take_lines(self, *, last: bool) -> None:
        descriptor = self._opened()
        if descriptor < 0:
            return
        left = MOST_LAST_BYTES
        try:
            while left > 0 and self.accepts():
                size = self._take_piece(descriptor, last=last)
                if not size:
                    return
                left -= size
                self._budget -= size
        finally:
            os.close(descriptor)

    def _opened(self) -> int:
        """Open the job's file if it has grown; -1 if not, or if it is not a file of the job."""
        size = system.regular_size(self._file)
        if size is None or size == self._numbers[_OFFSET] or not self._is_idle():
            return -1
        if size < self._numbers[_OFFSET]:
            self._numbers[_OFFSET] = 0  # the job has truncated the file; stored reports remain
        try:
            descriptor = system.open_regular(self._file, any_owner=True)
        except OSError:
            return -1
        found = os.fstat(descriptor)
        if found.st_uid in self._inbox.owners and found.st_nlink == 1:
            return descriptor
        os.close(descriptor)
        return -1

    def _take_piece(self, descriptor: int, *, last: bool) -> int:
        """Store the whole lines of the next piece; returns the bytes read of the file."""
        offset, buffer = self._numbers[_OFFSET], self._journal.buffer
        self._numbers[_STATE] = _READING
        try:
            size = os.preadv(descriptor, [buffer[:LONGEST_LINE]], offset)
        except OSError:
            size = 0  # the next call retries
        whole = bytes(buffer[:size]).rfind(b"\n") + 1
        if not whole and size == LONGEST_LINE:
            self._journal.clear(size)
            self._numbers[_OFFSET] = offset + size
            self._reject()
            return size
        if not whole and size and last:
            buffer[size] = 10
            whole = size + 1
        if not whole:
            self._journal.clear(size)
            return 0
        buffer[whole:size] = bytes(max(0, size - whole))
        self._begin(0, whole, offset + min(whole, size))
        self._store()
        return min(whole, size)

    # -- storing ---------------------------------------------------------------------------------

    def _begin(self, start: int, size: int, following: int) -> None:
        numbers = self._numbers
        numbers[_BEFORE] = self._reports().end
        numbers[_START], numbers[_SIZE], numbers[_NEXT] = start, size, following
        numbers[_STATE] = _STORING

    def _store(self) -> bool:
        """Store the rest of the step in progress; False while the disk is full."""
        numbers, stored = self._numbers, self._reports()
        start, size = numbers[_START], numbers[_SIZE]
        done = max(0, stored.end - numbers[_BEFORE])
        if done < size:
            stored.write(bytes(self._journal.buffer[start + done : start + size]))
            if stored.end - numbers[_BEFORE] < size:
                return False
        numbers[_OFFSET] = numbers[_NEXT]
        self._journal.clear(start + size)
        return True

    def _reports(self) -> logs.LogWriter:
        if self._stored is None:
            self._stored = logs.LogWriter(
                self._directory,
                cap=self._cap,
                segment=self._segment,
                rate=_NO_LIMIT,
                clock=self._clock,
                resumed=True,
                marks=False,
            )
        return self._stored

    def _recover(self) -> None:
        """Complete the step of a killed process."""
        state, journal = self._numbers[_STATE], self._journal
        if state == _STORING:
            self._store()
        elif state == _RECEIVING and journal.received():
            self._take(journal.received())
        elif state != _IDLE:
            journal.clear(_BUFFER)

    def finish(self) -> None:
        """Store the rest, within bounds, and log the number of rejected lines."""
        self._budget = self._burst = _NO_LIMIT
        self.receive_all()
        self._take_lines(last=True)
        if self._stored is not None:
            self._stored.close()
        if self._numbers[_REJECTED] > 1:
            self._warn(f"{self._numbers[_REJECTED]} reports were rejected")
