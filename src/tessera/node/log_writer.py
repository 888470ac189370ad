"""The process that writes the log of a run and stores its reports until both are complete."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import List, Optional, Tuple

from tessera import protocol
from tessera.node import logs, reports, runs, system
from tessera.node.container_output import Position, Successor
from tessera.node.helper import receive_descriptors
from tessera.node.reports import Collector, Inbox, Journal
from tessera.node.runs import Run, Store
from tessera.node.tracking.event_files import EventFiles
from tessera.protocol import RunSpec

READ_BYTES = 1 << 16
GREW_SECONDS = 0.2
LOOK_SECONDS = 1.0
FLOOD_PAUSE_SECONDS = 0.01
MOST_LEFT = 4 << 20
"""Maximum bytes read after the end of the job, in case a foreign process continues to write."""
FINISH = b"f"
_LONGEST_ORDER = 512


class Writer:
    """The process that writes the log."""

    def __init__(
        self,
        run: Run,
        spec: RunSpec,
        output: int,
        channel: socket.socket,
        lock: int,
        *,
        inbox: Optional[Inbox],
    ) -> None:
        self._run, self._spec, self._output = run, spec, output
        self._channel, self._lock, self._inbox = channel, lock, inbox
        self._reports: Optional[Collector] = None
        self._events: Optional[EventFiles] = None
        self._accepts = False  # while False, reports are queued
        self._position: Optional[Position] = None
        self._successor: Optional[Successor] = None
        self._read = 0
        self._told_ends, self._told_at = (0, 0), 0.0
        self._is_open = True  # other processes may still write into the pipe
        self._is_alone = False  # the runner is gone
        self._is_asked = False  # the runner wants the log closed

    def supply(self, position: Optional[Position], *, read: int) -> None:
        """Set the inputs for succeeding the runner of a container.

        Args:
            position: position of the container's output in the pipe; None for other runs.
            read: bytes that were read from the pipe before.
        """
        self._position, self._read = position, read

    def write(self, note: str) -> None:
        """Write the log until it is complete."""
        self._note_pid()
        self._log = open_log(self._run, self._spec, resumed=bool(note))
        if note:
            self._log.mark(note)
        if self._inbox is not None:
            self._collect_reports(self._inbox, resumed=bool(note))
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._poll.register(self._channel, select.POLLIN)
        while not (self._is_asked or (self._is_alone and not self._is_open)):
            self._wait()
            self._report_output()
        if not self._is_asked and self._position is not None and self._run.exists():
            self._succeed(self._position)
        self._close()

    def _collect_reports(self, inbox: Inbox, *, resumed: bool) -> None:
        self._reports = Collector(inbox, time.monotonic, self._log.mark)
        self._events = EventFiles(
            self._run, self._spec, self._reports.add, time.monotonic, resumed=resumed
        )

    def _succeed(self, position: Position) -> None:
        """Follow the container of a killed runner until it ends."""
        ref = self._spec.container
        if ref is None:
            return
        successor = Successor(ref, position, self._read, self._log.write)
        while not successor.is_done and self._run.exists():
            successor.look()
            answer = successor.answer()
            number = -1 if answer is None else answer.fileno()
            if answer is not None:
                self._poll.register(number, select.POLLIN)
            found = [one for one, _ in self._poll.poll(self._seconds() * 1000 + 0.5)]
            if answer is not None:
                self._poll.unregister(number)
                if number in found:
                    successor.receive()
            self._collect(found)
            self._report_output()

    def _note_pid(self) -> None:
        text = b"%d %d\n" % (os.getpid(), system.start_ticks(os.getpid()) or 0)
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, text, 0)
        except OSError:
            pass

    def _wait(self) -> None:
        found = self._poll.poll(self._seconds() * 1000 + 0.5)
        for descriptor, _ in found:
            if descriptor == self._output:
                self._take()
            elif descriptor == self._channel.fileno():
                self._hear()
        self._collect([descriptor for descriptor, _ in found])
        if self._is_alone and not found and not self._run.exists():
            self._is_open = False  # the log has no reader

    def _seconds(self) -> float:
        """Return the longest wait for input."""
        seconds = LOOK_SECONDS if self._reports is None else reports.LOOK_SECONDS
        if self._told_ends != self._ends():
            seconds = min(seconds, max(0.0, self._told_at + GREW_SECONDS - time.monotonic()))
        return seconds

    def _ends(self) -> Tuple[int, int]:
        return self._log.end, 0 if self._reports is None else self._reports.end

    def _collect(self, found: List[int]) -> None:
        """Store received reports; above the rate they wait in the socket or file."""
        inbox = self._reports
        if inbox is None:
            return
        if inbox.fileno() in found:
            inbox.receive_all()
        inbox.look()
        accepts = inbox.accepts()
        if accepts and self._events is not None:
            self._events.look()
        if accepts != self._accepts and inbox.fileno() >= 0:
            self._accepts = accepts
            self._poll.register(inbox.fileno(), select.POLLIN if accepts else 0)

    def _take(self) -> None:
        """Move output into the log; large reads reduce the cost of dropped output."""
        try:
            output = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return
        if not output:
            self._is_open = False
            self._poll.unregister(self._output)
            return
        self._read += len(output)
        self._log.write(output)
        if self._log.dropping:
            time.sleep(FLOOD_PAUSE_SECONDS)

    def _hear(self) -> None:
        heard = received(self._channel)
        self._is_asked = heard == FINISH
        if heard == b"":
            self._is_alone = True
            self._poll.unregister(self._channel)
            self._touch()

    def _touch(self) -> None:
        """Store the time as evidence of when the run ended."""
        try:
            os.utime(self._lock)
        except OSError:
            pass

    def _report_output(self) -> None:
        now, ends = time.monotonic(), self._ends()
        if ends != self._told_ends and now - self._told_at >= GREW_SECONDS:
            self._told_ends, self._told_at = ends, now
            system.notify(self._run.store.root, self._run.run_id)

    def _close(self) -> None:
        if self._is_open:
            drain(self._output, self._log)
        if self._reports is not None:
            if self._events is not None:
                self._events.finish()
            self._reports.finish()
        self._log.close()
        os.close(self._output)
        if self._inbox is not None:
            self._inbox.close()
        if not self._is_asked:
            self._touch()
        if self._lock >= 0:
            os.close(self._lock)
        if self._is_asked:
            self._channel.send(b"%d" % self._log.end)
        else:
            system.notify(self._run.store.root, self._run.run_id)


def order_of(run: Run, output: int, lock: int, inbox: Optional[Inbox]) -> Tuple[bytes, List[int]]:
    """Return the message to a writer with a run, and the descriptors that go with it."""
    line = -1 if inbox is None else inbox.fileno()
    text = f"{run.run_id} {int(lock >= 0)} {int(line >= 0)} {int(inbox is not None)}"
    return text.encode("ascii"), [output, *(one for one in (lock, line) if one >= 0)]


def serve(store: Store, channel: socket.socket, journal: Journal, position: Position) -> None:
    """Write the log of one ordered run after the other, until the runner has ended."""
    name_writer()
    while True:
        order, descriptors = receive_descriptors(channel, _LONGEST_ORDER)
        if not order:
            return
        run_id, *given = order.decode("ascii").split()
        has_lock, has_line, has_inbox = (word == "1" for word in given)
        run = store.run(run_id)
        try:
            spec = run.spec()
            output = descriptors.pop(0)
            lock = descriptors.pop(0) if has_lock else -1
            line = _socket_of(descriptors.pop(0)) if has_line else None
            inbox = Inbox(run, spec, journal, line) if has_inbox else None
            writer = Writer(run, spec, output, channel, lock, inbox=inbox)
            writer.supply(position if spec.container is not None else None, read=0)
            writer.write("")
        except BaseException:  # the error is only recorded: the runner starts another writer
            runs.note_error(run)
            return


def _socket_of(descriptor: int) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM, 0, descriptor)
    found.setblocking(False)
    return found


def name_writer() -> None:
    """Name this process, and ignore signals to the group of its runner."""
    system.name_process("tessera-log")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)


def open_log(run: Run, spec: RunSpec, *, resumed: bool) -> logs.LogWriter:
    """Open the log of a run; with ``resumed`` after its last byte."""
    return logs.LogWriter(
        run.file(protocol.LOG_DIR),
        cap=spec.log_cap_bytes,
        segment=spec.log_segment_bytes,
        rate=spec.log_rate_bytes,
        clock=time.monotonic,
        resumed=resumed,
        reserves=True,
    )


def drain(output: int, log: logs.LogWriter) -> None:
    """Read the pipe; do not wait for other processes that hold it open."""
    left = MOST_LEFT
    while left > 0:
        try:
            piece = os.read(output, READ_BYTES)
        except BlockingIOError:
            return
        if not piece:
            return
        left -= len(piece)
        log.write(piece)


def received(channel: socket.socket) -> Optional[bytes]:
    """Return the received bytes; empty when the other side is closed, None without data."""
    try:
        return channel.recv(64, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""
