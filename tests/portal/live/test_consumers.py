"""The websocket of a tab."""

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.test import Client
from django.urls import path

from portal.live.access import job_group, log_group
from portal.live.consumers import (
    CLOSE_MALFORMED,
    CLOSE_UNAUTHORISED,
    MOST_IN_A_MESSAGE,
    LiveConsumer,
    websocket_urlpatterns,
)
from portal.live.hub import hub
from tenants.models import ApiToken, AuditEntry, User
from tenants.roles import Scope
from tests.factories.tenants import NOW, make_token, make_user
from tests.support.live_updates import make_job_and_users, publish_to_group
from tests.support.websockets import Tab, assert_refused

pytestmark = pytest.mark.django_db(transaction=True)

BACKEND = "django.contrib.auth.backends.ModelBackend"


class QuickConsumer(LiveConsumer):
    """Checks rights again after a twentieth of a second."""

    look_again_seconds = 0.05


class ImpatientConsumer(LiveConsumer):
    """Closes a socket without a user after a twentieth of a second."""

    sign_in_seconds = 0.05


def socket(user=None, consumer=LiveConsumer, session=None):
    live = URLRouter([path("ws/live/", consumer.as_asgi())])
    return Tab(live, "/ws/live/", user, session=session)


async def test_a_signed_in_user_gets_the_messages_of_a_topic():
    job, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["alice"])
    await tab.connect()
    await tab.send({"subscribe": [f"job:{job.pk}", "no-such"]})
    assert_refused(await tab.receive(), "no-such")

    await publish_to_group(job_group(job.pk), f"job:{job.pk}", {"state": "running"}, version=7)

    assert await tab.receive() == {
        "topic": f"job:{job.pk}",
        "version": 7,
        "data": {"state": "running"},
    }
    await tab.send({"unsubscribe": [f"job:{job.pk}"]})
    await tab.send({"subscribe": ["again-none"]})
    assert (await tab.receive())["topic"] == "again-none"
    await publish_to_group(job_group(job.pk), f"job:{job.pk}", {"state": "failed"})
    assert await tab.is_silent()
    await tab.disconnect()


async def test_a_subscription_is_confirmed_once_it_holds():
    job, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["alice"])
    await tab.connect()

    await tab.send({"subscribe": [f"job:{job.pk}", "overview"], "confirm": True})

    confirmed = await tab.receive()
    assert confirmed["topic"] == "confirmed"
    assert confirmed["data"] == {"topics": [f"job:{job.pk}", "overview"]}
    await publish_to_group(job_group(job.pk), f"job:{job.pk}", {"state": "running"})
    told = [await tab.receive() for _ in range(2)]
    assert sorted(one["topic"] for one in told) == [f"job:{job.pk}", "overview"]
    assert {"state": "running"} in [one["data"] for one in told]
    await tab.disconnect()


def log_reads():
    rows = AuditEntry.objects.unscoped().filter(action="job.read_log").order_by("pk")
    return list(rows.values_list("actor_name", "object_id", "tenant__name"))


async def test_an_admin_who_follows_the_log_of_another_tenant_is_recorded_once():
    job, people = await sync_to_async(make_job_and_users)()
    root = await sync_to_async(make_user)("root", is_cluster_admin=True)
    topic = f"log:{job.pk}:worker:0"
    tabs = [socket(user, QuickConsumer) for user in (people["alice"], root, root)]
    for tab in tabs:
        await tab.connect()
        await tab.send({"subscribe": [topic, f"job:{job.pk}"], "confirm": True})
        assert (await tab.receive())["data"]["topics"] == [topic, f"job:{job.pk}"]

    for number in range(3):
        await publish_to_group(log_group(job.pk, "worker", 0), topic, {"text": f"line {number}"})
        for tab in tabs:
            assert (await tab.receive())["data"] == {"text": f"line {number}"}

    assert await sync_to_async(log_reads)() == [("root", str(job.pk), "vision")]
    for tab in tabs:
        await tab.disconnect()


async def test_another_tenants_job_is_refused():
    job, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["bob"])
    await tab.connect()

    await tab.send({"subscribe": [f"job:{job.pk}"]})

    assert_refused(await tab.receive(), f"job:{job.pk}")
    await tab.disconnect()


async def test_without_a_session_a_token_opens_the_door_and_nothing_else_does():
    _, people = await sync_to_async(make_job_and_users)()
    issued = await sync_to_async(make_token)(people["alice"], Scope.JOBS_READ)
    tab, stranger = socket(), socket()
    await tab.connect()
    await stranger.connect()

    await tab.send({"token": issued.key, "subscribe": ["nothing"]})
    await stranger.send({"subscribe": ["overview"]})

    assert (await tab.receive())["error"] == "refused"
    assert await stranger.closed_with() == CLOSE_UNAUTHORISED
    await tab.disconnect()


async def test_a_socket_that_never_signs_in_is_closed_and_others_stay_open():
    _, people = await sync_to_async(make_job_and_users)()
    stranger, tab = socket(None, ImpatientConsumer), socket(people["alice"], ImpatientConsumer)
    await tab.connect()
    await stranger.connect()

    assert await stranger.closed_with() == CLOSE_UNAUTHORISED

    assert await tab.is_silent()
    await tab.send({"confirm": True})
    assert (await tab.receive())["topic"] == "confirmed"
    await tab.disconnect()


