"""Sessions of requests, replies and events as JSON lines; input is hostile until checked."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from scheduling.core.charging import NodeClock, compare_clocks, message_clock
from tessera import protocol
from tessera.protocol import ProtocolError, RunStatus
from tessera.wire import Fields
from workers.transports.base import (
    Grew,
    MisbehavedError,
    NodeEvent,
    RefusedError,
    TransportError,
    UnreachableNodeError,
)

MOST_RUNS_WITH_NEWS: Final = 20_000
LONGEST_OFFSET: Final = 1 << 62
LATEST_TIME: Final = 1e12


class ServeSession:
    """One session with ``serve`` on a node.

    The owner passes received bytes and the end of the connection. There is one slot for each run's
    events, where a newer one replaces an older one, so that memory is bounded.
    """

    def __init__(self, send: Callable[[bytes], None], *, request_seconds: float = 20.0) -> None:
        """Args: send: writes bytes. request_seconds: timeout of most requests."""
        self._send = send
        self._request_seconds = request_seconds
        self._buffer = bytearray()
        self._next_id = 1
        self._waiting: dict[int, asyncio.Future[protocol.Json]] = {}
        self._news: dict[tuple[str, str], NodeEvent] = {}
        self._something = asyncio.Event()
        self._ended: TransportError | None = None
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._asked: dict[int, float] = {}
        self._clock: NodeClock | None = None
        self._heard_at = time.monotonic()

    @property
    def clock(self) -> NodeClock | None:
        """The node's clock against ``time.monotonic``; None until the node reports its time."""
        return self._clock

    @property
    def heard_at(self) -> float:
        """Instant of the last received bytes or of the session's start, by ``time.monotonic``."""
        return self._heard_at

    @property
    def ended(self) -> TransportError | None:
        """The error that ended the session, or None while it is open."""
        return self._ended

    def feed(self, data: bytes) -> None:
        """Process received bytes."""
        if self._ended is not None:
            return
        self._heard_at = time.monotonic()
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        try:
            for line in lines:
                self._take(protocol.decode_line(bytes(line)))
        except ProtocolError as error:
            self.end(MisbehavedError(f"protocol error of the node: {error.message}"))
            return
        if len(self._buffer) > protocol.MAX_LINE_BYTES:
            self.end(MisbehavedError("protocol error of the node: a line does not end"))

    def end(self, error: TransportError) -> None:
        """End the session; all waiting requests raise ``error``."""
        if self._ended is not None:
            return
        self._ended = error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                # The waiting request may be gone; that is not an error.
                future.exception()
        self._something.set()
        self._may_send.set()

    def hold(self) -> None:
        """Pause requests: the send buffer is full."""
        self._may_send.clear()

    def go_on(self) -> None:
        """Resume requests."""
        self._may_send.set()

    async def request(
        self, operation: str, *, patience: float | None = None, **arguments: Any
    ) -> protocol.Json:
        """Send a request and wait for the reply.

        Raises:
            RefusedError: the node has refused.
            UnreachableNodeError: no reply came in time, or the connection broke.
        """
        seconds = self._request_seconds if patience is None else patience
        number, self._next_id = self._next_id, self._next_id + 1
        line = protocol.encode_line({"id": number, "op": operation, **arguments})
        if len(line) > protocol.MAX_LINE_BYTES:
            raise RefusedError(
                "request-too-large",
                f"the request has {len(line)} bytes; the limit is {protocol.MAX_LINE_BYTES}",
                protocol.USER,
            )
        try:
            async with asyncio.timeout(seconds):
                return await self._ask(number, line)
        except TimeoutError:
            raise UnreachableNodeError(f"no reply to {operation} within {seconds:g} s") from None
        finally:
            self._waiting.pop(number, None)
            self._asked.pop(number, None)

    async def events(self) -> AsyncIterator[NodeEvent]:
        """Yield events, the newest of each run; raises when the session has ended."""
        while True:
            await self._something.wait()
            self._something.clear()
            news, self._news = self._news, {}
            for event in news.values():
                yield event
            if self._ended is not None:
                raise self._ended

    async def _ask(self, number: int, line: bytes) -> protocol.Json:
        await self._may_send.wait()
        if self._ended is not None:
            raise self._ended
        future: asyncio.Future[protocol.Json] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._asked[number] = time.monotonic()
        try:
            self._send(line)
        except OSError as error:
            raise UnreachableNodeError(f"the connection broke: {error}") from error
        return await future

    def _take(self, message: protocol.Json) -> None:
        if "event" in message:
            self._take_event(message)
            return
        number = message.get("id")
        number = number if type(number) is int else 0
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return  # a reply to a request that was given up
        self._compare_clocks(message, asked=self._asked.get(number))
        if message.get("ok") is True:
            future.set_result(message)
            return
        refused = ProtocolError.from_json(message.get("error"))
        future.set_exception(RefusedError(refused.code, refused.message, refused.failure))

    def _compare_clocks(self, message: protocol.Json, *, asked: float | None) -> None:
        """Take the node's time from a reply, or, without ``asked``, from an event."""
        node_time = Fields(message, "message").optional_number("now", 0.0, LATEST_TIME)
        if node_time is None:
            return
        now = time.monotonic()
        if asked is not None:
            newer = compare_clocks(asked=asked, answered=now, node_time=node_time)
            self._clock = newer if self._clock is None else self._clock.corrected(newer)
        elif self._clock is None:
            self._clock = message_clock(now, node_time)
        else:
            self._clock = self._clock.after_message(arrived=now, node_time=node_time)

    def _take_event(self, message: protocol.Json) -> None:
        event = read_event(message)
        if event is None:
            return
        self._compare_clocks(message, asked=None)
        self._news[type(event).__name__, event.run_id] = event
        if len(self._news) > MOST_RUNS_WITH_NEWS:
            raise ProtocolError("too-many-events", "events of too many runs at the same time")
        self._something.set()


def read_event(message: protocol.Json) -> NodeEvent | None:
    """Return the event in ``message``, or None if this version does not know its kind.

    Raises:
        ProtocolError: the fields of the event are not valid.
    """
    kind = message.get("event")
    if kind == protocol.EVENT_RUN:
        return RunStatus.from_json(message.get("run"))
    if kind != protocol.EVENT_GREW:
        return None
    take = Fields(message, "grew")
    run_id = take.text("run_id", None, 256)
    protocol.parse_run_id(run_id)
    return Grew(
        run_id=run_id,
        log_end=take.integer("log_end", 0, 0, LONGEST_OFFSET),
        reports_end=take.integer("reports_end", 0, 0, LONGEST_OFFSET),
    )
