"""Detection of lost live updates, so that listeners fetch again.

Redis delivers a message only to current subscribers. The channel layer reconnects after a lost
connection without reporting missed messages. Each event loop therefore sends itself messages
through the same channel. If one is lost, other messages may be lost, too.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from channels.layers import get_channel_layer

logger = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.25
"""Interval of messages; an outage of Redis lasts longer, so that every gap loses a message."""

LATE_SECONDS: Final = 3.0
"""Time that a busy loop may take to receive its own message."""

BEAT: Final = {"type": "live.beat"}


class Listener(Protocol):
    """Interface of a subscriber of live updates."""

    def missed(self) -> None:
        """Handle a possible loss of messages without blocking."""


class Pulse:
    """Periodic messages of one event loop to itself while it has listeners.

    Args:
        beat_seconds: time between two messages.
        late_seconds: time after which a missing message counts as lost.
    """

    def __init__(
        self, *, beat_seconds: float = BEAT_SECONDS, late_seconds: float = LATE_SECONDS
    ) -> None:
        self._beat_seconds, self._late_seconds = beat_seconds, late_seconds
        self._listeners: set[Listener] = set()
        self._echo = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def join(self, listener: Listener) -> None:
        self._listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._beat())

    def leave(self, listener: Listener) -> None:
        """Remove ``listener``; without listeners the periodic messages end."""
        self._listeners.discard(listener)
        if self._task is not None and not self._listeners:
            self._task.cancel()
            self._task = None

    async def _beat(self) -> None:
        layer = get_channel_layer()
        if layer is None:
            return
        hearing: asyncio.Task[None] | None = None
        channel = ""
        try:
            while True:
                try:
                    channel = channel or await layer.new_channel()
                    if hearing is None or hearing.done():
                        hearing = asyncio.create_task(self._hear(layer, channel))
                    await self._hear_itself(layer, channel)
                except Exception as error:
                    # After any error of the layer, messages may be missing.
                    logger.debug("live updates do not arrive: %r", error)
                    self._is_lost = True
                else:
                    if self._is_lost:
                        self._publish()
                    self._is_lost = False
                await asyncio.sleep(self._beat_seconds)
        finally:
            if hearing is not None:
                hearing.cancel()

    async def _hear_itself(self, layer: Any, channel: str) -> None:
        self._echo.clear()
        await layer.send(channel, BEAT)
        await asyncio.wait_for(self._echo.wait(), self._late_seconds)

    async def _hear(self, layer: Any, channel: str) -> None:
        # After any error, the message counts as lost and the subscription is renewed.
        with suppress(Exception):
            while True:
                await layer.receive(channel)
                self._echo.set()

    def _publish(self) -> None:
        for listener in list(self._listeners):
            with suppress(Exception):
                listener.missed()


def pulse() -> Pulse:
    loop = asyncio.get_running_loop()
    if loop not in _PULSES:
        _PULSES[loop] = Pulse()
    return _PULSES[loop]


_PULSES: WeakKeyDictionary[asyncio.AbstractEventLoop, Pulse] = WeakKeyDictionary()
