"""The log writer of a run: a process apart from the runner that owns the job's output.

It is there before the job starts, as the parent of the runner. It outlives a runner that is
killed, reads the pipe to its end, and only then closes the log. The runner keeps the reading end
of the pipe open as well, so that a job never writes into a closed pipe and a new writer
continues where a killed one ended.
The writer holds a lock on ``writer`` in the run directory until the log is complete.
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
from typing import NoReturn, Optional

from tessera import protocol
from tessera.node import logs, runs, system
from tessera.node.runs import Run
from tessera.protocol import RunSpec

READ_BYTES = 1 << 16
GREW_SECONDS = 0.2
FLOOD_PAUSE_SECONDS = 0.01
RESTART_SECONDS = LOOK_SECONDS = 1.0
FROZEN_SECONDS = 5.0
FINISH_SECONDS = 5.0
PUMP_SECONDS = 2.0
MOST_LEFT = 4 << 20
"""Bytes read after the end of the job, where a stranger goes on writing."""
_FINISH = b"f"
_GAP = (
    f"the log writer ended unexpectedly: up to {READ_BYTES >> 10} KiB of output are missing here"
)


class LogProcess:
    """The runner's handle of the writer.

    Attributes:
        input: descriptor that the output of the job is written to.
        end: logical size of the log, once it is finished.
    """

    def __init__(self, run: Run, spec: RunSpec) -> None:
        self._run, self._spec = run, spec
        self._output, self.input = os.pipe()
        os.set_blocking(self._output, False)
        self._channel: Optional[socket.socket] = None
        self._pid, self._born = 0, 0
        self._began = 0.0
        self._stuck_since = self._looked_at = 0.0
        self.end = 0

    # -- while the job runs ----------------------------------------------------------------------

    def start(self) -> None:
        """Split this process: it becomes the writer, and its child goes on as the runner."""
        lock = self._lock()
        channel, theirs = socket.socketpair()
        writer = os.getpid()
        if os.fork():
            self._become_writer(theirs, lock, "")
        os.setsid()
        self._attach(writer, channel, theirs, lock)

    def _restart(self) -> None:
        """Fork another writer.

        It must not become a child of this process, which ends everything below it: so it is
        forked by a process in between, while this one is no subreaper.
        """
        lock = self._lock()
        channel, theirs = socket.socketpair()
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 0)
        between = os.fork()
        if between == 0:
            signal.set_wakeup_fd(-1)
            writer = os.fork()
            if not writer:
                os.setsid()
                self._become_writer(theirs, lock, _GAP)
            theirs.send(b"%d" % writer)
            os._exit(0)
        os.waitpid(between, 0)
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
        self._attach(int(channel.recv(32)), channel, theirs, lock)

    def _become_writer(self, channel: socket.socket, lock: int, note: str) -> NoReturn:
        try:
            gc.disable()
            system.close_others({self._output, channel.fileno(), lock})
            _Writer(self._run, self._spec, self._output, channel, lock).write(note)
        except BaseException:  # the one place that sees it: the runner starts another writer
            runs.note_error(self._run)
        os._exit(0)

    def _attach(self, pid: int, channel: socket.socket, theirs: socket.socket, lock: int) -> None:
        theirs.close()
        if lock >= 0:
            os.close(lock)
        channel.setblocking(False)
        self._channel = channel
        self._pid, self._born = pid, system.start_ticks(pid) or 0
        self._began = time.monotonic()

    def _lock(self) -> int:
        """The writer's lock, which lives as long as any copy of its descriptor; -1 without."""
        flags = os.O_RDWR | os.O_CREAT | system.SAFE_OPEN
        try:
            lock = os.open(self._run.file(protocol.WRITER_FILE), flags, 0o600)
        except OSError:
            return -1  # the disk is full: a log that is read too early lacks its last lines
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        return lock

    def descriptor(self) -> int:
        """The descriptor to wait on; -1 while there is no writer."""
        return -1 if self._channel is None else self._channel.fileno()

    def look(self) -> None:
        """Replace a writer that has ended or is frozen, and note that the run is supervised."""
        now = time.monotonic()
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
        if self._channel is not None and _received(self._channel) == b"":
            self._channel.close()
            self._channel = None
        return self._channel is None

    def _is_frozen(self, now: float) -> bool:
        """Whether the writer has been stopped for a while with output waiting for it."""
        found = system.process(self._pid) if _pending(self._output) else None
        if found is None or found.state not in "Tt":
            self._stuck_since = now
        return now - self._stuck_since >= FROZEN_SECONDS

    def _kill(self) -> None:
        if self._pid and system.start_ticks(self._pid) == self._born:
            system.kill_quietly(self._pid, signal.SIGKILL)

    def close_input(self) -> None:
        """Let go of the writing end: from now on only the job has it."""
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def pump(self, output: bytes) -> None:
        """Write output that came another way; if the writer takes none, the rest is dropped."""
        os.set_blocking(self.input, False)
        view = memoryview(output)
        poll = select.poll()
        poll.register(self.input, select.POLLOUT)
        while view and poll.poll(PUMP_SECONDS * 1000):
            try:
                view = view[os.write(self.input, view) :]
            except BlockingIOError:
                continue

    # -- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Have everything written that is in the pipe, and the log closed.

        A writer that does not answer in time is killed, and this process does its work.
        """
        self.close_input()
        answer = self._ask_to_finish()
        if answer is None:
            self._kill()
            log = _open_log(self._run, self._spec, resumed=True)
            log.mark(_GAP)
            _drain(self._output, log)
            log.close()
            answer = log.end
        os.close(self._output)
        self.end = answer

    def _ask_to_finish(self) -> Optional[int]:
        if self._channel is None:
            return None
        self._channel.settimeout(FINISH_SECONDS)
        try:
            self._channel.send(_FINISH)
            answer = self._channel.recv(32)
        except OSError:
            return None
        return int(answer) if answer.isdigit() else None


class _Writer:
    """The process that writes the log."""

    def __init__(
        self, run: Run, spec: RunSpec, output: int, channel: socket.socket, lock: int
    ) -> None:
        self._run, self._spec, self._output = run, spec, output
        self._channel, self._lock = channel, lock
        self._told_end, self._told_at = 0, 0.0
        self._is_open = True  # somebody may still write into the pipe
        self._is_alone = False  # the runner is gone
        self._is_asked = False  # the runner wants the log closed

    def write(self, note: str) -> None:
        """Write the log until it is complete."""
        system.name_process("tessera-log")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        self._note_pid()
        self._log = _open_log(self._run, self._spec, resumed=bool(note))
        self._told_end = self._log.end
        if note:
            self._log.mark(note)
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._poll.register(self._channel, select.POLLIN)
        while not (self._is_asked or (self._is_alone and not self._is_open)):
            self._wait()
            self._tell_of_output()
        self._close()

    def _note_pid(self) -> None:
        text = b"%d %d\n" % (os.getpid(), system.start_ticks(os.getpid()) or 0)
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, text, 0)
        except OSError:
            pass

    def _wait(self) -> None:
        seconds: Optional[float] = LOOK_SECONDS if self._is_alone else None
        if self._told_end != self._log.end:
            seconds = max(0.0, self._told_at + GREW_SECONDS - time.monotonic())
        found = self._poll.poll(None if seconds is None else seconds * 1000 + 0.5)
        for descriptor, _ in found:
            if descriptor == self._output:
                self._take()
            else:
                self._hear()
        if self._is_alone and not found and not self._run.exists():
            self._is_open = False  # nobody will read the log

    def _take(self) -> None:
        """Move output into the log; a flood is read in gulps, so that dropping it costs little."""
        try:
            output = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return
        if not output:
            self._is_open = False
            self._poll.unregister(self._output)
            return
        self._log.write(output)
        if self._log.dropping:
            time.sleep(FLOOD_PAUSE_SECONDS)

    def _hear(self) -> None:
        heard = _received(self._channel)
        self._is_asked = heard == _FINISH
        if heard == b"":
            self._is_alone = True
            self._poll.unregister(self._channel)
            self._touch()

    def _touch(self) -> None:
        """Leave the time as evidence of when the run ended."""
        try:
            os.utime(self._lock)
        except OSError:
            pass

    def _tell_of_output(self) -> None:
        now = time.monotonic()
        if self._log.end != self._told_end and now - self._told_at >= GREW_SECONDS:
            self._told_end, self._told_at = self._log.end, now
            system.notify(self._run.store.root, self._run.run_id)

    def _close(self) -> None:
        if self._is_open:
            _drain(self._output, self._log)
        self._log.close()
        if self._is_asked:
            self._channel.send(b"%d" % self._log.end)
            return
        self._touch()
        if self._lock >= 0:
            os.close(self._lock)
        system.notify(self._run.store.root, self._run.run_id)


def _open_log(run: Run, spec: RunSpec, *, resumed: bool) -> logs.LogWriter:
    return logs.LogWriter(
        run.file(protocol.LOG_DIR),
        cap=spec.log_cap_bytes,
        segment=spec.log_segment_bytes,
        rate=spec.log_rate_bytes,
        clock=time.monotonic,
        resumed=resumed,
    )


def _drain(output: int, log: logs.LogWriter) -> None:
    """Take what is in the pipe; a stranger who holds it open is not waited for."""
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


def _received(channel: socket.socket) -> Optional[bytes]:
    """The received bytes; empty when the other side is gone, None when nothing came."""
    try:
        return channel.recv(64, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _pending(descriptor: int) -> bool:
    """Whether there are bytes in a pipe."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return False
    return count[0] > 0


def kill_writer(run: Run) -> None:
    """End the writer of a run that has lost its runner and does not end by itself."""
    text = system.read_file(run.file(protocol.WRITER_FILE), 64).split()
    if len(text) == 2 and all(word.isdigit() for word in text):
        pid, born = int(text[0]), int(text[1])
        if pid > 1 and system.start_ticks(pid) == born:
            system.kill_quietly(pid, signal.SIGKILL)
