"""Pages for what went wrong: each says what, why and what next; 500 works without the database."""

from http import HTTPStatus

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views import defaults

from portal.api.errors import plain_problem
from portal.web.frame import Frame
from tenants.errors import DomainError


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """400: the request could not be read."""
    return _page(request, HTTPStatus.BAD_REQUEST, "400.html")


def unreadable(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """400 before anything is known of the request, such as who sent it and to which host."""
    if request.path.startswith("/api/"):
        is_host = isinstance(exception, DisallowedHost)
        remedy = "Use a host name that TESSERA_ALLOWED_HOSTS names." if is_host else ""
        return plain_problem("bad-request", "The request is not valid", 400, remedy)
    return defaults.bad_request(request, exception or Exception())


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """403: the reader's role does not allow it."""
    return _page(request, HTTPStatus.FORBIDDEN, "403.html")


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """404: no such page, or not one that the reader may know of."""
    return _page(request, HTTPStatus.NOT_FOUND, "404.html")


def busy(request: HttpRequest, error: DomainError) -> HttpResponse:
    """A page for a request that may succeed if it is sent again a little later."""
    context = {
        "request_id": getattr(request, "request_id", ""),
        "title": error.title,
        "fault": error.errors[0],
        "code": error.code,
    }
    body = render_to_string("busy.html", context, request=request)
    return HttpResponse(body, status=error.status)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403: the form was too old or came from elsewhere."""
    return _page(request, HTTPStatus.FORBIDDEN, "403_csrf.html")


def server_error(request: HttpRequest) -> HttpResponse:
    """500: drawn without request, user or query, so that it appears whatever broke."""
    if request.path.startswith("/api/"):
        return plain_problem("server-error", "Something broke here; see the log", 500)
    context = {"request_id": getattr(request, "request_id", ""), "frame": Frame()}
    body = render_to_string("500.html", context)
    return HttpResponse(body, status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _page(request: HttpRequest, status: HTTPStatus, template: str) -> HttpResponse:
    context = {"request_id": getattr(request, "request_id", ""), "path": request.path}
    return HttpResponse(render_to_string(template, context, request=request), status=status)
