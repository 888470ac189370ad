"""The supervision loop of all children, and the signals that wake it up."""

import select
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from portal.supervisor.children import Child, ChildProgram, end_text, last_lines, record_children

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalWatch:
    """Counts requests to stop, and ends a wait when one arrives or a child changes.

    Attributes:
        stop_requests: number of received TERM, INT and HUP signals.
    """

    def __init__(self) -> None:
        self.stop_requests = 0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def install(self) -> None:
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._note)
        for number in STOPPING:
            # With `nohup`, HUP is ignored: the end of the terminal must not stop the portal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most for this many seconds."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, seconds))
        if ready:
            self._reader.recv(4096)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stop_requests += 1


TICK: Final = 0.2
ROTATE_EVERY: Final = 20.0
SILENT_STOP_SECONDS: Final = 5.0

Say = Callable[[str], None]


class StartupError(Exception):
    """The start failed; ``lines`` is the last output of the program."""

    def __init__(self, message: str, lines: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)


class KilledError(StartupError):
    """A signal ended a program that runs once; the program may be run again."""


class StoppedError(Exception):
    """A request to stop arrived during a wait."""


class Supervisor:
    """Child processes, and the thread that supervises them."""

    def __init__(self, *, logs: Path, record: Path, signals: SignalWatch, say: Say) -> None:
        self._logs = logs
        self._record = record
        self._signals = signals
        self._say = say
        self._rotated_at = time.monotonic()
        self._recorded: dict[str, int] = {}
        self.children: dict[str, Child] = {}

    def add(self, program: ChildProgram) -> Child:
        """Start a program and restart it when it ends."""
        log = self._logs / f"{program.name}.log"
        child = Child(program=program, log=log, clock=time.monotonic)
        self.children[program.name] = child
        child.start()
        self._write_record()
        return child

    def run_once(
        self, program: ChildProgram, *, seconds: float, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Run a program to its end, and supervise the others meanwhile.

        Args:
            program: the program.
            seconds: time limit.
            meanwhile: called once the program runs; it may wait for other programs.

        Raises:
            KilledError: a signal ended the program.
            StartupError: the program failed or took too long.
            StoppedError: a request to stop arrived.
        """
        child = Child(
            program=program, log=self._logs / f"{program.name}.log", clock=time.monotonic
        )
        self.children[program.name] = child
        child.start()
        child.wanted = False  # runs only once
        self._write_record()
        process = child.process
        try:
            if meanwhile is not None:
                meanwhile()
            done = self.wait_until(lambda: process is None or process.poll() is not None, seconds)
        finally:
            child.kill()
            if process is not None:
                process.wait()
            del self.children[program.name]
        if not done:
            raise StartupError(
                f"{program.name} took more than {seconds:g} s", last_lines(child.log)
            )
        status = process.returncode if process is not None else 0
        if status != 0:
            kind = KilledError if status < 0 else StartupError
            raise kind(f"{program.name} failed ({end_text(status)})", last_lines(child.log))

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Supervise the children until the condition holds.

        Returns:
            Whether the condition held within ``seconds``.

        Raises:
            StoppedError: a request to stop arrived.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.tick()
        return True

    def tick(self) -> None:
        """Check every child once, then wait for a signal or a short time.

        Raises:
            StoppedError: a request to stop arrived.
        """
        if self._signals.stop_requests:
            raise StoppedError
        self.look()
        self._signals.wait(TICK)
        if self._signals.stop_requests:
            raise StoppedError

    def look(self) -> None:
        """Restart ended children, kill children whose stop time is over, and rotate logs."""
        for child in self.children.values():
            line = child.look()
            if line:
                self._say(line)
        # Retry until the write succeeds: a full disk may have space at the next check.
        if self._pids() != self._recorded:
            self._write_record()
        if time.monotonic() - self._rotated_at > ROTATE_EVERY:
            self._rotated_at = time.monotonic()
            for child in self.children.values():
                with suppress(OSError):
                    child.rotate_log()

    def restart(self, hanging: Collection[int], *, why: str) -> None:
        """Restart children that run but hang.

        Args:
            hanging: their process IDs.
            why: the reason, printed after the name of the child.
        """
        for child in self.children.values():
            if child.pid in hanging and child.kill_at is None:
                self._say(f"{child.program.name} {why}; starting it again")
                child.ask_to_end(seconds=SILENT_STOP_SECONDS, wanted=True)

    def end_all(self) -> None:
        """Stop all children in stages; another stop request kills all of them at once."""
        before = self._signals.stop_requests
        for stage in sorted({child.program.stage for child in self.children.values()}):
            members = [one for one in self.children.values() if one.program.stage == stage]
            for child in members:
                child.ask_to_end()
            self._await_ends(members, before)
        with suppress(OSError):
            self._record.unlink(missing_ok=True)

    def _await_ends(self, members: list[Child], requests: int) -> None:
        while any(child.is_running for child in members):
            if self._signals.stop_requests > max(requests, 1):
                for child in self.children.values():
                    child.kill()
            self.look()
            if any(child.is_running for child in members):
                self._signals.wait(TICK / 4)

    def _pids(self) -> dict[str, int]:
        return {name: one.pid for name, one in self.children.items() if one.pid is not None}

    def _write_record(self) -> None:
        pids = self._pids()
        with suppress(OSError):
            record_children(self._record, pids)
            self._recorded = pids
