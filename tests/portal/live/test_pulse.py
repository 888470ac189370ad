"""Subscribers are notified when messages may have been lost."""

import asyncio
import subprocess
import time

import pytest
from asgiref.sync import sync_to_async
from channels.layers import InMemoryChannelLayer
from channels.routing import URLRouter
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.urls import path
from redis import RedisError

from portal.live.access import job_group, overview_group
from portal.live.consumers import LiveConsumer
from portal.live.hub import Hub
from portal.live.pulse import Pulse, pulse
from portal.supervisor.redis_server import NoRedisError, answers, find_redis, redis_command
from tests.support.followers import Counter, Listener, until
from tests.support.layers import layer_of
from tests.support.live_updates import make_job_and_users, publish_to_group
from tests.support.websockets import Tab


class Uncertain(InMemoryChannelLayer):
    """A layer that can be unreachable, with or without an error."""

    is_away = is_silent = False
    tried = 0

    async def send(self, channel, message):
        self.tried += 1
        if self.is_away:
            raise OSError("the broker is away")
        if not self.is_silent:
            await super().send(channel, message)


class Ear:
    """Counts how often something may have been missed."""

    def __init__(self):
        self.times = 0

    def missed(self):
        self.times += 1


@pytest.mark.parametrize("how", ["is_away", "is_silent"])
async def test_after_a_gap_each_page_is_notified_once(how):
    with layer_of(Uncertain()) as layer:
        own = Pulse(beat_seconds=0.01, late_seconds=0.05)
        ears = [Ear(), Ear()]
        for ear in ears:
            own.join(ear)
        await until(lambda: layer.tried > 1)
        assert [ear.times for ear in ears] == [0, 0]

        setattr(layer, how, True)
        tried = layer.tried
        await until(lambda: layer.tried > tried + 2)
        assert [ear.times for ear in ears] == [0, 0]
        setattr(layer, how, False)

        await until(lambda: all(ear.times for ear in ears))
        assert [ear.times for ear in ears] == [1, 1]
        for ear in ears:
            own.leave(ear)
        assert own._task is None


async def test_a_gap_counts_as_a_message_of_whole_pages():
    own, one = Hub(Counter(), tick_seconds=0.01), Listener()
    with layer_of(InMemoryChannelLayer()):
        await own.follow(overview_group(), "overview", one)
        await until(lambda: one.texts)
        before = one.newest()

        own.missed()

        await until(lambda: one.newest()["version"] > before["version"])
        assert one.newest()["data"] == {"in_use": 1}
        await own.leave(overview_group(), one)


@pytest.fixture
def redis(tmp_path):
    """A Redis that can be killed and started again, as the layer of this process."""
    try:
        binary = find_redis()
    except NoRedisError as error:
        pytest.skip(str(error))
    door = tmp_path / "redis.sock"
    server = _Redis(redis_command(binary, tmp_path, door), door)
    server.start()
    with layer_of(RedisPubSubChannelLayer(hosts=[f"unix://{door}"], prefix="test")):
        yield server
    server.kill()


class _Redis:
    def __init__(self, command, door):
        self._command, self._door = command, door

    def start(self):
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not answers(self._door):
            assert time.monotonic() < deadline

    def kill(self):
        self._process.kill()
        self._process.wait()


class PromptConsumer(LiveConsumer):
    """Asks its page to read again at once, not spread over seconds."""

    spread_seconds = 0.0


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
async def test_a_page_reads_again_after_redis_was_unreachable(redis):
    job, people = await sync_to_async(make_job_and_users)()
    topic = f"job:{job.pk}"
    live = URLRouter([path("ws/live/", PromptConsumer.as_asgi())])
    tab = Tab(live, "/ws/live/", people["alice"])
    await tab.connect()
    await tab.send({"subscribe": [topic], "confirm": True})
    assert (await tab.receive())["topic"] == "confirmed"
    await publish_to_group(job_group(job.pk), topic, {"state": "queued"})
    assert (await tab.receive())["topic"] == topic

    redis.kill()
    with pytest.raises(RedisError):
        await asyncio.to_thread(
            asyncio.run, publish_to_group(job_group(job.pk), topic, {"state": "run"})
        )
    await until(lambda: pulse().is_lost)
    redis.start()

    told = await tab.receive()
    assert (told["topic"], told["data"]) == ("confirmed", {"topics": [topic]})
    await publish_to_group(job_group(job.pk), topic, {"state": "failed"})
    assert (await tab.receive())["data"] == {"state": "failed"}
    await tab.disconnect()
