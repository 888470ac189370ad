"""Transport of report lines to the node over a socket, with the token of the attempt.

The socket is next to ``$TESSERA_JOB_REPORTS``, the token in the directory of the secrets.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Deque, List, Optional

SOCKET_NAME, TOKEN_NAME = "reports.sock", ".reports-token"
MOST_WAITING = 256
CLOSE_SECONDS = 2.0
LONGEST_LINE = 64 << 10
_LONGEST_PATH = 100


class Channel:
    """Sends lines in order, and never blocks the training.

    Args:
        path: of the file of reports.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.join(os.path.dirname(path), SOCKET_NAME)
        self._token = _token() if os.path.lexists(self._path) else b""
        self._socket: Optional[socket.socket] = None
        self._waiting: Deque[bytes] = deque()
        self._pid = os.getpid()

    def send(self, line: bytes) -> List[bytes]:
        """Send a line, or queue it while the node's queue is full.

        Returns:
            Lines to append to the file instead, in order: the socket is missing or unread,
            more than ``MOST_WAITING`` lines wait, or the line is too long for a datagram.
        """
        if not self._token or len(line) > LONGEST_LINE:
            return [line]
        if self._pid != os.getpid():  # a child, whose parent sends the lines that wait
            self._pid = os.getpid()
            self._waiting.clear()
        self._waiting.append(line)
        self._send_waiting(0.0)
        return self._taken() if not self._token or len(self._waiting) > MOST_WAITING else []

    def close(self) -> List[bytes]:
        """Send the queued lines; gives up after ``CLOSE_SECONDS`` without progress.

        Returns:
            The lines that could not be sent.
        """
        if self._waiting and self._pid == os.getpid():
            self._send_waiting(CLOSE_SECONDS)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        return self._taken()

    def _taken(self) -> List[bytes]:
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def _send_waiting(self, seconds: float) -> None:
        try:
            line = self._connected()
            line.settimeout(seconds)
            while self._waiting:
                line.send(self._token + b" " + self._waiting[0])
                self._waiting.popleft()
        except (BlockingIOError, socket.timeout):
            pass  # the queue is full
        except OSError:
            self._token = b""  # no receiver: from now on the file

    def _connected(self) -> socket.socket:
        if self._socket is None:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                _connect(found, self._path)
            except OSError:
                found.close()
                raise
            self._socket = found
        return self._socket


def _connect(line: socket.socket, path: str) -> None:
    """Connect to a path of any length, through a descriptor of its directory."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        line.connect(path)
        return
    folder, name = os.path.split(path)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        line.connect(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)


def _token() -> bytes:
    path = os.path.join(os.environ.get("TESSERA_JOB_SECRETS_DIR", ""), TOKEN_NAME)
    try:
        with open(path, "rb") as file:
            return file.read(128)
    except OSError:
        return b""
