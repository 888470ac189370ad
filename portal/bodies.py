"""Limit of the size of request bodies, enforced before more than one chunk is stored."""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from django.http import HttpResponse
from django.template.loader import render_to_string

from portal.api.documents import MAX_BODY_BYTES, BodyTooLargeError
from portal.api.errors import problem_page
from portal.web.frame import Frame
from scheduling.jobs.services.archives import MOST_BYTES, TooLargeError

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# A form may have an archive and the text of a job.
MOST_UPLOAD_BYTES: Final = MOST_BYTES + 2 * MAX_BODY_BYTES
# The parsers of documents report their own, smaller limit with line and column.
MOST_OTHER_BYTES: Final = 2 * MAX_BODY_BYTES
# A client does not read while it sends; beyond this limit its connection is closed.
MOST_DISCARDED_BYTES: Final = 64 << 20
_UPLOADS: Final = {
    "/api/v1/archives/": "file",
    "/submit/": "source.archive",
    "/submit/check/": "source.archive",
}


class _OverflowError(Exception):
    """The body is larger than the request may be."""


class BoundedBodies:
    """ASGI wrapper that limits the size of request bodies by address.

    Django stores a whole body, in a file where it is large, before any view or parser sees it.
    """

    def __init__(self, application: Application) -> None:
        """Args: application: handles requests within the limit."""
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it with field, value and remedy."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        most = MOST_UPLOAD_BYTES if scope["path"] in _UPLOADS else MOST_OTHER_BYTES
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
        await _discard(receive)
        await _answer(_refusal(scope, most, max(given, taken)), send)


def _length(scope: Scope) -> int:
    """Return the declared length; 0 for chunked bodies."""
    said = dict(scope["headers"]).get(b"content-length", b"")
    return int(said) if said.isdigit() else 0


async def _discard(receive: Receive) -> None:
    seen = 0
    while seen < MOST_DISCARDED_BYTES:
        message = await receive()
        if message["type"] != "http.request" or not message["more_body"]:
            return
        seen += len(message["body"])


def _refusal(scope: Scope, most: int, size: int) -> HttpResponse:
    field = _UPLOADS.get(scope["path"], "body")
    kind = TooLargeError if field != "body" else BodyTooLargeError
    error = kind(
        f"It has {size:,} bytes or more; {most:,} are taken here.",
        field=field,
        value=size,
        remedy="Leave data and environments out; fetch them in the job."
        if field != "body"
        else "Send a smaller document.",
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
