"""Supervised child processes: start, check, restart with back-off, and end as a process group."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from portal.supervisor.files import write_private

LAUNCH: Final = Path(__file__).with_name("launch.py")
FIRST_BACKOFF: Final = 0.25
LONGEST_BACKOFF: Final = 20.0
STEADY_SECONDS: Final = 30.0
LOG_BYTES: Final = 10 << 20
LOGS_KEPT: Final = 3

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """A program to run.

    Attributes:
        name: unique name; also the name of its log.
        command: program and arguments, without secrets.
        environment: the whole environment.
        folder: working directory.
        stage: order of the shutdown; lower stages end first.
        stop_seconds: time between TERM and KILL.
        pass_fds: file descriptors that it inherits.
        has_heartbeat: whether it writes heartbeats, so that a missing one means that it hangs.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    stage: int = 0
    stop_seconds: float = 10.0
    pass_fds: tuple[int, ...] = ()
    has_heartbeat: bool = False


@dataclass(slots=True)
class Child:
    """A program with its current process, if any.

    Attributes:
        failures: consecutive ends without a steady run between them.
        restart_at: time of the next start; None while it runs or must not run.
        kill_at: time of KILL after a request to end.
    """

    program: ChildProgram
    log: Path
    clock: Clock
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float | None = None
    kill_at: float | None = None
    wanted: bool = field(default=False)

    @property
    def pid(self) -> int | None:
        """Return the process ID, which is also the ID of the process group."""
        return self.process.pid if self.process else None

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        """Start the process in a new session, tied to the supervisor, with output to its log."""
        prefix = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid())]
        handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.process = subprocess.Popen(
                [*prefix, *self.program.command],
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                cwd=self.program.folder,
                env=dict(self.program.environment),
                pass_fds=self.program.pass_fds,
                start_new_session=True,
            )
        finally:
            os.close(handle)
        self.started_at, self.restart_at, self.kill_at = self.clock(), None, None
        self.wanted = True

    def look(self) -> str:
        """Start the process if it is due, kill it after its time limit, or handle its exit.

        Returns:
            A line for the console, or an empty string.
        """
        if self.process is None:
            return self._start_if_due()
        status = self.process.poll()
        if status is None:
            if self.kill_at is not None and self.clock() >= self.kill_at:
                self._signal(signal.SIGKILL)
            return ""
        return self._ended(status)

    def ask_to_end(self, *, seconds: float | None = None, wanted: bool = False) -> None:
        """Send TERM to the process; KILL to its group follows after the time limit.

        Args:
            seconds: time until KILL; by default the limit of the program.
            wanted: whether to restart the program afterwards.
        """
        self.wanted = wanted
        self.restart_at = None
        if self.process is not None and self.kill_at is None:
            patience = self.program.stop_seconds if seconds is None else seconds
            self.kill_at = self.clock() + patience
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole process group at once, and do not restart it."""
        self.wanted, self.restart_at = False, None
        self._signal(signal.SIGKILL)

    def rotate_log(self, most_bytes: int = LOG_BYTES) -> None:
        """Rotate the log if it is too large; the process writes to the same open file."""
        with suppress(FileNotFoundError):
            if self.log.stat().st_size > most_bytes:
                for number in range(LOGS_KEPT - 1, 0, -1):
                    with suppress(FileNotFoundError):
                        _numbered(self.log, number).replace(_numbered(self.log, number + 1))
                _numbered(self.log, 1).write_bytes(self.log.read_bytes())
                os.truncate(self.log, 0)

    def _start_if_due(self) -> str:
        if not self.wanted or self.restart_at is None or self.clock() < self.restart_at:
            return ""
        try:
            self.start()
        except OSError as error:
            self.restart_at = self.clock() + LONGEST_BACKOFF
            return f"{self.program.name} cannot be started ({error.strerror}); trying again"
        return ""

    def _ended(self, status: int) -> str:
        # Remaining processes of the group must not run beside the restarted one.
        self._signal(signal.SIGKILL)
        self.process = None
        if not self.wanted:
            return ""
        steady = self.clock() - self.started_at >= STEADY_SECONDS
        self.failures = 1 if steady else self.failures + 1
        pause = min(FIRST_BACKOFF * 2 ** (self.failures - 1), LONGEST_BACKOFF)
        self.restart_at = self.clock() + pause
        return f"{self.program.name} ended ({end_text(status)}); starting it again in {pause:g} s"

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)


def end_text(status: int) -> str:
    """Return a text with the exit status or signal of a process."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def last_lines(log: Path, count: int = 12) -> list[str]:
    """Return the last lines of a log, which show why a process did not start."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _numbered(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


PATIENCE: Final = 5.0


def record_children(path: Path, pids: Mapping[str, int]) -> None:
    """Store name, process ID and start time of the running children."""
    known = {name: {"pid": pid, "started": start_ticks(pid)} for name, pid in pids.items()}
    write_private(path, json.dumps(known, indent=2) + "\n")


def end_leftovers(path: Path) -> list[str]:
    """End the remaining processes of an earlier supervisor, as process groups.

    Process IDs are reused, so a process must also have the recorded start time.

    Returns:
        The names of the ended programs.
    """
    left = {name: pid for name, pid in _recorded(path).items() if pid}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(_is_alive(pid) for pid in left.values()):
            time.sleep(0.05)
    path.unlink(missing_ok=True)
    return sorted(left)


def start_ticks(pid: int) -> int:
    """Return the start time of a process, in the kernel's ticks since boot; 0 if unknown."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _recorded(path: Path) -> dict[str, int]:
    """Return the process IDs of the recorded processes that still run, by name."""
    try:
        known = json.loads(path.read_text())
        found = {str(name): (int(one["pid"]), int(one["started"])) for name, one in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name: pid
        for name, (pid, started) in found.items()
        if pid > 1 and started and start_ticks(pid) == started
    }


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name, which may contain spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