async def test_a_user_who_leaves_a_tenant_gets_no_messages_of_its_jobs():
    job, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["alice"], QuickConsumer)
    await tab.connect()
    await tab.send({"subscribe": [f"job:{job.pk}", "overview"], "confirm": True})
    assert (await tab.receive())["data"]["topics"] == [f"job:{job.pk}", "overview"]
    assert (await tab.receive())["topic"] == "overview"

    await sync_to_async(people["alice"].memberships.unscoped().delete)()

    refused = await tab.receive()
    assert_refused(refused, f"job:{job.pk}")
    await publish_to_group(job_group(job.pk), f"job:{job.pk}", {"state": "running"})
    assert await tab.is_silent()
    await tab.disconnect()


async def test_rights_are_checked_again_after_a_check_that_failed(monkeypatch):
    job, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["alice"], QuickConsumer)
    await tab.connect()
    topics = [f"job:{job.pk}", f"log:{job.pk}:worker:0"]
    await tab.send({"subscribe": topics, "confirm": True})
    assert (await tab.receive())["data"]["topics"] == topics

    layer = get_channel_layer()
    discard = layer.group_discard

    async def discard_and_fail(group, channel):
        await discard(group, channel)
        raise OSError("the broker is away")

    monkeypatch.setattr(layer, "group_discard", discard_and_fail)
    await sync_to_async(people["alice"].memberships.unscoped().delete)()

    for topic in topics:
        assert_refused(await tab.receive(), topic)
    await sync_to_async(User.objects.filter(username="alice").update)(is_active=False)
    assert await tab.closed_with() == CLOSE_UNAUTHORISED


async def test_a_token_that_is_revoked_closes_its_socket():
    _, people = await sync_to_async(make_job_and_users)()
    issued = await sync_to_async(make_token)(people["alice"], Scope.JOBS_READ)
    tab = socket(consumer=QuickConsumer)
    await tab.connect()
    await tab.send({"token": issued.key, "confirm": True})
    assert (await tab.receive())["topic"] == "confirmed"

    await sync_to_async(ApiToken.objects.filter(pk=issued.token.pk).update)(revoked_at=NOW)

    assert await tab.closed_with() == CLOSE_UNAUTHORISED


async def test_a_user_who_signs_out_is_disconnected():
    _, people = await sync_to_async(make_job_and_users)()
    client = Client()
    await sync_to_async(client.force_login)(people["alice"], BACKEND)
    tab = socket(people["alice"], QuickConsumer, session=client.session)
    await tab.connect()
    await tab.send({"confirm": True})
    assert (await tab.receive())["topic"] == "confirmed"
    assert await tab.is_silent()

    await sync_to_async(client.logout)()

    assert await tab.closed_with() == CLOSE_UNAUTHORISED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "not json",
        pytest.param("[" * 100_000, id="deep"),
        '["\\ud800"]',
        '{"subscribe": 5}',
        '{"subscribe": [5, null]}',
    ],
)
async def test_malformed_messages_have_no_effect_on_others(text):
    _, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["alice"])
    await tab.connect()

    await tab.send(text)

    if text.startswith("{"):
        await tab.send({"subscribe": ["none"]})
        assert (await tab.receive())["error"] == "refused"
        await tab.disconnect()
    else:
        assert await tab.closed_with() == CLOSE_MALFORMED


async def test_one_message_cannot_ask_about_thousands_of_topics():
    _, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["alice"])
    await tab.connect()

    await tab.send({"subscribe": [f"job:{number}" for number in range(MOST_IN_A_MESSAGE + 1)]})

    assert await tab.closed_with() == CLOSE_MALFORMED


@pytest.mark.parametrize("text", ['{"subscribe": ["queue:\\ud800"]}', '{"token": "\\ud800"}'])
async def test_a_lone_surrogate_is_not_a_valid_message(text):
    _, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["alice"])
    await tab.connect()

    await tab.send(text)

    assert await tab.closed_with() == CLOSE_MALFORMED


async def test_a_frame_without_text_is_not_a_valid_message():
    _, people = await sync_to_async(make_job_and_users)()
    tab = socket(people["alice"])
    await tab.connect()

    await tab.send_bytes(b"{}")

    assert await tab.closed_with() == CLOSE_MALFORMED


async def test_a_socket_that_breaks_during_a_message_leaves_no_subscription():
    job, people = await sync_to_async(make_job_and_users)()
    inbox: asyncio.Queue[object] = asyncio.Queue()

    async def send(message):
        if message["type"] == "websocket.send":
            raise OSError("the other end is gone")

    scope = {"type": "websocket", "path": "/ws/live/", "query_string": b"", "headers": []}
    scope |= {"subprotocols": [], "user": people["alice"]}
    asked = {"subscribe": ["overview", f"job:{job.pk}"]}
    others = asyncio.all_tasks()
    line = asyncio.create_task(URLRouter(websocket_urlpatterns)(scope, inbox.get, send))
    await inbox.put({"type": "websocket.connect"})

    await inbox.put({"type": "websocket.receive", "text": json.dumps({**asked, "confirm": True})})
    with pytest.raises(OSError, match="gone"):
        await asyncio.wait_for(line, 30)

    assert hub()._followers == {}
    assert get_channel_layer().groups == {}
    left = asyncio.all_tasks() - others
    if left:
        await asyncio.wait(left, timeout=30)
    assert asyncio.all_tasks() <= others
