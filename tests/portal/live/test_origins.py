"""Whose pages may open a websocket."""

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from portal.asgi import application
from portal.live.access import own_origin
from portal.live.consumers import CLOSE_UNAUTHORISED
from tenants.models import User
from tenants.roles import Role, Scope
from tests.factories.tenants import make_tenant, make_token
from tests.support.websockets import Tab

pytestmark = pytest.mark.django_db(transaction=True)

HOST = "testserver:8000"
BACKEND = "django.contrib.auth.backends.ModelBackend"


def prepare():
    make_tenant("vision", alice=Role.MEMBER)
    alice = User.objects.get(username="alice")
    client = Client()
    client.force_login(alice, BACKEND)
    issued = make_token(alice, Scope.JOBS_READ)
    return issued.key, f"sessionid={client.cookies['sessionid'].value}"


def knock(**headers):
    return Tab(application, "/ws/live/", headers={"host": HOST, **headers})


async def hears(tab, message):
    await tab.connect()
    await tab.send({**message, "subscribe": ["rounds"], "confirm": True})
    return (await tab.receive())["topic"] == "confirmed"


async def test_a_script_that_names_no_origin_comes_in_with_a_token():
    key, _ = await sync_to_async(prepare)()
    tab = knock()

    assert await hears(tab, {"token": key})

    await tab.disconnect()


async def test_our_own_page_comes_in_with_its_cookie():
    _, cookie = await sync_to_async(prepare)()
    tab = knock(origin=f"http://{HOST}", cookie=cookie)

    assert await hears(tab, {})

    await tab.disconnect()


async def test_a_cookie_without_an_origin_opens_nothing():
    _, cookie = await sync_to_async(prepare)()
    tab = knock(cookie=cookie)
    await tab.connect()

    await tab.send({"subscribe": ["rounds"]})

    assert await tab.closed_with() == CLOSE_UNAUTHORISED


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://testserver:9000",
        "http://testserver",
        "file://testserver:8000",
        "null",
        "",
    ],
)
async def test_pages_of_others_are_turned_away(origin):
    _, cookie = await sync_to_async(prepare)()

    assert await knock(origin=origin, cookie=cookie).is_turned_away()


async def test_a_host_that_is_not_ours_is_nobodys_own():
    _, cookie = await sync_to_async(prepare)()
    tab = Tab(
        application,
        "/ws/live/",
        headers={"host": "evil.example", "origin": "http://evil.example", "cookie": cookie},
    )

    assert await tab.is_turned_away()


async def test_behind_a_proxy_those_pages_count_from_which_forms_may_come(settings):
    settings.CSRF_TRUSTED_ORIGINS = ["https://*.example.org"]
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope["path"])
        await send({"type": "websocket.accept"})

    headers = {"host": "10.0.0.1:8000", "origin": "https://gpu.example.org"}
    tab = Tab(own_origin(inner), "/ws/live/", headers=headers)
    await tab.connect()

    assert seen == ["/ws/live/"]
