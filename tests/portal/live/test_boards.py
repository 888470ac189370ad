"""One reading and one text for all who follow a topic in a process."""

import asyncio
import json
import time

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.test import Client

from portal.live.boards import Hub, hub
from portal.live.consumers import CLOSE_UNAUTHORISED, LiveConsumer
from portal.live.publishing import MESSAGE_TYPE
from portal.live.routing import websocket_urlpatterns
from portal.live.topics import overview_group, queue_group
from scheduling.models import Node
from scheduling.selectors.boards import read_boards
from tenants.models import User
from tenants.roles import Role
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import make_tenant
from tests.support.websockets import Tab

BACKEND = "django.contrib.auth.backends.ModelBackend"


class Reader:
    """What boards say, and how often somebody has asked."""

    def __init__(self):
        self.public, self.asked = {"in_use": 1}, 0

    def __call__(self, numbers):
        self.asked += 1
        return dict(self.public), {number: {"queued": number} for number in numbers}


class Listener:
    """A follower that takes each step at once."""

    def __init__(self, board, group, *, slow=False):
        self.board, self.group, self.slow = board, group, slow
        self.version, self.texts = None, []

    def due(self, topic):
        if not self.slow:
            self.take(topic)

    def take(self, topic):
        self.version, texts = self.board.step(self.group, topic, self.version)
        self.texts += texts


async def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def announce(group, topic):
    message = {"type": MESSAGE_TYPE, "topic": topic, "version": 1, "data": {}}
    await get_channel_layer().group_send(group, message)


async def test_hundred_followers_cost_one_reading_and_share_one_text():
    reader = Reader()
    board = Hub(reader, tick_seconds=0.01)
    everybody = [Listener(board, overview_group()) for _ in range(100)]
    for one in everybody:
        await board.follow(overview_group(), "overview", one)
    await until(lambda: all(one.texts for one in everybody))
    asked = reader.asked

    reader.public = {"in_use": 2}
    await announce(overview_group(), "overview")
    await until(lambda: all(len(one.texts) >= 2 for one in everybody))

    assert reader.asked - asked <= 2
    assert len({id(one.texts[1]) for one in everybody}) == 1
    told = json.loads(everybody[0].texts[1])
    assert told["base"] == json.loads(everybody[0].texts[0])["version"]
    assert told["data"] == {"in_use": 2, "news": 1}
    for one in everybody:
        await board.leave(overview_group(), one)


async def test_who_reads_slowly_gets_one_step_over_all_that_was_missed():
    reader = Reader()
    board = Hub(reader, tick_seconds=0.01)
    quick, slow = Listener(board, overview_group()), Listener(board, overview_group(), slow=True)
    for one in (quick, slow):
        await board.follow(overview_group(), "overview", one)
    await until(lambda: quick.texts)
    slow.take("overview")

    for number in range(2, 6):
        reader.public = {"in_use": number, f"node:{number}": "ready f"}
        await announce(overview_group(), "overview")
        await until(lambda number=number: f'"in_use":{number}' in quick.texts[-1])
    slow.take("overview")

    assert len(slow.texts) == 2
    told = json.loads(slow.texts[1])
    assert told["base"] == json.loads(slow.texts[0])["version"]
    assert told["version"] == quick.version
    assert told["data"]["in_use"] == 5
    assert told["data"]["node:4"] is None
    for one in (quick, slow):
        await board.leave(overview_group(), one)


async def test_versions_that_clients_make_up_share_the_text_of_the_whole():
    board = Hub(Reader(), tick_seconds=0.01)
    one = Listener(board, overview_group())
    await board.follow(overview_group(), "overview", one)
    await until(lambda: one.texts)

    answers = [board.step(overview_group(), "overview", number) for number in range(1, 200)]

    assert len({id(texts) for _, texts in answers}) == 1
    assert json.loads(answers[0][1][0])["base"] is None
    assert len(board._texts) <= 2
    await board.leave(overview_group(), one)


async def test_a_reading_that_fails_ends_nothing():
    reader = Reader()
    failing = [True]

    def read(numbers):
        if failing and failing.pop():
            raise OSError("the database is away")
        return reader(numbers)

    board = Hub(read, tick_seconds=0.01)
    one = Listener(board, overview_group())
    await board.follow(overview_group(), "overview", one)
    await until(lambda: not failing)

    await announce(overview_group(), "overview")

    await until(lambda: one.texts)
    await board.leave(overview_group(), one)


async def test_nobody_reads_when_nobody_follows():
    reader = Reader()
    board = Hub(reader, tick_seconds=0.01)
    one = Listener(board, queue_group(4))
    await board.follow(queue_group(4), "queue:vision-a", one)
    await until(lambda: one.texts)
    assert json.loads(one.texts[0])["data"] == {"queued": 4, "news": 0}

    await board.leave(queue_group(4), one)

    assert board.step(queue_group(4), "queue:vision-a", None) == (0, ())
    assert not board._tasks


def prepare():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(tenant=make_tenant("vision", alice=Role.MEMBER))
    make_tenant("language", bob=Role.LEAD)
    job = make_job()
    return job, {user.username: user for user in User.objects.all()}


def socket(user=None, session=None):
    return Tab(URLRouter(websocket_urlpatterns), "/ws/live/", user, session=session)


async def receive_of(tab, topic):
    while (message := await tab.receive())["topic"] != topic:
        pass
    return message


