"""One stream of the output of several processes, in which each line begins with its rank."""

from __future__ import annotations

import os
import re
import selectors
import time
from typing import Dict

LONGEST_LINE = 64 << 10
"""Bytes after which a line is broken, so that output without lines needs no memory."""
READ_BYTES = 64 << 10
FINISH_SECONDS = 1.0
_END = re.compile(rb"\r?\n|\r(?=[^\n])")
"""The end of a line; progress bars end lines by a carriage return."""


class _Stream:
    """The output of one rank that is not written yet."""

    def __init__(self, rank: str) -> None:
        self.label = f"[rank{rank}] ".encode("ascii")
        self.held = b""

    def take(self, received: bytes) -> bytes:
        """Return the complete lines, each with its label."""
        held, begin, lines = self.held + received, 0, []
        for end in _END.finditer(held, max(0, len(self.held) - 1)):
            lines.append(held[begin : end.end()])
            begin = end.end()
        held = held[begin:]
        if len(held) > LONGEST_LINE:
            lines.append(held + b"\n")
            held = b""
        self.held = held
        return b"".join(self.label + line for line in lines)

    def rest(self) -> bytes:
        """Return the last line, which its process did not end."""
        return self.label + self.held.rstrip(b"\r") + b"\n" if self.held else b""


class RankOutput:
    """Copies the output of processes to one descriptor.

    Args:
        target: descriptor to write to; a full pipe blocks the processes in the end.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._selector = selectors.DefaultSelector()
        self._streams: Dict[int, _Stream] = {}

    def open(self, rank: str) -> int:
        """Return the descriptor for the output of a process, which the caller closes."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._streams[reader] = _Stream(rank)
        self._selector.register(reader, selectors.EVENT_READ)
        return writer

    def pump(self, seconds: float) -> bool:
        """Copy the output that comes within some seconds; returns whether there was any."""
        if not self._streams:
            time.sleep(seconds)
            return False
        ready = self._selector.select(seconds)
        for key, _ in ready:
            self._read(key.fd)
        return bool(ready)

    def _read(self, reader: int) -> None:
        try:
            received = os.read(reader, READ_BYTES)
        except BlockingIOError:
            return
        if received:
            self._write(self._streams[reader].take(received))
        else:
            self._close(reader)

    def _close(self, reader: int) -> None:
        self._write(self._streams.pop(reader).rest())
        self._selector.unregister(reader)
        os.close(reader)

    def write_line(self, text: str) -> None:
        """Write a line of the launcher itself."""
        self._write(f"[tessera] {text}\n".encode())

    def finish(self) -> None:
        """Copy the rest of the output; a process left in the background may still write."""
        deadline = time.monotonic() + FINISH_SECONDS
        while self._streams and time.monotonic() < deadline and self.pump(0.0):
            pass
        for reader in list(self._streams):
            self._close(reader)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._target, data) :]
