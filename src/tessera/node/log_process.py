"""The runner's handle of the log writer, a separate process.

The writer owns the job's output and reports. It is the parent of the runner, and serves each of
its runs, one at a time. It outlives a runner that is killed, reads the pipe to its end, and only
then closes the log. The runner has the reading end of the pipe and the socket of the reports open
as well: a job never writes into a closed pipe, and a new writer continues where a killed one
ended. The writer holds a lock on ``writer`` in the run directory until the log is complete.
"""

from __future__ import annotations

import array
import fcntl
import gc
import os
import select
import signal
import socket
import termios
import time
from typing import NamedTuple, NoReturn, Optional

from tessera import protocol
from tessera.node import kernel, logs, reports, runs, system
from tessera.node.container_output import Position, Sink
from tessera.node.helper import send_descriptors
from tessera.node.log_writer import (
    FINISH,
    LOOK_SECONDS,
    MOST_LEFT,
    READ_BYTES,
    Writer,
    drain,
    name_writer,
    open_log,
    order_of,
    received,
    serve,
)
from tessera.node.reports import Collector, Journal
from tessera.node.runs import Run, Store
from tessera.protocol import RunSpec

RESTART_SECONDS = 1.0
FROZEN_SECONDS = 5.0
FINISH_SECONDS = 5.0
KILL_SECONDS = 2.0
PUMP_SECONDS = 2.0
_GAP = (
    f"the log writer ended unexpectedly: up to {READ_BYTES >> 10} KiB of output are missing here"
)


class Partner(NamedTuple):
    """The writer of a runner: its process, the channel to it, and memory shared with it.

    Attributes:
        born: its start in clock ticks since boot.
    """

    pid: int
    born: int
    channel: socket.socket
    journal: Journal
    position: Position


def fork_runner(store: Store) -> Partner:
    """Fork: this process becomes the writer, and its child the runner, which returns."""
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writer = os.getpid()
    partner = Partner(writer, system.start_ticks(writer) or 0, channel, Journal(), Position())
    if os.fork():
        try:
            gc.disable()
            kernel.close_others({theirs.fileno()})
            serve(store, theirs, partner.journal, partner.position)
        finally:
            os._exit(0)
    os.setsid()
    theirs.close()
    return partner


