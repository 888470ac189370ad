"""ASGI middleware: proxy headers, limits of body sizes, and one thread per request."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpResponse
from django.template.loader import render_to_string
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from portal.api.documents import MAX_BODY_BYTES, BodyTooLargeError
from portal.api.errors import problem_page
from portal.settings.environment import TesseraSettings
from portal.web.frame import Frame
from scheduling.core.messages import sentence
from scheduling.jobs.services.archives import MOST_BYTES, TooLargeError

_SECURE: Final = {"http": "https", "ws": "wss"}
Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Size limits of request bodies in bytes.

    Attributes:
        upload: limit of a form, which may contain an archive and the text of a job.
        other: limit of any other body; parsers report their smaller limits with line and column.
        discarded: limit of the rest of a body that is too large, which is dropped. Clients do not
            read a response while they send; beyond this limit the connection is closed.
    """

    upload: int = MOST_BYTES + 2 * MAX_BODY_BYTES
    other: int = 2 * MAX_BODY_BYTES
    discarded: int = 64 << 20


_UPLOADS: Final = {
    "/api/v1/archives/": "file",
    "/submit/": "source.archive",
    "/submit/check/": "source.archive",
}
MOST_IDLE: Final = 8
"""Maximum number of idle threads; further threads end with their requests."""


def behind_proxies(application: Any, settings: TesseraSettings) -> Any:
    """Wrap ``application`` to use the caller's address and scheme from proxy headers.

    ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are read only from ``TESSERA_TRUSTED_PROXIES``:
    other callers could choose the address under which wrong passwords are counted. With
    ``TESSERA_HTTPS=1``, every request counts as HTTPS, regardless of the headers of the proxy.
    """

    async def secure(scope: dict[str, Any], receive: Any, send: Any) -> None:
        scheme = scope.get("scheme", "")
        await application({**scope, "scheme": _SECURE.get(scheme, scheme)}, receive, send)

    served: Any = secure if settings.https else application
    if not settings.trusted_proxies:
        return served
    return ProxyHeadersMiddleware(served, trusted_hosts=list(settings.trusted_proxies))


class _OverflowError(Exception):
    """The body exceeds the limit of the request."""


class BoundedBodies:
    """ASGI middleware that limits the size of request bodies by address.

    Django stores a whole body, in a file if it is large, before any view or parser reads it.
    """

    def __init__(self, application: Application, limits: BodyLimits = BodyLimits()) -> None:
        self._application = application
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it with field, value and remedy."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        limits = self._limits
        most = limits.upload if scope["path"] in _UPLOADS else limits.other
        given = _length(scope)
        taken = 0

        async def bounded() -> Mapping[str, Any]:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise _OverflowError
            return message

        if given <= most:
            try:
                await self._application(scope, bounded, send)
            except _OverflowError:
                pass
            else:
                return
        await _discard(receive, limits.discarded)
        await _answer(_refusal(scope, most, max(given, taken)), send)


def _length(scope: Scope) -> int:
    """Return the declared length of a body in bytes; 0 for a chunked body."""
    said = dict(scope["headers"]).get(b"content-length", b"")
    return int(said) if said.isdigit() else 0


async def _discard(receive: Receive, most: int) -> None:
    seen = 0
    while seen < most:
        message = await receive()
        if message["type"] != "http.request" or not message["more_body"]:
            return
        seen += len(message["body"])


def _refusal(scope: Scope, most: int, size: int) -> HttpResponse:
    field = _UPLOADS.get(scope["path"], "body")
    kind = TooLargeError if field != "body" else BodyTooLargeError
    error = kind(
        sentence("body-over-size", size=f"{size:,}", most=f"{most:,}"),
        field=field,
        value=size,
        remedy=sentence("leave-data-out") if field != "body" else "Send a smaller document.",
    )
    wanted = dict(scope["headers"]).get(b"accept", b"")
    if scope["path"].startswith("/api/") or b"text/html" not in wanted:
        return problem_page(error)
    context = {"fault": error.errors[0], "frame": Frame()}
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return HttpResponse(render_to_string("413.html", context), status=status)


async def _answer(response: HttpResponse, send: Send) -> None:
    headers: Any = [
        (name.lower().encode("ascii"), value.encode("latin-1")) for name, value in response.items()
    ]
    headers += [
        (b"content-length", str(len(response.content)).encode("ascii")),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
        (b"content-security-policy", b"default-src 'self'"),
    ]
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": headers,
            "trailers": False,
        }
    )
    await send({"type": "http.response.body", "body": response.content, "more_body": False})


class StayingThreads:
    """Pool of threads for requests, one per request; use it from one event loop only."""

    def __init__(self, most_idle: int = MOST_IDLE) -> None:
        self._most_idle = most_idle
        self._idle: list[ThreadPoolExecutor] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Run the synchronous code of this block in a thread that no other request uses.

        The pool returns the last used thread first: its connection is open and its caches are
        warm.
        """
        thread = self._idle.pop() if self._idle else ThreadPoolExecutor(1, "request")
        try:
            async with ThreadSensitiveContext(executor=thread):
                yield
        finally:
            if len(self._idle) < self._most_idle:
                self._idle.append(thread)
            else:
                # Connections are in reference cycles, which may be collected long after the thread
                # ends.
                thread.submit(connections.close_all)
                thread.shutdown(wait=False)


class ThreadedHandler(ASGIHandler):
    """Django's ASGI handler, with middleware and view as one call in one reusable thread.

    Django's own handler switches between event loop and thread for every synchronous middleware.
    It also gives each request a new thread, which opens the database again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._threads = StayingThreads()

    def load_middleware(self, is_async: bool = False) -> None:
        """Load the middleware in its synchronous form on any server."""
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._threads.one():
            await super().__call__(scope, receive, send)

    async def get_response_async(self, request: Any) -> Any:
        """Return the response, computed in the thread of the request."""
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)
