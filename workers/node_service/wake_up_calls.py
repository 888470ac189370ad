"""Hears through Redis that there are orders; without Redis they are found a second later."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import redis
import redis.asyncio
from django.conf import settings

from workers import waking

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 30.0


async def listen_to_redis(wake: Callable[[], None]) -> None:
    """Call ``wake`` for every message of another process, until cancelled."""
    while True:
        try:
            await _listen(wake)
        except (redis.RedisError, OSError) as error:
            log.warning("no wake-up calls through Redis for now: %s", error)
        await asyncio.sleep(AGAIN_SECONDS)


async def _listen(wake: Callable[[], None]) -> None:
    client = redis.asyncio.Redis.from_url(
        settings.TESSERA.redis_url, socket_connect_timeout=5, health_check_interval=15
    )
    async with client, client.pubsub(ignore_subscribe_messages=True) as calls:
        await calls.subscribe(waking.CHANNEL)
        wake()  # what was said before we listened
        while True:
            message = await calls.get_message(timeout=SILENCE_SECONDS)
            if message is not None and waking.decode(message["data"]):
                wake()
