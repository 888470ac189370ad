"""Fan-out of live updates to all sockets of this process: one subscription per topic.

Each event loop has one hub. It forwards messages of jobs and logs at once. Topics of whole pages
have many followers and messages, so the hub sends their newest message once per tick. The message
contains the seconds over which all followers together spread their fetches.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from channels.layers import get_channel_layer
from django.db import close_old_connections, connections

from portal.live.access import nodes_group, overview_group
from portal.live.pulse import pulse
from scheduling.clusters.queries.cluster_facts import devices_in_use

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.25
LONGEST_SILENCE_SECONDS: Final = 5.0
SHARE_OF_TIME: Final = 2.0
"""Minimum pause after a count, as a multiple of its duration."""

FETCHES_PER_SECOND: Final = 25.0
SOONEST_FETCH_SECONDS: Final = 1.0

_QUEUE: Final = re.compile(r"live\.queue\.[0-9]+")


class TopicFollower(Protocol):
    """Interface of a subscriber of topics."""

    def take(self, topic: str, text: str) -> None:
        """Accept the newest message of ``topic`` as JSON without blocking."""


class Hub:
    """The followers of one event loop.

    Args:
        count: counts the devices in use, for the overview.
        tick_seconds: time between two messages of a paced topic; more if counting takes long.
        longest_silence: seconds after which the devices are counted without a message.
    """

    def __init__(
        self,
        count: Callable[[], int] = devices_in_use,
        *,
        tick_seconds: float = TICK_SECONDS,
        longest_silence: float = LONGEST_SILENCE_SECONDS,
    ) -> None:
        self._count = count
        self._tick_seconds = tick_seconds
        self._longest_silence = longest_silence
        self._followers: dict[str, dict[TopicFollower, str]] = {}
        self._newest: dict[str, str] = {}
        self._news: dict[str, Mapping[str, Any]] = {}
        self._has_news = asyncio.Event()
        self._in_use: int | None = None
        self._version = 0
        self._channel = ""
        self._starting = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def follow(self, group: str, topic: str, follower: TopicFollower) -> None:
        """Subscribe ``follower`` to the messages of a group.

        A follower of a paced topic gets its newest message at once.

        Args:
            group: the topic's group; proves the right to subscribe.
            topic: name of the topic for the follower.
            follower: the subscriber.

        Raises:
            Exception: the channel layer failed; the follower is unsubscribed.
        """
        self._followers.setdefault(group, {})[follower] = topic
        layer = get_channel_layer()
        await self._start(layer)
        if follower in self._followers.get(group, {}):
            await layer.group_add(group, self._channel)
        if follower not in self._followers.get(group, {}):
            return  # the follower has unsubscribed meanwhile
        if group in self._newest:
            follower.take(topic, self._newest[group])
        elif is_paced(group):
            self._put(group, {})

    async def leave(self, group: str, follower: TopicFollower) -> None:
        """Unsubscribe ``follower``; without followers all tasks of the hub end."""
        followers = self._followers.get(group, {})
        followers.pop(follower, None)
        if not followers:
            self._followers.pop(group, None)
            self._newest.pop(group, None)
            self._news.pop(group, None)
            # The layer drops the channel before it calls Redis, which may be unreachable.
            with suppress(Exception):
                await get_channel_layer().group_discard(group, self._channel)
        if not self._followers:
            for task in self._tasks:
                task.cancel()
            self._tasks, self._channel, self._in_use = [], "", None
            pulse().leave(self)

    def missed(self) -> None:
        """Queue a message for every paced topic, since messages may be lost."""
        for group in filter(is_paced, self._followers):
            self._put(group, {})

    async def _start(self, layer: Any) -> None:
        async with self._starting:
            if self._tasks:
                return
            channel = await layer.new_channel()
            if not self._followers:
                return  # all followers have unsubscribed meanwhile
            self._channel = channel
            self._tasks = [
                asyncio.create_task(self._listen(layer)),
                asyncio.create_task(self._send_paced()),
            ]
            pulse().join(self)

    def _put(self, group: str, data: Mapping[str, Any]) -> None:
        self._news[group] = data or self._news.get(group, {})
        self._has_news.set()

    async def _listen(self, layer: Any) -> None:
        """Receive the messages that any process publishes, until cancelled."""
        while True:
            try:
                while True:
                    self._hear(await layer.receive(self._channel))
            except Exception as error:
                # After any error of the layer, the pulse detects lost messages.
                logger.debug("live updates are not received: %r", error)
                await asyncio.sleep(1)
                with suppress(Exception):
                    self._channel = await layer.new_channel()
                    for group in list(self._followers):
                        await layer.group_add(group, self._channel)

    def _hear(self, message: Mapping[str, Any]) -> None:
        group = message["group"]
        if group not in self._followers:
            return
        if is_paced(group):
            self._put(group, message["data"])
            return
        self._send(group, _text({name: message[name] for name in ("topic", "version", "data")}))

    def _send(self, group: str, text: str) -> None:
        for follower, topic in self._followers[group].items():
            follower.take(topic, text)

    async def _send_paced(self) -> None:
        thread = ThreadPoolExecutor(1, thread_name_prefix="live-hub")
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._has_news.wait(), self._longest_silence)
                self._has_news.clear()
                spent = 0.0
                try:
                    spent = await self._look(thread)
                except Exception as error:
                    # An unreachable database must not end live updates.
                    logger.warning("the devices in use could not be counted: %r", error)
                self._send_news()
                await asyncio.sleep(max(self._tick_seconds, SHARE_OF_TIME * spent))
        finally:
            thread.submit(connections.close_all)
            thread.shutdown(wait=False)

    async def _look(self, thread: ThreadPoolExecutor) -> float:
        """Count the devices in use for the overview, and return the processor seconds used.

        A changed count without a message is also published, since a publisher may have lost
        messages.
        """
        if overview_group() not in self._followers:
            return 0.0
        loop = asyncio.get_running_loop()
        in_use, spent = await loop.run_in_executor(thread, _counted, self._count)
        if in_use != self._in_use and overview_group() in self._followers:
            self._in_use = in_use
            self._news.setdefault(overview_group(), {})
        return spent

    def _send_news(self) -> None:
        news, self._news = self._news, {}
        pace = self._pace() if news else 0.0
        for group, data in news.items():
            # Versions of this process increase strictly, also if the host's clock is set back.
            self._version = max(time.time_ns() // 1_000, self._version + 1)
            message = {
                "topic": next(iter(self._followers[group].values())),
                "version": self._version,
                "pace": pace,
                "data": {**data, **self._values(group)},
            }
            self._newest[group] = _text(message)
            self._send(group, self._newest[group])

    def _values(self, group: str) -> dict[str, int]:
        """Return the values that pages show immediately, without a fetch."""
        if group != overview_group() or self._in_use is None:
            return {}
        return {"in_use": self._in_use}

    def _pace(self) -> float:
        """Return the seconds over which followers spread fetches, by a process's capacity."""
        followers = sum(len(self._followers[group]) for group in filter(is_paced, self._followers))
        return round(max(SOONEST_FETCH_SECONDS, followers / FETCHES_PER_SECOND), 1)


def hub() -> Hub:
    loop = asyncio.get_running_loop()
    if loop not in _HUBS:
        _HUBS[loop] = Hub()
    return _HUBS[loop]


def is_paced(group: str) -> bool:
    """Return whether the topic of a group is paced, as a whole page with many followers."""
    return group in {overview_group(), nodes_group()} or _QUEUE.fullmatch(group) is not None


def _text(message: Mapping[str, Any]) -> str:
    return json.dumps(message, separators=(",", ":"))


def _counted(count: Callable[[], int]) -> tuple[int, float]:
    close_old_connections()
    begun = time.thread_time()
    try:
        return count(), time.thread_time() - begun
    finally:
        close_old_connections()


_HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()
