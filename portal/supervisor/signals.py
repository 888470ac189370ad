"""Signals that wake the supervisor's loop instead of interrupting it."""

import select
import signal
import socket
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalWatch:
    """Counts requests to stop, and ends a wait when one arrives or a child changes.

    Attributes:
        stop_requests: number of TERM, INT and HUP received.
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
            # A start with `nohup` means that the end of the terminal must not stop us.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most for this time."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, seconds))
        if ready:
            self._reader.recv(4096)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stop_requests += 1
