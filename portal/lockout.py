"""What somebody gets who has guessed too many passwords: a problem in the API, else a page."""

from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from portal.api.errors import plain_problem


def locked_out(request: HttpRequest, *_: Any) -> HttpResponse:
    """429, with the seconds after which it is worth trying again."""
    wait = int(settings.AXES_COOLOFF_TIME.total_seconds())
    response: HttpResponse
    if request.path.startswith("/api/"):
        title = "Too many wrong passwords"
        remedy = f"Try again in {wait} seconds."
        response = plain_problem("throttled", title, HTTPStatus.TOO_MANY_REQUESTS, remedy)
    else:
        body = render_to_string("429.html", {"minutes": max(wait // 60, 1)}, request=request)
        response = HttpResponse(body, status=HTTPStatus.TOO_MANY_REQUESTS)
    response.headers["Retry-After"] = str(wait)
    return response
