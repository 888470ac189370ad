"""One subscription and one text for all who follow a topic in a process."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import InMemoryChannelLayer, get_channel_layer
from channels.routing import URLRouter
from django.test import Client
from django.urls import path

from portal.live.access import job_group, nodes_group, overview_group, queue_group
from portal.live.consumers import CLOSE_UNAUTHORISED, LiveConsumer, websocket_urlpatterns
from portal.live.hub import Hub, hub
from portal.live.publishing import MESSAGE_TYPE
from scheduling.clusters.queries.cluster_facts import cluster_facts, devices_in_use
from scheduling.runs.models import Lease
from tenants.models import User
from tenants.roles import Role
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import make_two_tenants, start, submit
from tests.factories.tenants import make_tenant
from tests.support.followers import Counter, Listener, until
from tests.support.layers import layer_of
from tests.support.websockets import Tab, assert_refused

BACKEND = "django.contrib.auth.backends.ModelBackend"


async def announce(group, topic, data=None, version=1):
    message = {"type": MESSAGE_TYPE, "group": group, "topic": topic, "version": version}
    await get_channel_layer().group_send(group, {**message, "data": data or {}})


async def test_hundred_followers_cost_one_count_and_share_one_text():
    count = Counter()
    own = Hub(count, tick_seconds=0.01)
    everybody = [Listener() for _ in range(100)]
    for one in everybody:
        await own.follow(overview_group(), "overview", one)
    await until(lambda: all(one.texts for one in everybody))
    await asyncio.sleep(0.1)
    asked, before = count.asked, everybody[0].newest()

    count.in_use = 2
    await announce(overview_group(), "overview", {"changed": "exit"})
    await until(lambda: all(one.newest()["version"] > before["version"] for one in everybody))

    assert count.asked - asked <= 2
    assert len({id(one.texts[-1]) for one in everybody}) == 1
    told = everybody[0].newest()
    assert (told["topic"], told["data"]) == ("overview", {"changed": "exit", "in_use": 2})
    assert told["pace"] == 4.0
    for one in everybody:
        await own.leave(overview_group(), one)


async def test_a_topic_is_subscribed_once_for_all_its_followers():
    with layer_of(InMemoryChannelLayer()) as layer:
        own, two = Hub(Counter()), [Listener(), Listener()]
        for one in two:
            await own.follow(job_group(7), "job:7", one)
        assert [len(channels) for channels in layer.groups.values()] == [1]

        await announce(job_group(7), "job:7", {"state": "running"}, version=5)
        await until(lambda: all(one.texts for one in two))
        await own.leave(job_group(7), two[0])
        await announce(job_group(7), "job:7", {"state": "failed"}, version=4)
        await until(lambda: len(two[1].texts) == 2)

        assert two[0].newest() == {"topic": "job:7", "version": 5, "data": {"state": "running"}}
        assert two[1].newest() == {"topic": "job:7", "version": 4, "data": {"state": "failed"}}
        await own.leave(job_group(7), two[1])
        assert layer.groups == {}


class SlowLayer(InMemoryChannelLayer):
    """A layer that asks its server for each channel."""

    async def new_channel(self, prefix="specific"):
        await asyncio.sleep(0.05)
        return await super().new_channel(prefix)


async def test_followers_that_come_together_share_one_channel_and_may_leave_at_once():
    with layer_of(SlowLayer()) as layer:
        own, stays, leaves = Hub(Counter()), Listener(), Listener()
        together = [
            asyncio.create_task(own.follow(job_group(number), f"job:{number}", one))
            for number, one in ((1, stays), (2, leaves))
        ]
        await asyncio.sleep(0)
        await own.leave(job_group(2), leaves)
        await asyncio.gather(*together)

        assert list(layer.groups) == [job_group(1)]
        await announce(job_group(1), "job:1")
        await until(lambda: stays.texts)
        assert len(stays.texts) == 1
        await own.leave(job_group(1), stays)

        coming = asyncio.create_task(own.follow(job_group(2), "job:2", leaves))
        await asyncio.sleep(0)
        await own.leave(job_group(2), leaves)
        await coming
        assert (own._tasks, layer.groups) == ([], {})


async def test_a_new_follower_gets_the_newest_message_of_a_paced_topic_at_once():
    own = Hub(Counter(), tick_seconds=0.01)
    first, second = Listener(), Listener()
    await own.follow(nodes_group(), "nodes", first)
    await announce(nodes_group(), "nodes", {"id": 3})
    await until(lambda: first.texts and first.newest()["data"] == {"id": 3})

    await own.follow(nodes_group(), "nodes", second)

    assert second.texts == first.texts[-1:]
    for one in (first, second):
        await own.leave(nodes_group(), one)


async def test_many_messages_within_a_tick_are_sent_as_one():
    own, one = Hub(Counter(), tick_seconds=0.5), Listener()
    await own.follow(nodes_group(), "nodes", one)
    await until(lambda: one.texts)

    for number in range(50):
        await announce(nodes_group(), "nodes", {"id": number})
    await until(lambda: one.newest()["data"] == {"id": 49})

    assert len(one.texts) <= 4
    await own.leave(nodes_group(), one)


async def test_a_count_that_fails_stops_no_messages():
    count, failing = Counter(), [True]

    def fail_once():
        if failing and failing.pop():
            raise OSError("the database is away")
        return count()

    own, one = Hub(fail_once, tick_seconds=0.01), Listener()
    await own.follow(overview_group(), "overview", one)
    await until(lambda: one.texts)
    assert one.newest()["data"] == {}

    await announce(overview_group(), "overview", {"changed": "exit"})

    await until(lambda: one.newest()["data"] == {"changed": "exit", "in_use": 1})
    await own.leave(overview_group(), one)


async def test_a_number_that_changed_without_a_message_is_published():
    count, one = Counter(), Listener()
    own = Hub(count, tick_seconds=0.01, longest_silence=0.05)
    await own.follow(overview_group(), "overview", one)
    await until(lambda: one.texts)

    count.in_use = 5

    await until(lambda: one.newest()["data"] == {"in_use": 5})
    await own.leave(overview_group(), one)


async def test_without_subscribers_nothing_is_counted():
    count, one = Counter(), Listener()
    own = Hub(count, tick_seconds=0.01)
    await own.follow(queue_group(4), "queue:vision-a", one)
    await until(lambda: one.texts)
    assert (one.newest()["topic"], count.asked) == ("queue:vision-a", 0)

    await own.leave(queue_group(4), one)

    assert not own._tasks


def prepare():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(tenant=make_tenant("vision", alice=Role.MEMBER))
    make_tenant("language", bob=Role.LEAD)
    make_job()
    return {user.username: user for user in User.objects.all()}


class QuickConsumer(LiveConsumer):
    look_again_seconds = 0.05


def socket(user=None, session=None, consumer=LiveConsumer):
    live = URLRouter([path("ws/live/", consumer.as_asgi())])
    return Tab(live, "/ws/live/", user, session=session)


async def receive_of(tab, topic):
    while (message := await tab.receive())["topic"] != topic:
        pass
    return message


@pytest.mark.django_db
def test_devices_in_use_are_those_of_the_overview():
    make_two_tenants(2)
    start(submit(devices=8))
    held = Lease.objects.filter(released_at=None).order_by("id")
    held.filter(pk=held[0].pk).update(kind="reserved")

    assert devices_in_use() == cluster_facts().in_use == 7


@pytest.mark.django_db(transaction=True)
async def test_a_queue_is_followed_by_its_own_tenant_only():
    people = await sync_to_async(prepare)()
    mine, strange = socket(people["alice"]), socket(people["bob"])
    for tab in (mine, strange):
        await tab.connect()
        await tab.send({"subscribe": ["queue:vision-a"]})

    assert (await receive_of(mine, "queue:vision-a"))["pace"] == 1.0
    assert_refused(await strange.receive(), "queue:vision-a")
    assert await strange.is_silent()
    await mine.disconnect()
    await strange.disconnect()


@pytest.mark.django_db(transaction=True)
async def test_a_session_that_ends_gets_no_further_messages():
    people = await sync_to_async(prepare)()
    client = Client()
    await sync_to_async(client.force_login)(people["alice"], BACKEND)
    tab = socket(people["alice"], client.session, QuickConsumer)
    await tab.connect()
    await tab.send({"subscribe": ["overview"]})
    await receive_of(tab, "overview")

    await sync_to_async(client.logout)()

    assert await tab.closed_with() == CLOSE_UNAUTHORISED
    await tab.disconnect()
    assert not hub()._tasks


class Narrow:
    """A socket that takes one message and then has no room until it is opened."""

    def __init__(self, user):
        self.told, self.room = [], asyncio.Event()
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "websocket", "path": "/ws/live/", "query_string": b"", "headers": []}
        app = URLRouter(websocket_urlpatterns)
        line = app({**scope, "subprotocols": [], "user": user}, self.inbox.get, self.send)
        self.task = asyncio.create_task(line)

    async def send(self, message):
        if message["type"] == "websocket.send":
            self.told.append(json.loads(message["text"]))
            await self.room.wait()


@pytest.mark.django_db(transaction=True)
async def test_a_full_socket_delays_no_other_and_gets_the_newest_message_later():
    people = await sync_to_async(prepare)()
    narrow, wide = Narrow(people["alice"]), socket(people["bob"])
    asked = {"subscribe": ["overview"]}
    await wide.connect()
    await wide.send(asked)
    await narrow.inbox.put({"type": "websocket.connect"})
    await narrow.inbox.put({"type": "websocket.receive", "text": json.dumps(asked)})
    await until(lambda: narrow.told)
    await receive_of(wide, "overview")

    for cause in ("exit", "stop", "submit"):
        await announce(overview_group(), "overview", {"changed": cause})
        newest = await receive_of(wide, "overview")
    assert len(narrow.told) == 1
    narrow.room.set()

    await until(lambda: len(narrow.told) == 2)
    assert narrow.told[1] == newest
    assert newest["data"] == {"changed": "submit", "in_use": 0}
    await narrow.inbox.put({"type": "websocket.disconnect", "code": 1000})
    await asyncio.wait_for(narrow.task, 30)
    await wide.disconnect()
