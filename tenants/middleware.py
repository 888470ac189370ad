"""Request ids, which connect audit rows, log lines and responses."""

import re
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from tenants.audit import audit_context

HEADER: Final = "X-Request-ID"
_ACCEPTABLE: Final = re.compile(r"[A-Za-z0-9._-]{8,64}")


class AuditContextMiddleware:
    """Uses the caller's ``X-Request-ID`` if it is valid, else a new one, and returns it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        """Wrap the next handler; requests are handled in threads (``portal.serving``)."""
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle one request inside its own audit context."""
        with audit_context(request_id=request_id_of(request)) as context:
            response = self.get_response(request)
        response.headers[HEADER] = context.request_id
        return response


def request_id_of(request: HttpRequest) -> str:
    """Return the caller's ID if it is a short plain word, otherwise a new one."""
    given = request.headers.get(HEADER, "")
    return given if _ACCEPTABLE.fullmatch(given) else uuid4().hex
