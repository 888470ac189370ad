"""Throttled sign-in by password on the login page, by basic authentication and in the admin."""

import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string

from portal.api.errors import problem_page
from tenants.clock import database_now
from tenants.models import User
from tenants.services.sign_in import (
    KNOWN_FOR,
    SignInSource,
    TooManyFailuresError,
    attempt_failed,
    attempt_succeeded,
    begin_attempt,
)

DEVICE_COOKIE: Final = "tessera_device"
_SALT: Final = "tessera.device"
_NEW_DEVICE: Final = "_tessera_new_device"


class ThrottledBackend(ModelBackend):
    """Checks a password like Django, unless earlier failures require a wait."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **kwargs: Any,
    ) -> User | None:
        """Return the user of a correct password.

        Without a request (commands, tests) no failure is counted, and the next backend is used.

        Raises:
            PermissionDenied: the password is wrong; no other backend is tried.
            TooManyFailuresError: earlier failures require a wait; the password was not checked.
        """
        if request is None or username is None or password is None:
            return None
        via = "api" if request.path.startswith("/api/") else "page"
        attempt = begin_attempt(username=username, source=source_of(request), now=database_now())
        user = super().authenticate(request, username=username, password=password, **kwargs)
        if not isinstance(user, User):
            attempt_failed(attempt=attempt, via=via)
            raise PermissionDenied
        attempt_succeeded(attempt=attempt, user=user, via=via)
        return user


class SignInMiddleware:
    """Converts throttling errors to responses, and sets the device cookie."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response, with a device cookie for a newly signed-in browser."""
        response = self.get_response(request)
        device = request.META.get(_NEW_DEVICE)
        if device and response.status_code < HTTPStatus.BAD_REQUEST:
            response.set_cookie(
                DEVICE_COOKIE,
                signing.dumps(device, salt=_SALT),
                max_age=KNOWN_FOR,
                samesite="Lax",
                secure=settings.SESSION_COOKIE_SECURE,
                httponly=True,
            )
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return 429 with the seconds until the next password check, or None for other errors."""
        if not isinstance(error, TooManyFailuresError):
            return None
        if request.path.startswith("/api/"):
            return problem_page(error)
        body = render_to_string("429.html", {"seconds": error.retry_after}, request=request)
        headers = {"Retry-After": str(error.retry_after)}
        return HttpResponse(body, status=HTTPStatus.TOO_MANY_REQUESTS, headers=headers)


def source_of(request: HttpRequest) -> SignInSource:
    """Return the source of a request; a browser without a device cookie gets one."""
    sent = request.COOKIES.get(DEVICE_COOKIE, "")
    try:
        device = str(signing.loads(sent, salt=_SALT, max_age=KNOWN_FOR)) if sent else ""
    except signing.BadSignature:
        device = ""
    if not device and not request.path.startswith("/api/"):
        device = secrets.token_hex(16)
        request.META[_NEW_DEVICE] = device
    return SignInSource(address=request.META.get("REMOTE_ADDR", ""), device=device)
