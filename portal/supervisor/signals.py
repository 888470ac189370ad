"""Signals that wake the supervisor's loop instead of interrupting it."""

import select
import signal
import socket
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalWatch:
    """Counts the requests to stop, and ends a wait when one comes or a child changes.

    Attributes:
        stop_requests: how many TERM, INT or HUP have come.
    """

    def __init__(self) -> None:
        self.stop_requests = 0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def install(self) -> None:
        """Take over the signals of this process."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._note)
        for number in STOPPING:
            # Whoever started us with `nohup` does not want us to end with the terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def wait(self, seconds: float) -> None:
        """Wait until a signal comes, at most so long."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, seconds))
        if ready:
            self._reader.recv(4096)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stop_requests += 1
