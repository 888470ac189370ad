"""A container's output, followed through the engine and written to the run's log.

The runner pipes it to the log writer, and stores its position in memory that both share. If the
runner is killed, the log writer follows the rest.
"""

from __future__ import annotations

import mmap
import time
from typing import Callable, Optional, Tuple

from tessera.node import engine
from tessera.node.engine import EngineError, EngineResponse
from tessera.node.output import Output
from tessera.protocol import ContainerRef

LAST_OUTPUT_SECONDS = 5.0
REST_SECONDS = 30.0
_OUTPUT = "/logs?stdout=1&stderr=1"
_MISSING = b"\n[tessera] output of the container may be missing here\n"
_SLOT = 2048
_NOTED, _PUMPED, _SIZE = 0, 1, 3


class Position:
    """Position up to which the runner has piped a container's output.

    The memory has two slots. A note fills the inactive one and then activates it, so that a killed
    runner leaves a whole note.
    """

    def __init__(self) -> None:
        self._whole = memoryview(mmap.mmap(-1, 3 * _SLOT))
        self._numbers = self._whole[:_SLOT].cast("Q")

    def note(self, position: bytes, pumped: int) -> None:
        """Store a position; ``pumped`` is the count of bytes piped before it."""
        slot = 1 if self._numbers[_NOTED] == 0 else 3 - self._numbers[_NOTED]
        if len(position) > _SLOT:
            return  # the engine has sent a time stamp of another length
        self._whole[slot * _SLOT : slot * _SLOT + len(position)] = position
        self._numbers[_PUMPED + slot - 1] = pumped
        self._numbers[_SIZE + slot - 1] = len(position)
        self._numbers[_NOTED] = slot

    def noted(self) -> Tuple[bytes, int]:
        """Return the last position, empty if none, and the bytes piped before it."""
        slot = self._numbers[_NOTED]
        if not slot:
            return b"", 0
        size = self._numbers[_SIZE + slot - 1]
        found = bytes(self._whole[slot * _SLOT : slot * _SLOT + size])
        return found, self._numbers[_PUMPED + slot - 1]


class Sink:
    """Takes the output of a container."""

    def pump(self, output: bytes) -> None:
        raise NotImplementedError

    def note(self, position: bytes) -> None:
        """Record the read position of the container's output."""

    def is_full(self) -> bool:
        """Return whether more output has to wait in the engine."""
        return False


class ContainerOutput:
    """The output of one container after a position.

    Args:
        ref: reference of the container.
        sink: takes the output.
        position: start, from ``Output.position``; the beginning if empty.
    """

    def __init__(self, ref: ContainerRef, sink: Sink, position: bytes = b"") -> None:
        self._ref, self._sink = ref, sink
        self._said = Output()
        if position:
            self._said.restore(position)
        self._answer: Optional[EngineResponse] = None
        self._plain = False

    def follow(self, *, plain: bool) -> None:
        """Open the connection that follows the output.

        Args:
            plain: the container has a terminal, whose output has no messages.

        Raises:
            EngineError: the engine cannot be reached.
        """
        if plain and self._plain:
            self._sink.pump(_MISSING)
        self._plain = plain
        query = self._query()
        if self._answer is not None:
            self._answer.close()
        self._answer = engine.open_call(self._ref, "GET", query + "&follow=1")

    def _query(self) -> str:
        """Return the query for the output that has not been read yet."""
        if self._plain:  # output of a terminal has no time stamps to continue from
            return _OUTPUT + ("" if self._answer is None else "&tail=0")
        return f"{_OUTPUT}&timestamps=1{self._said.resume()}"

    def answer(self) -> Optional[EngineResponse]:
        """Return the connection while it is open and the sink takes more."""
        is_open = self._answer is not None and not self._answer.closed
        return self._answer if is_open and not self._sink.is_full() else None

    @property
    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self._answer is None or self._answer.closed

    def receive(self) -> None:
        """Write received output into the log, and mark gaps."""
        answer = self._answer
        if answer is None:
            return
        received = answer.receive()
        if answer.status != 200:
            return
        new = received if self._plain else self._said.feed(received)
        if self._said.is_lost:
            self._said.is_lost = False
            self._sink.pump(_MISSING)
        self._sink.pump(new)
        if not self._plain:
            self._sink.note(self._said.position())

    def finish(self) -> None:
        """Read the last output of a container that has ended."""
        self._drain(LAST_OUTPUT_SECONDS)
        if self._answer is not None and not self._plain:
            self._answer.close()
            self._take_rest()
        if self._answer is not None:
            self._answer.close()

    def _take_rest(self) -> None:
        """Read the output that was missing at the end of the following connection.

        On a busy machine the engine ends it before the last messages of a short container.
        """
        try:
            self._answer = engine.open_call(self._ref, "GET", self._query())
        except EngineError:
            return
        self._drain(REST_SECONDS)
        if not self._answer.closed or (self._answer.status == 200 and self._said.seeks):
            self._sink.pump(_MISSING)

    def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        answer = self._answer
        while answer is not None and not answer.closed and time.monotonic() < deadline:
            answer.connection.settimeout(0.2)
            self.receive()


class _Beyond(Sink):
    """Passes output on, except for its first bytes, which are in the log already."""

    def __init__(self, skipped: int, write: Callable[[bytes], None]) -> None:
        self._left, self._write = skipped, write

    def pump(self, output: bytes) -> None:
        passed = output[self._left :]
        self._left = max(0, self._left - len(output))
        if passed:
            self._write(passed)


class Successor:
    """Follows a container whose runner was killed until it ends.

    Args:
        ref: reference of the container.
        position: the runner's last note.
        read: count of bytes read from the pipe.
        write: writes into the log.
    """

    def __init__(
        self, ref: ContainerRef, position: Position, read: int, write: Callable[[bytes], None]
    ) -> None:
        noted, pumped = position.noted()
        self._ref = ref
        self._output = ContainerOutput(ref, _Beyond(max(0, read - pumped), write), noted)
        self._look_at = 0.0
        self.is_done = False

    def answer(self) -> Optional[EngineResponse]:
        """Return the connection to wait on, or None."""
        return self._output.answer()

    def receive(self) -> None:
        self._output.receive()

    def look(self) -> None:
        """Reopen an ended connection; after the container's end, read the rest."""
        if self.is_done or not self._output.is_over or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + 1.0
        try:
            found = engine.inspect(self._ref)
            plain = bool(found.get("Config", {}).get("Tty"))
            if found["State"].get("Running"):
                self._output.follow(plain=plain)
            else:
                self._finish(plain=plain)
        except EngineError as error:
            self.is_done = error.status == 404  # otherwise the engine is unreachable at present

    def _finish(self, *, plain: bool) -> None:
        if not plain:
            self._output.follow(plain=False)
        self._output.finish()
        self.is_done = True
