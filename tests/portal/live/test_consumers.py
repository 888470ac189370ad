"""The websocket of a tab."""

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.test import Client

from portal.live.consumers import (
    CLOSE_MALFORMED,
    CLOSE_UNAUTHORISED,
    MOST_IN_A_MESSAGE,
    LiveConsumer,
)
from portal.live.publishing import MESSAGE_TYPE
from portal.live.routing import websocket_urlpatterns
from portal.live.topics import job_group
from tenants.models import ApiToken, User
from tenants.roles import Role, Scope
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import NOW, make_tenant, make_token
from tests.support.websockets import Tab

pytestmark = pytest.mark.django_db(transaction=True)

BACKEND = "django.contrib.auth.backends.ModelBackend"


def prepare():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(tenant=make_tenant("vision", alice=Role.MEMBER))
    make_tenant("language", bob=Role.LEAD)
    job = make_job()
    people = {user.username: user for user in User.objects.all()}
    return job, people


def socket(user=None):
    return Tab(URLRouter(websocket_urlpatterns), "/ws/live/", user)


async def publish(group, topic, data, version=1):
    await get_channel_layer().group_send(
        group, {"type": MESSAGE_TYPE, "topic": topic, "version": version, "data": data}
    )


async def test_a_signed_in_person_gets_what_the_topic_says():
    job, people = await sync_to_async(prepare)()
    tab = socket(people["alice"])
    await tab.connect()
    await tab.send({"subscribe": [f"job:{job.pk}", "no-such"]})
    assert await tab.receive() == {"topic": "no-such", "error": "refused"}

    await publish(job_group(job.pk), f"job:{job.pk}", {"state": "running"}, version=7)

    assert await tab.receive() == {
        "topic": f"job:{job.pk}",
        "version": 7,
        "data": {"state": "running"},
    }
    await tab.send({"unsubscribe": [f"job:{job.pk}"]})
    await tab.send({"subscribe": ["again-none"]})
    assert (await tab.receive())["topic"] == "again-none"
    await publish(job_group(job.pk), f"job:{job.pk}", {"state": "failed"})
    assert await tab.is_silent()
    await tab.disconnect()


async def test_a_subscription_is_confirmed_once_it_holds():
    job, people = await sync_to_async(prepare)()
    tab = socket(people["alice"])
    await tab.connect()

    await tab.send({"subscribe": [f"job:{job.pk}", "overview"], "confirm": True})

    confirmed = await tab.receive()
    assert confirmed["topic"] == "confirmed"
    assert confirmed["data"] == {"topics": [f"job:{job.pk}", "overview"]}
    await publish(job_group(job.pk), f"job:{job.pk}", {"state": "running"})
    assert (await tab.receive())["data"] == {"state": "running"}
    await tab.disconnect()


async def test_another_tenants_job_is_refused():
    job, people = await sync_to_async(prepare)()
    tab = socket(people["bob"])
    await tab.connect()

    await tab.send({"subscribe": [f"job:{job.pk}"]})

    assert await tab.receive() == {"topic": f"job:{job.pk}", "error": "refused"}
    await tab.disconnect()


async def test_without_a_session_a_token_opens_the_door_and_nothing_else_does():
    _, people = await sync_to_async(prepare)()
    issued = await sync_to_async(make_token)(people["alice"], Scope.JOBS_READ)
    tab, stranger = socket(), socket()
    await tab.connect()
    await stranger.connect()

    await tab.send({"token": issued.key, "subscribe": ["nothing"]})
    await stranger.send({"subscribe": ["overview"]})

    assert (await tab.receive())["error"] == "refused"
    assert await stranger.closed_with() == CLOSE_UNAUTHORISED
    await tab.disconnect()


async def test_who_never_says_who_they_are_is_let_go_and_others_stay(monkeypatch):
    monkeypatch.setattr(LiveConsumer, "sign_in_seconds", 0.05)
    _, people = await sync_to_async(prepare)()
    stranger, tab = socket(), socket(people["alice"])
    await tab.connect()
    await stranger.connect()

    assert await stranger.closed_with() == CLOSE_UNAUTHORISED

    assert await tab.is_silent()
    await tab.send({"confirm": True})
    assert (await tab.receive())["topic"] == "confirmed"
    await tab.disconnect()


async def test_whoever_leaves_a_tenant_stops_hearing_of_its_jobs(monkeypatch):
    monkeypatch.setattr(LiveConsumer, "look_again_seconds", 0.05)
    job, people = await sync_to_async(prepare)()
    tab = socket(people["alice"])
    await tab.connect()
    await tab.send({"subscribe": [f"job:{job.pk}", "overview"], "confirm": True})
    assert (await tab.receive())["data"]["topics"] == [f"job:{job.pk}", "overview"]

    await sync_to_async(people["alice"].memberships.unscoped().delete)()

    refused = await tab.receive()
    assert refused == {"topic": f"job:{job.pk}", "error": "refused"}
    await publish(job_group(job.pk), f"job:{job.pk}", {"state": "running"})
    assert await tab.is_silent()
    await tab.disconnect()


async def test_a_token_that_is_revoked_closes_its_socket(monkeypatch):
    monkeypatch.setattr(LiveConsumer, "look_again_seconds", 0.05)
    _, people = await sync_to_async(prepare)()
    issued = await sync_to_async(make_token)(people["alice"], Scope.JOBS_READ)
    tab = socket()
    await tab.connect()
    await tab.send({"token": issued.key, "confirm": True})
    assert (await tab.receive())["topic"] == "confirmed"

    await sync_to_async(ApiToken.objects.filter(pk=issued.token.pk).update)(revoked_at=NOW)

    assert await tab.closed_with() == CLOSE_UNAUTHORISED


async def test_somebody_who_signs_out_is_not_kept_on_the_line(monkeypatch):
    monkeypatch.setattr(LiveConsumer, "look_again_seconds", 0.05)
    _, people = await sync_to_async(prepare)()
    client = Client()
    await sync_to_async(client.force_login)(people["alice"], BACKEND)
    tab = Tab(
        URLRouter(websocket_urlpatterns), "/ws/live/", people["alice"], session=client.session
    )
    await tab.connect()
    await tab.send({"confirm": True})
    assert (await tab.receive())["topic"] == "confirmed"
    assert await tab.is_silent()

    await sync_to_async(client.logout)()

    assert await tab.closed_with() == CLOSE_UNAUTHORISED


@pytest.mark.parametrize(
    "text", ["[]", "not json", '{"subscribe": 5}', '{"subscribe": [5, null]}']
)
async def test_malformed_messages_harm_nobody(text):
    _, people = await sync_to_async(prepare)()
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
    _, people = await sync_to_async(prepare)()
    tab = socket(people["alice"])
    await tab.connect()

    await tab.send({"subscribe": [f"job:{number}" for number in range(MOST_IN_A_MESSAGE + 1)]})

    assert await tab.closed_with() == CLOSE_MALFORMED
