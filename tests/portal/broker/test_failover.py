"""Tasks, live updates and wake-ups across the death of a Redis master, and over TLS."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu.exceptions import KombuError
from redis.asyncio.sentinel import SentinelConnectionPool

from portal.broker.connection import RedisKeys
from portal.settings.backends import celery_broker, channel_layers
from tests.support.sentinels import Sentinels, redis_with_tls, sentinels
from tests.support.waiting import wait_until
from workers import waking
from workers.node_service.thread import listen_to_redis
from workers.redis_address import async_redis_client, redis_client

pytestmark = pytest.mark.redis
SECONDS = 60
AWAY = (redis.RedisError, KombuError, OSError)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Sentinels]:
    with sentinels(tmp_path) as found:
        yield found


def celery_app(url: str) -> Celery:
    app = Celery("failover", set_as_current=False)
    options = {k.removeprefix("CELERY_").lower(): v for k, v in celery_broker(url).items()}
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True, **options)
    return app


@contextmanager
def worker(app: Celery) -> Iterator[set[str]]:
    """Run a worker; yield the words that its tasks have received."""
    heard: set[str] = set()

    @app.task(name="note", shared=False)
    def note(word: str) -> None:
        heard.add(word)

    with start_worker(app, perform_ping_check=False, pool="solo", loglevel="ERROR"):
        yield heard


def until_it_works(act: Callable[[], object]) -> None:
    """Repeat like a caller that retries."""

    def works() -> bool:
        with suppress(*AWAY):
            act()
            return True
        return False

    wait_until(works, SECONDS, "Redis")


def test_tasks_and_keys_continue_after_the_master_was_killed(cluster: Sentinels) -> None:
    app, client = celery_app(cluster.url), redis_client(cluster.url, seconds=2.0)
    keys = RedisKeys(lambda: client)
    with worker(app) as heard:
        app.send_task("note", args=["before"])
        assert keys.claim("tessera:test", "1", seconds=60)
        wait_until(lambda: "before" in heard, SECONDS, "the first task")

        dead = cluster.kill_master()
        until_it_works(lambda: keys.put("tessera:after", "2", seconds=60))
        assert cluster.master() != dead
        assert keys.get("tessera:after") == "2"

        def is_received() -> bool:
            with suppress(*AWAY):
                app.send_task("note", args=["after"], retry=False)
            return "after" in heard

        wait_until(is_received, SECONDS, "a task of the new master")
    client.close()


async def test_live_updates_and_wake_ups_continue(cluster: Sentinels, settings: Any) -> None:
    layer = _layer(cluster.url)
    settings.TESSERA = replace(settings.TESSERA, redis_url=cluster.url)
    woken = asyncio.Event()
    listening = asyncio.create_task(listen_to_redis(woken.set))
    channel = await layer.new_channel()
    await layer.group_add("job", channel)
    await layer.group_send("job", {"type": "news", "number": 1})
    assert (await asyncio.wait_for(layer.receive(channel), SECONDS))["number"] == 1
    await asyncio.wait_for(woken.wait(), SECONDS)

    cluster.kill_master()
    received = asyncio.create_task(layer.receive(channel))
    woken.clear()
    async with asyncio.timeout(SECONDS):
        while not (received.done() and woken.is_set()):
            with suppress(*AWAY):
                await layer.group_send("job", {"type": "news", "number": 2})
            with suppress(*AWAY):
                async with async_redis_client(cluster.url) as client:
                    await client.publish(waking.CHANNEL, "other:1")
            await asyncio.sleep(0.1)

    assert (await received)["number"] == 2
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening
    await layer.flush()
    await _close_sentinels()


async def _close_sentinels() -> None:
    """Close the connections to the Sentinels that channels_redis leaves open."""
    for found in gc.get_objects():
        if type(found) is SentinelConnectionPool:
            for sentinel in found.sentinel_manager.sentinels:
                await sentinel.aclose()  # type: ignore[attr-defined]


async def test_a_closed_client_leaves_no_connection_to_a_sentinel(cluster: Sentinels) -> None:
    async def publish() -> None:
        async with async_redis_client(cluster.url) as client:
            await client.publish("tessera:test", "1")

    def ping() -> None:
        client = redis_client(cluster.url, seconds=5.0)
        client.ping()
        client.close()

    await publish()
    ping()
    before = _open_files()
    gc.disable()
    try:
        for _ in range(5):
            await publish()
            ping()
        assert _open_files() <= before
    finally:
        gc.enable()


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _layer(url: str) -> Any:
    from channels.layers import ChannelLayerManager

    manager = ChannelLayerManager()
    manager.configs.update(channel_layers(url))  # type: ignore[attr-defined]
    return manager["default"]


async def test_tls_carries_keys_tasks_and_live_updates(tmp_path: Path) -> None:
    with redis_with_tls(tmp_path) as url:
        client = redis_client(url, seconds=5.0)
        RedisKeys(lambda: client).put("tessera:test", "1", seconds=60)
        client.close()
        done = threading.Event()

        def send_and_receive() -> None:
            app = celery_app(url)
            with worker(app) as heard:
                app.send_task("note", args=["over TLS"])
                wait_until(lambda: "over TLS" in heard, SECONDS, "a task")
                done.set()

        await asyncio.to_thread(send_and_receive)
        layer = _layer(url)
        channel = await layer.new_channel()
        await layer.group_add("job", channel)
        await layer.group_send("job", {"type": "news", "number": 3})
        assert (await asyncio.wait_for(layer.receive(channel), SECONDS))["number"] == 3
        await layer.flush()
        assert done.is_set()


def test_tls_refuses_a_server_of_another_authority(tmp_path: Path) -> None:
    with redis_with_tls(tmp_path) as url:
        client = redis_client(url.partition("?")[0], seconds=5.0)
        with pytest.raises(redis.ConnectionError, match="certificate"):
            client.ping()
        client.close()
