"""A node service in its own thread, and its subscription to wake-ups."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import redis
from django.conf import settings

from workers import waking
from workers.node_service.service import NodeService
from workers.redis_address import async_redis_client

log = logging.getLogger(__name__)

RESTART_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 30.0


async def listen_to_redis(wake: Callable[[], None]) -> None:
    """Call ``wake`` for every message of another process, until cancelled."""
    while True:
        try:
            await _listen(wake)
        except (redis.RedisError, OSError) as error:
            log.warning("no wake-ups through Redis for now: %s", error)
        await asyncio.sleep(AGAIN_SECONDS)


async def _listen(wake: Callable[[], None]) -> None:
    client = async_redis_client(
        settings.TESSERA.redis_url, socket_connect_timeout=5, health_check_interval=15
    )
    async with client, client.pubsub(ignore_subscribe_messages=True) as calls:
        await calls.subscribe(waking.CHANNEL)
        wake()  # wake-ups that arrived before the subscription
        while True:
            message = await calls.get_message(timeout=SILENCE_SECONDS)
            if message is not None and waking.decode(message["data"]):
                wake()


class NodeServiceThread:
    """A node service with its event loop, restarted after a crash, and fenced by node leases."""

    def __init__(self, make: Callable[[], NodeService]) -> None:
        """Args: make: creates a service; called in the thread at each start."""
        self._make = make
        self._thread = threading.Thread(target=self._run, name="node-service", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.service: NodeService | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, seconds: float = 10.0) -> None:
        """Release the nodes and close the connections; runs continue."""
        self._stopped.set()
        with self._lock:
            if self._loop is not None and self._main is not None:
                self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                asyncio.run(self._serve())
            except asyncio.CancelledError:
                break
            except Exception:
                log.exception("the node service failed and restarts")
                time.sleep(RESTART_SECONDS)

    async def _serve(self) -> None:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        self.service = service = self._make()
        with self._lock:
            self._loop, self._main = loop, main
            if self._stopped.is_set():
                return

        def wake(nodes: frozenset[int]) -> frozenset[int]:
            mine = nodes & service.carried
            # The loop may be closing during a commit.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(service.wake)
            return mine

        waking.add_listener(wake)
        calls = loop.create_task(listen_to_redis(service.wake)) if waking.has_redis() else None
        try:
            await service.run()
        finally:
            waking.remove_listener(wake)
            if calls is not None:
                calls.cancel()
            with self._lock:
                self._loop, self._main = None, None
