"""Follows topics for all who follow them in this process: one reading, one text, many sockets.

One hub for each event loop. While somebody follows a topic it reads the boards once after news
(and every few seconds, as news may be lost), and wakes the followers of what has changed. They ask
for the step from the version that they have; its text is made once for all who have the same.
"""

import asyncio
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

from portal.live.deltas import Ledger, frames
from portal.live.pulse import pulse
from portal.live.topics import nodes_group, overview_group
from scheduling.selectors.boards import Board, read_boards

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.25
LONGEST_SILENCE_SECONDS: Final = 5.0
SHARE_OF_TIME: Final = 2.0
"""How many times as long as a reading took is waited before the next one, at least."""

FETCHES_PER_SECOND: Final = 25.0
SOONEST_FETCH_SECONDS: Final = 1.0

_QUEUE: Final = re.compile(r"live\.queue\.([0-9]+)")


class Follower(Protocol):
    """Somebody who follows topics."""

    def due(self, topic: str) -> None:
        """There is a newer version of ``topic``; returns at once."""


class Hub:
    """The boards of one event loop.

    Args:
        read: reads the public board and those of some virtual clusters.
        tick_seconds: time between two readings; more where a reading takes long.
    """

    def __init__(
        self,
        read: Callable[[Any], tuple[Board, Mapping[int, Board]]] = read_boards,
        *,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._read = read
        self._tick_seconds = tick_seconds
        self._ledgers: dict[str, Ledger] = {}
        self._followers: dict[str, dict[Follower, str]] = {}
        self._texts: dict[tuple[str, str, int | None], tuple[int, tuple[str, ...]]] = {}
        self._news = asyncio.Event()
        self._heard: dict[str, int] = {}
        self._channel = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def follow(self, group: str, topic: str, follower: Follower) -> None:
        """Tell ``follower`` from now on when there is something newer of ``topic``.

        Args:
            group: the topic's group, which says that the follower may hear it.
            topic: what the follower calls it.
            follower: who is told.
        """
        self._followers.setdefault(group, {})[follower] = topic
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._listen()),
                asyncio.create_task(self._keep_reading()),
            ]
            pulse().join(self)
        await self._hear(group)
        if group in self._ledgers:
            follower.due(topic)
        self._news.set()

    async def leave(self, group: str, follower: Follower) -> None:
        """Tell ``follower`` no more; with the last one all work ends."""
        followers = self._followers.get(group, {})
        followers.pop(follower, None)
        if not followers:
            self._followers.pop(group, None)
            self._ledgers.pop(group, None)
            await self._hear_no_more(group)
            self._texts = {key: text for key, text in self._texts.items() if key[0] != group}
        if not self._followers:
            for task in self._tasks:
                task.cancel()
            self._tasks, self._channel = [], ""
            self._heard.clear()
            pulse().leave(self)

    def step(self, group: str, topic: str, version: int | None) -> tuple[int, tuple[str, ...]]:
        """The newest version of a topic, and the messages that lead there from ``version``."""
        ledger = self._ledgers.get(group)
        if ledger is None:
            return version or 0, ()
        if not ledger.knows(version):
            # Clients say what they like; the whole is one text for all that nobody has made.
            version = None
        key = (group, topic, version)
        known = self._texts.get(key)
        if known is None or known[0] != ledger.version:
            step = ledger.step_from(version)
            texts = frames(topic, step, pace=self._pace()) if step is not None else ()
            known = self._texts[key] = (ledger.version, texts)
        return known

    def missed(self) -> None:
        """News may have been lost: take it that there was some of every topic."""
        for followers in self._followers.values():
            self._count_news(next(iter(followers.values())))

    def _count_news(self, topic: str) -> None:
        self._heard[topic] = self._heard.get(topic, 0) + 1
        self._news.set()

    def _pace(self) -> float:
        """Seconds over which all followers together fetch what a web process can bear."""
        followers = sum(map(len, self._followers.values()))
        return round(max(SOONEST_FETCH_SECONDS, followers / FETCHES_PER_SECOND), 1)

    async def _listen(self) -> None:
        """Hear the news that publishers send, from any process."""
        layer = get_channel_layer()
        if layer is None:
            return
        while True:
            try:
                self._channel = await layer.new_channel()
                for group in list(self._followers):
                    await layer.group_add(group, self._channel)
                while True:
                    message = await layer.receive(self._channel)
                    self._count_news(message["topic"])
            except Exception as error:
                # Whatever the layer fails with: without news, boards are read every few seconds.
                logger.debug("news are not heard now: %r", error)
                await asyncio.sleep(1)

    async def _hear(self, group: str) -> None:
        layer = get_channel_layer()
        if layer is not None and self._channel:
            with suppress(Exception):
                await layer.group_add(group, self._channel)

    async def _hear_no_more(self, group: str) -> None:
        layer = get_channel_layer()
        if layer is not None and self._channel:
            with suppress(Exception):
                await layer.group_discard(group, self._channel)

    async def _keep_reading(self) -> None:
        thread = ThreadPoolExecutor(1, thread_name_prefix="live-boards")
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), LONGEST_SILENCE_SECONDS)
                self._news.clear()
                spent = 0.0
                try:
                    spent = await self._look(thread)
                except Exception as error:
                    # A database that is away must not end the live pages; the next look will tell.
                    logger.warning("the live boards could not be read: %r", error)
                await asyncio.sleep(max(self._tick_seconds, SHARE_OF_TIME * spent))
        finally:
            thread.submit(connections.close_all)
            thread.shutdown(wait=False)

    async def _look(self, thread: ThreadPoolExecutor) -> float:
        """Read, and wake whoever has less; returns the processor seconds that it took to read."""
        wanted = {group: _virtual_cluster(group) for group in self._followers}
        numbers = [number for number in wanted.values() if number is not None]
        loop = asyncio.get_running_loop()
        (public, own), spent = await loop.run_in_executor(thread, _reading, self._read, numbers)
        version = time.time_ns() // 1_000
        for group, number in wanted.items():
            if group in self._followers:
                self._put(group, public if number is None else own[number], version)
        return spent

    def _put(self, group: str, board: Board, version: int) -> None:
        followers = self._followers[group]
        # What no value of the board tells, as the order of a queue: that there was news at all.
        news = self._heard.get(next(iter(followers.values())), 0)
        ledger = self._ledgers.setdefault(group, Ledger())
        if not ledger.put({**board, "news": news}, version=version):
            return
        self._texts = {key: text for key, text in self._texts.items() if key[0] != group}
        for follower, topic in followers.items():
            follower.due(topic)


def hub() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _HUBS:
        _HUBS[loop] = Hub()
    return _HUBS[loop]


def has_board(group: str) -> bool:
    """Whether a group's topic can be followed by versions."""
    return group in {overview_group(), nodes_group()} or _virtual_cluster(group) is not None


def _virtual_cluster(group: str) -> int | None:
    match = _QUEUE.fullmatch(group)
    return int(match[1]) if match else None


def _reading(
    read: Callable[[Any], tuple[Board, Mapping[int, Board]]], numbers: list[int]
) -> tuple[tuple[Board, Mapping[int, Board]], float]:
    close_old_connections()
    begun = time.thread_time()
    try:
        return read(numbers), time.thread_time() - begun
    finally:
        close_old_connections()


_HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()