class LogProcess(Sink):
    """The runner's handle of the writer for one run.

    Attributes:
        input: descriptor for the output of the job.
        end: logical size of the log, once it is finished.
        is_reusable: whether the writer has finished the log, and can write another one.
    """

    def __init__(self, run: Run, spec: RunSpec, partner: Partner) -> None:
        self._run, self._spec, self._partner = run, spec, partner
        self._output, self.input = os.pipe()
        os.set_blocking(self._output, False)
        self._inbox = reports.open_inbox(run, spec, partner.journal)
        self._channel: Optional[socket.socket] = None
        self._pid, self._born = 0, 0
        self._began = 0.0
        self._stuck_since = self._looked_at = 0.0
        self._position = partner.position if spec.container is not None else None
        self._pumped = self._read = 0
        self._waiting = b""
        self._is_stuck = False
        self.end = 0
        self.is_reusable = False

    # -- while the job runs ----------------------------------------------------------------------

    def start(self) -> None:
        """Order the writer to write the log; the next check replaces a killed writer."""
        partner, lock = self._partner, self._lock()
        partner.journal.reset()
        try:
            send_descriptors(
                partner.channel, *order_of(self._run, self._output, lock, self._inbox)
            )
        except OSError:
            pass
        self._attach(partner.pid, partner.born, partner.channel, lock)

    def _restart(self) -> None:
        """Fork another writer.

        It must not become a child of this process, which ends all of its descendants. Therefore an
        intermediate process forks it, while this process is not a subreaper.
        """
        lock = self._lock()
        self._read = self._pumped - _pending(self._output)
        channel, theirs = socket.socketpair()
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 0)
        between = os.fork()
        if between == 0:
            self._fork_writer(theirs, lock)
        os.waitpid(between, 0)
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
        theirs.close()  # otherwise the death of the child would not be detected
        channel.settimeout(RESTART_SECONDS)
        try:
            pid = channel.recv(32)
        except OSError:
            pid = b""
        writer = int(pid or 0)
        self._attach(writer, system.start_ticks(writer) or 0, channel, lock)

    def _fork_writer(self, theirs: socket.socket, lock: int) -> NoReturn:
        """Fork the writer in the intermediate process, and report its pid."""
        try:
            signal.set_wakeup_fd(-1)
            writer = os.fork()
            if not writer:
                os.setsid()
                self._become_writer(theirs, lock, _GAP)
            theirs.send(b"%d" % writer)
        finally:
            os._exit(0)

    def _become_writer(self, channel: socket.socket, lock: int, note: str) -> NoReturn:
        try:
            gc.disable()
            name_writer()
            inbox = -1 if self._inbox is None else self._inbox.fileno()
            kernel.close_others({self._output, channel.fileno(), lock, inbox})
            writer = Writer(self._run, self._spec, self._output, channel, lock, inbox=self._inbox)
            writer.supply(self._position, read=self._read)
            writer.write(note)
        except BaseException:  # the error is only recorded: the runner starts another writer
            runs.note_error(self._run)
        os._exit(0)

    def _attach(self, pid: int, born: int, channel: socket.socket, lock: int) -> None:
        if lock >= 0:
            os.close(lock)
        channel.setblocking(False)
        self._channel = channel
        self._pid, self._born = pid, born
        self._began = time.monotonic()

    def _lock(self) -> int:
        """Return the writer's lock, held while a copy of its descriptor is open; -1 without."""
        flags = os.O_RDWR | os.O_CREAT | system.SAFE_OPEN
        try:
            lock = os.open(self._run.file(protocol.WRITER_FILE), flags, 0o600)
        except OSError:
            return -1  # the disk is full: readers may miss the last lines of the log
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        return lock

    def descriptor(self) -> int:
        """Return the descriptor to wait on; -1 without a writer."""
        return -1 if self._channel is None else self._channel.fileno()

    def look(self) -> None:
        """Replace a writer that has ended or hangs, and record that the run is supervised."""
        now = time.monotonic()
        if self._waiting:
            self.pump(b"")
        if self._has_ended():
            if now - self._began >= RESTART_SECONDS:
                self._restart()
        elif now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._touch()
            if self._is_frozen(now):
                self._kill()

    def _touch(self) -> None:
        try:
            os.utime(self._run.file(protocol.WRITER_FILE), follow_symlinks=False)
        except OSError:
            pass

    def _has_ended(self) -> bool:
        if self._channel is not None and received(self._channel) == b"":
            self._channel.close()
            self._channel = None
        return self._channel is None

    def _is_frozen(self, now: float) -> bool:
        """Return whether the writer is stopped while output waits for it."""
        inbox = -1 if self._inbox is None else self._inbox.fileno()
        is_awaited = _pending(self._output) or (inbox >= 0 and _pending(inbox))
        found = system.process(self._pid) if is_awaited else None
        if found is None or found.state not in "Tt":
            self._stuck_since = now
        return now - self._stuck_since >= FROZEN_SECONDS

    def _kill(self) -> bool:
        """Kill the writer; returns whether it ended within a bounded time."""
        deadline = time.monotonic() + KILL_SECONDS
        while self._pid and system.start_ticks(self._pid) == self._born:
            if time.monotonic() > deadline:
                return False  # blocked in the kernel by a disk that does not respond
            system.kill_quietly(self._pid, signal.SIGKILL)
            time.sleep(0.002)
        return True

    def close_input(self) -> None:
        """Close the write end of the pipe; from now on, only the job has it."""
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def pump(self, output: bytes) -> None:
        """Write a container's output into the pipe; while the pipe is full, it waits here."""
        os.set_blocking(self.input, False)
        self._waiting = (self._waiting + output)[:MOST_LEFT]
        view = memoryview(self._waiting)
        poll = select.poll()
        poll.register(self.input, select.POLLOUT)
        while view and poll.poll(0 if self._is_stuck else PUMP_SECONDS * 1000):
            try:
                written = os.write(self.input, view)
            except BlockingIOError:
                continue
            self._pumped += written
            self._is_stuck = False
            view = view[written:]
        self._is_stuck = bool(view)
        self._waiting = bytes(view)

    def note(self, position: bytes) -> None:
        """Store the position in a container's output up to which the pipe has it."""
        if self._position is not None and not self._waiting:
            self._position.note(position, self._pumped)

    def is_full(self) -> bool:
        """Return whether output waits here."""
        return bool(self._waiting)

    # -- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let the writer drain the pipe, and close the log.

        A writer that does not respond in time is killed, and this process does its work.
        """
        if self._waiting:
            self._is_stuck = False
            self.pump(b"")
        self.close_input()
        answer = None if self._waiting else self._ask_to_finish()
        self.is_reusable = answer is not None and self._channel is self._partner.channel
        if answer is None:
            answer = self._finish_alone()
        os.close(self._output)
        if self._inbox is not None:
            self._inbox.close()
        self.end = answer

    def _finish_alone(self) -> int:
        if not self._kill():  # two processes must not write one log
            return logs.log_end(self._run.file(protocol.LOG_DIR))
        log = open_log(self._run, self._spec, resumed=True)
        log.mark(_GAP)
        drain(self._output, log)
        log.write(self._waiting)
        if self._inbox is not None:
            Collector(self._inbox, time.monotonic, log.mark).finish()
        log.close()
        return log.end

    def _ask_to_finish(self) -> Optional[int]:
        if self._channel is None:
            return None
        self._channel.settimeout(FINISH_SECONDS)
        try:
            self._channel.send(FINISH)
            answer = self._channel.recv(32)
        except OSError:
            return None
        return int(answer) if answer.isdigit() else None


def _pending(descriptor: int) -> int:
    """Count of bytes in a pipe; of a socket, size of the next datagram."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]


def kill_writer(run: Run) -> bool:
    """Kill the writer of a run that has lost its runner; returns whether there was one."""
    text = system.read_file(run.file(protocol.WRITER_FILE), 64).split()
    if len(text) == 2 and all(word.isdigit() for word in text):
        pid, born = int(text[0]), int(text[1])
        if pid > 1 and system.start_ticks(pid) == born:
            system.kill_quietly(pid, signal.SIGKILL)
            return True
    return False


def mark_gap(run: Run) -> None:
    """Mark in the log that a killed writer did not complete it."""
    try:
        log = open_log(run, run.spec(), resumed=True)
    except protocol.ProtocolError:
        return  # of another version
    log.mark(_GAP, left=0)
    log.close()