@pytest.mark.django_db
def test_the_public_board_names_nobody_and_a_virtual_cluster_counts_its_own():
    job, _ = prepare()

    public, own = read_boards([job.virtual_cluster_id])

    node = Node.objects.order_by("id").first()
    assert public[f"node:{node.pk}"] == f"{node.state} {'f' * node.devices.count()}"
    assert public["in_use"] == 0
    assert "vision" not in json.dumps(public)
    assert own[job.virtual_cluster_id]["queued_jobs"] == 1


@pytest.mark.django_db(transaction=True)
async def test_after_a_reconnect_a_tab_goes_on_from_the_version_that_it_has():
    _, people = await sync_to_async(prepare)()
    first, other = socket(people["alice"]), socket(people["bob"])
    for tab in (first, other):
        await tab.connect()
        await tab.send({"subscribe": ["overview"], "since": {"overview": None}})
    whole = await receive_of(first, "overview")
    await receive_of(other, "overview")
    assert whole["base"] is None
    await first.disconnect()

    await sync_to_async(Node.objects.update)(state="down")
    await announce(overview_group(), "overview")
    await receive_of(other, "overview")
    again = socket(people["alice"])
    await again.connect()
    since = {"overview": whole["version"]}
    await again.send({"subscribe": ["overview"], "since": since})

    step = await receive_of(again, "overview")
    assert step["base"] == whole["version"]
    assert set(step["data"]) < set(whole["data"])
    assert all(value.startswith("down") for key, value in step["data"].items() if "node:" in key)
    await again.disconnect()
    await other.disconnect()


@pytest.mark.django_db(transaction=True)
async def test_a_queue_is_followed_by_its_own_tenant_only():
    _, people = await sync_to_async(prepare)()
    mine, strange = socket(people["alice"]), socket(people["bob"])
    asked = {"subscribe": ["queue:vision-a"], "since": {"queue:vision-a": None}}
    for tab in (mine, strange):
        await tab.connect()
        await tab.send(asked)

    assert (await receive_of(mine, "queue:vision-a"))["data"]["queued_jobs"] == 1
    assert await strange.receive() == {"topic": "queue:vision-a", "error": "refused"}
    assert await strange.is_silent()
    await mine.disconnect()
    await strange.disconnect()


@pytest.mark.django_db(transaction=True)
async def test_a_session_that_ends_is_told_no_further_version(monkeypatch):
    monkeypatch.setattr(LiveConsumer, "look_again_seconds", 0.05)
    _, people = await sync_to_async(prepare)()
    client = Client()
    await sync_to_async(client.force_login)(people["alice"], BACKEND)
    tab = socket(people["alice"], client.session)
    await tab.connect()
    await tab.send({"subscribe": ["overview"], "since": {"overview": None}})
    await receive_of(tab, "overview")

    await sync_to_async(client.logout)()

    assert await tab.closed_with() == CLOSE_UNAUTHORISED
    await tab.disconnect()
    assert not hub()._tasks


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("since", [5, {"overview": "x"}, {"overview": True}, {"overview": -1}])
async def test_a_version_that_makes_no_sense_means_the_whole(since):
    _, people = await sync_to_async(prepare)()
    tab = socket(people["alice"])
    await tab.connect()

    await tab.send({"subscribe": ["overview"], "since": since, "confirm": True})

    message = await tab.receive()
    while isinstance(since, dict) and message["topic"] == "confirmed":
        message = await tab.receive()
    assert message["topic"] == ("overview" if isinstance(since, dict) else "confirmed")
    assert message.get("base") is None
    await tab.disconnect()


class Narrow:
    """A socket that takes one message and then has no room until it is opened."""

    def __init__(self, user):
        self.told, self.room = [], asyncio.Event()
        self.inbox = asyncio.Queue()
        scope = {"type": "websocket", "path": "/ws/live/", "query_string": b"", "headers": []}
        app = URLRouter(websocket_urlpatterns)
        line = app({**scope, "subprotocols": [], "user": user}, self.inbox.get, self.send)
        self.task = asyncio.create_task(line)

    async def send(self, message):
        if message["type"] == "websocket.send":
            self.told.append(json.loads(message["text"]))
            await self.room.wait()


@pytest.mark.django_db(transaction=True)
async def test_a_socket_without_room_holds_up_nobody_and_gets_one_step_later():
    _, people = await sync_to_async(prepare)()
    narrow, wide = Narrow(people["alice"]), socket(people["bob"])
    asked = {"subscribe": ["overview"], "since": {"overview": None}}
    await wide.connect()
    await wide.send(asked)
    await narrow.inbox.put({"type": "websocket.connect"})
    await narrow.inbox.put({"type": "websocket.receive", "text": json.dumps(asked)})
    await until(lambda: narrow.told)
    await receive_of(wide, "overview")

    for state in ("down", "suspect", "ready"):
        await sync_to_async(Node.objects.update)(state=state)
        await announce(overview_group(), "overview")
        newest = await receive_of(wide, "overview")
    assert len(narrow.told) == 1
    narrow.room.set()

    await until(lambda: len(narrow.told) == 2)
    step = narrow.told[1]
    assert (step["base"], step["version"]) == (narrow.told[0]["version"], newest["version"])
    assert step["data"]["news"] == 3
    await narrow.inbox.put({"type": "websocket.disconnect", "code": 1000})
    await asyncio.wait_for(narrow.task, 30)
    await wide.disconnect()
