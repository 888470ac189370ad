"""A container's output over several connections, without loss or duplicates.

The engine may end a connection before it has sent all output: at its own stop and, on a busy
machine, at the end of a container. It sends the same messages
in the same order to every reader, each with its time, so that the newest message that was read
marks where to resume.
"""

from __future__ import annotations

import json
import re
from typing import Dict, List, Optional

_HEAD = 8
_LONGEST_TIME = 48
_TIME = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:Z|([+-])(\d\d):(\d\d))$"
)
_SLACK = 1
"""Tolerance in seconds: messages of two streams may arrive in another order than their times."""


class _Newest:
    """The newest message of a stream.

    Attributes:
        time: as the engine writes it; all pieces of a long line have the line's.
        count: number of messages of this time.
        taken: received bytes of it.
        is_open: whether its line is incomplete.
    """

    __slots__ = ("count", "is_open", "taken", "time")

    def __init__(self, time: bytes) -> None:
        self.time = time
        self.count = 1
        self.taken = 0
        self.is_open = False


class Output:
    """Reads framed messages with times, and resumes where a connection broke off.

    Attributes:
        seeks: this connection has sent only known messages so far.
        is_lost: the engine has dropped the message to resume from, perhaps with more.
    """

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        self._streams: Dict[int, _Newest] = {}
        self._last = _Newest(b"")
        self._last_stream = 0
        self.seeks = False
        self._passed = 0
        self._drops = False
        self._skip = 0
        self.is_lost = False

    def resume(self) -> str:
        """Prepare to read from a new connection after the last one broke.

        Returns:
            The parameter ``&since=`` of the engine's log request; empty for the start.
        """
        self._held, self._left, self._passed = b"", 0, 0
        self.seeks, self._drops, self._skip = bool(self._streams), False, 0
        self.is_lost = False
        begins = [seconds(newest.time) for newest in self._streams.values() if newest.is_open]
        begins += [seconds(self._last.time)] if self._streams else []
        known = [begin for begin in begins if begin is not None]
        return f"&since={min(known) - _SLACK}" if known and len(known) == len(begins) else ""

    def position(self) -> bytes:
        """Return the read position, for ``restore`` in another process."""
        streams = {
            number: [newest.time.decode("latin-1"), newest.count, newest.taken, newest.is_open]
            for number, newest in self._streams.items()
        }
        return json.dumps([self._last_stream, streams]).encode("ascii")

    def restore(self, position: bytes) -> None:
        """Continue after a read position: skip the output before it."""
        self._last_stream, streams = json.loads(position)
        for number, (time, count, taken, is_open) in streams.items():
            newest = self._streams[int(number)] = _Newest(time.encode("latin-1"))
            newest.count, newest.taken, newest.is_open = count, taken, is_open
        self._last = self._streams.get(self._last_stream, self._last)

    def feed(self, received: bytes) -> bytes:
        """Return the new output in the received bytes."""
        received = self._held + received if self._held else received
        output: List[bytes] = []
        at = 0
        while at < len(received):
            if not self._left:
                begun = self._begin_message(received, at)
                if not begun:
                    break
                at = begun
            piece = received[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if piece and not self._drops:
                output.append(self._take(piece))
        self._held = received[at:]
        return b"".join(output)

    def _begin_message(self, received: bytes, at: int) -> int:
        """Return the offset of the message's text; 0 if more bytes are needed."""
        begin = at + _HEAD
        if len(received) < begin:
            return 0
        size = int.from_bytes(received[at + 4 : begin], "big")
        most = min(size, _LONGEST_TIME)
        space = received.find(b" ", begin, begin + most)
        if space < 0 and len(received) < begin + most:
            return 0
        text = space + 1 if space >= 0 else begin
        self._left = size - (text - begin)
        self._note(received[at], received[begin : max(space, begin)])
        return text

    def _note(self, stream: int, time: bytes) -> None:
        """Record the start of a message: whether it is new, and its index for its time."""
        self._skip, self._drops = 0, False
        if self.seeks and self._is_known(stream, time):
            return
        newest = self._streams.get(stream)
        if newest is not None and newest.time == time:
            newest.count += 1
            newest.taken = 0
        else:
            newest = self._streams[stream] = _Newest(time)
        self._last, self._last_stream = newest, stream

    def _is_known(self, stream: int, time: bytes) -> bool:
        """Return whether a message has been read before; the newest one perhaps only in part."""
        last = self._last
        self._drops = True
        if stream == self._last_stream and time == last.time:
            self._passed += 1
            if self._passed == last.count:
                self.seeks, self._drops, self._skip = False, False, last.taken
            return True
        here, newest = seconds(time), self._newest_second()
        if here is None or newest is None or here <= newest + _SLACK:
            return True
        self.seeks, self._drops, self.is_lost = False, False, True
        return False

    def _newest_second(self) -> Optional[int]:
        found = [seconds(newest.time) for newest in self._streams.values()]
        return max((second for second in found if second is not None), default=None)

    def _take(self, piece: bytes) -> bytes:
        """Return the part of a message's text that is new."""
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        self._last.taken += len(piece) - skipped
        self._last.is_open = piece[-1] != 10
        return piece[skipped:]


def seconds(time: bytes) -> Optional[int]:
    """Parse the engine's time into whole seconds since 1970; None if it is not valid."""
    found = _TIME.match(time)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    import calendar  # noqa: PLC0415 - loads much, for the output of containers only

    seconds = calendar.timegm((year, month, day, hour, minute, second))
    if not found[7]:
        return seconds
    ahead = int(found[8]) * 3600 + int(found[9]) * 60
    return seconds - ahead if found[7] == b"+" else seconds + ahead
