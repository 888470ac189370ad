"""A request is handled in one thread, which is reused for the next one."""

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.urls import path

from portal.serving import StayingThreads, ThreadedHandler

WAIT = 60
_begun, _go_on, _ended = threading.Event(), threading.Event(), threading.Event()


def where(request: HttpRequest) -> HttpResponse:
    """The threads of the first middleware and of the view."""
    return HttpResponse(f"{request.thread} {threading.get_ident()}")  # type: ignore[attr-defined]


def wait(request: HttpRequest) -> HttpResponse:
    """Takes until the test lets it go on."""
    _begun.set()
    _go_on.wait(WAIT)
    _ended.set()
    return HttpResponse("done")


def name_thread(get_response: Any) -> Any:
    """A middleware that remembers the thread which it runs in."""

    def named(request: Any) -> Any:
        request.thread = threading.get_ident()
        return get_response(request)

    return named


@pytest.fixture
def handler(settings: Any) -> ThreadedHandler:
    for event in (_begun, _go_on, _ended):
        event.clear()
    settings.ROOT_URLCONF = (path("where/", where), path("wait/", wait))
    settings.MIDDLEWARE = [f"{__name__}.name_thread", *settings.MIDDLEWARE]
    return ThreadedHandler()


def asked(handler: ThreadedHandler, address: str) -> Any:
    scope = {
        "type": "http",
        "method": "GET",
        "path": address,
        "query_string": b"",
        "headers": [(b"host", b"testserver")],
    }
    return ApplicationCommunicator(handler, scope)


async def answer(line: Any) -> str:
    await line.send_input({"type": "http.request", "body": b"", "more_body": False})
    started = await line.receive_output(WAIT)
    body = await line.receive_output(WAIT)
    await line.wait(WAIT)
    assert started["status"] == 200
    return str(body["body"].decode())


async def test_middleware_and_view_run_in_one_thread_which_the_next_request_has_too(
    handler: ThreadedHandler,
) -> None:
    first = await answer(asked(handler, "/where/"))
    second = await answer(asked(handler, "/where/"))

    middleware, view = first.split()
    assert middleware == view != str(threading.get_ident())
    assert second == first


async def test_a_request_does_not_wait_for_another_that_takes_long(
    handler: ThreadedHandler,
) -> None:
    slow = asyncio.create_task(answer(asked(handler, "/wait/")))
    assert await asyncio.to_thread(_begun.wait, WAIT)

    await answer(asked(handler, "/where/"))

    assert not slow.done()
    _go_on.set()
    assert await slow == "done"


async def test_the_thread_of_a_caller_who_left_is_nobody_elses_before_its_view_has_ended(
    handler: ThreadedHandler,
) -> None:
    line = asked(handler, "/wait/")
    await line.send_input({"type": "http.request", "body": b"", "more_body": False})
    assert await asyncio.to_thread(_begun.wait, WAIT)
    await line.send_input({"type": "http.disconnect"})

    await answer(asked(handler, "/where/"))  # would wait for the other one, were it its thread
    assert not _ended.is_set()

    _go_on.set()
    await line.wait(WAIT)
    assert _ended.is_set()


async def test_threads_above_the_idle_limit_end_with_their_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[threading.Thread] = []

    def close_all() -> None:
        closed.append(threading.current_thread())

    monkeypatch.setattr(connections, "close_all", close_all)
    threads = StayingThreads(most_idle=1)
    name = sync_to_async(threading.current_thread)

    async with threads.one():
        outer = await name()
        async with threads.one():
            inner = await name()

    await asyncio.to_thread(outer.join, WAIT)
    assert not outer.is_alive()
    assert inner.is_alive()
    assert closed == [outer], "its connections would stay open without it"
    async with threads.one():
        assert await name() is inner
