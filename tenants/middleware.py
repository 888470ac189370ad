"""Gives every request an id, so that an audit row, a log line and an answer can be matched."""

import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from uuid import uuid4

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from tenants.audit import audit_context

HEADER: Final = "X-Request-ID"
_ACCEPTABLE: Final = re.compile(r"[A-Za-z0-9._-]{8,64}")

Answer: TypeAlias = HttpResponseBase | Awaitable[HttpResponseBase]


class AuditContextMiddleware:
    """Takes the caller's ``X-Request-ID`` when it is harmless, else makes one, and answers it."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Answer]) -> None:
        """Wrap the next handler, synchronous or not."""
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Answer:
        """Handle one request inside its own audit context."""
        if iscoroutinefunction(self.get_response):
            return self._acall(request)
        with audit_context(request_id=request_id_of(request)) as context:
            response = self.get_response(request)
            assert isinstance(response, HttpResponseBase)  # noqa: S101 narrows the type only
        response.headers[HEADER] = context.request_id
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        with audit_context(request_id=request_id_of(request)) as context:
            response: HttpResponseBase = await self.get_response(request)  # type: ignore[misc]
        response.headers[HEADER] = context.request_id
        return response


def request_id_of(request: HttpRequest) -> str:
    """The caller's id if it is a short plain word, else a new one."""
    given = request.headers.get(HEADER, "")
    return given if _ACCEPTABLE.fullmatch(given) else uuid4().hex
