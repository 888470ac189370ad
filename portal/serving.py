"""Threading of a web process: each request runs whole in one reusable thread.

Django's own handler changes between the event loop and a thread for every middleware that is not
written for the loop, and gives each request a new thread, which opens the database again.
"""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

import django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections

MOST_IDLE: Final = 8
"""Threads that wait for the next request; more than these come and go with their requests."""


class StayingThreads:
    """Threads of current requests, one each; used from one event loop only."""

    def __init__(self, most_idle: int = MOST_IDLE) -> None:
        """Args: most_idle: maximum number of idle threads."""
        self._most_idle = most_idle
        self._idle: list[ThreadPoolExecutor] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Run the synchronous code of this block in a thread that no other request uses.

        The last used thread is taken first: its connection is open and its rows are warm.
        """
        thread = self._idle.pop() if self._idle else _new_thread()
        try:
            async with ThreadSensitiveContext(executor=thread):
                yield
        finally:
            if len(self._idle) < self._most_idle:
                self._idle.append(thread)
            else:
                # They are in cycles, which may be collected long after the thread ends.
                thread.submit(connections.close_all)
                thread.shutdown(wait=False)


class ThreadedHandler(ASGIHandler):
    """Django's handler for ASGI, with middleware and view as one call in one thread."""

    def __init__(self) -> None:
        """Load the middleware, for threads."""
        super().__init__()
        self._threads = StayingThreads()

    def load_middleware(self, is_async: bool = False) -> None:
        """Load the middleware in its synchronous form on any server."""
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._threads.one():
            await super().__call__(scope, receive, send)

    async def get_response_async(self, request: Any) -> Any:
        """Return the response, computed in the request's thread."""
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)


def threaded_application() -> ThreadedHandler:
    """Return the application for pages and REST after loading all apps."""
    django.setup(set_prefix=False)
    return ThreadedHandler()


def _new_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="request")
