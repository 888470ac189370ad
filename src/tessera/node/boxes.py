"""The runner's side of a sandbox: start, signals, and end."""

from __future__ import annotations

import os
import signal
import socket
from typing import Callable, NamedTuple, NoReturn, Optional, Tuple

from tessera.node import cgroups, kernel, sandbox, system
from tessera.node.cgroups import Group
from tessera.node.sandbox_root import Plan

START_SECONDS = 60.0
"""Limit of each step of a start."""
REAP_SECONDS = 5.0


class SandboxError(Exception):
    """A sandbox could not be created, or a job could not be executed in it.

    Attributes:
        stage: stage of ``sandbox.enter``.
        number: errno, 0 for none.
    """

    def __init__(self, stage: str, number: int, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.number = number


class Report(NamedTuple):
    """The end of a job's first process; ``at`` is the time by the boot clock."""

    status: int
    at: float


def check_end(plan: Plan, end: Optional[Report]) -> None:
    """Check that the program of a trial has succeeded.

    Raises:
        SandboxError: the program failed, or the report is missing.
    """
    if end is None or end.status != 0:
        status = None if end is None else end.status
        raise SandboxError("execute", 0, f"{plan.arguments[0]} ended with status {status}")


class Sandbox:
    """One sandbox.

    Attributes:
        pid: process ID of its first process, as seen by this process.
        is_held: whether that process is in the control groups.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._channel, self._theirs = socket.socketpair()
        self._received = b""
        self.pid = 0
        self.is_held = False

    def start(
        self,
        output: int,
        group: Optional[Group] = None,
        connect: Optional[Callable[[int], Callable[[], None]]] = None,
    ) -> None:
        """Create the sandbox and execute the job in it.

        Args:
            output: descriptor of the job's output.
            group: the control groups of the job, in which the sandbox is created.
            connect: starts connecting the own network of a process, if the plan has one, and
                returns a function that waits for it. Meanwhile the root directory is created.

        Raises:
            SandboxError: the sandbox could not be created; no part of it remains.
        """
        self._channel.settimeout(START_SECONDS)
        own = os.getuid(), os.getgid()
        try:
            self.pid, is_held = cgroups.fork(group, sandbox.namespaces_of(self._plan))
        except OSError as error:
            raise SandboxError("unshare", error.errno or 0, f"{error}") from None
        if self.pid == 0:
            self._enter(own, output, group, is_held=is_held)
        self.is_held = group is not None
        self._theirs.close()
        try:
            connected = None
            if self._plan.own_network:
                if self._plan.uid is None:
                    self._line(sandbox.NETWORK)  # before this, the user namespace has no mapping
                connected = None if connect is None else connect(self.pid)
                self._order(sandbox.GO_ON)
            if connected is not None:
                connected()
            self._order(sandbox.GO_ON)
            self._line("started")
        except (OSError, SandboxError) as error:
            self.close()
            system.kill_quietly(self.pid, signal.SIGKILL)
            system.reap(self.pid, REAP_SECONDS)
            if isinstance(error, SandboxError):
                raise
            raise SandboxError("start", error.errno or 0, f"the sandbox: {error}") from None
        self._channel.setblocking(False)

    def _order(self, order: bytes) -> None:
        try:
            # The process of a probe has SIGPIPE at its default, which would end it.
            self._channel.sendall(order, socket.MSG_NOSIGNAL)
        except BrokenPipeError:
            pass  # the sandbox has failed; its report is read next

    def _enter(
        self, own: Tuple[int, int], output: int, group: Optional[Group], *, is_held: bool
    ) -> NoReturn:
        try:
            channel = self._theirs.fileno()
            kernel.close_others({output, channel})
            if group is not None and not is_held:
                os.write(channel, f"{sandbox.NOT_HELD}\n".encode("ascii"))
            is_bound = group is not None and is_held and group.bounds_processes
            sandbox.enter(self._plan, own, output, channel, is_bound=is_bound)
        finally:
            os._exit(127)

    def _line(self, word: str) -> str:
        """Return the rest of the line that begins with a word, after lines of progress.

        Raises:
            SandboxError: a failure was reported, or the sandbox ended without a report.
        """
        while True:
            line = self._next_line()
            if line is None:
                raise SandboxError("start", 0, "the sandbox ended without a report")
            first, _, rest = line.partition(" ")
            if first == word:
                return rest
            if first == sandbox.NOT_HELD:
                self.is_held = False
            elif first == "failed":
                stage, number, message = rest.split(" ", 2)
                raise SandboxError(stage, int(number), message)

    def _next_line(self) -> Optional[str]:
        while b"\n" not in self._received:
            piece = self._channel.recv(4096)
            if not piece:
                return None
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8", "replace")

    def signal(self, number: int) -> None:
        """Send a signal to the job's process group; SIGKILL reaches the whole sandbox."""
        try:
            self._channel.send(bytes([number]), socket.MSG_NOSIGNAL)
        except OSError:
            pass  # it has ended or hangs: its processes also get SIGKILL

    def end(self) -> Optional[Report]:
        """Return the end of the job's first process; None if it was not reported."""
        try:
            while True:
                line = self._next_line()
                if line is None:
                    return None
                word, _, rest = line.partition(" ")
                if word == "exit":
                    status, _, microseconds = rest.partition(" ")
                    return Report(int(status), int(microseconds) / 1e6)
        except OSError:
            return None  # no further data yet

    def close(self) -> None:
        """Close the sandbox, which ends all its processes."""
        self._channel.close()
