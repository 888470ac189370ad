"""Language and time zone of pages: the user's setting, or that of the browser."""

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote
from zoneinfo import ZoneInfo, available_timezones

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.locale import LocaleMiddleware
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.deprecation import MiddlewareMixin
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods, require_POST

from portal.web.viewing import PageRequest, page
from tenants.errors import InvalidError
from tenants.models import Language
from tenants.models.users import BROWSER_ZONE
from tenants.services import set_preferences
from tenants.viewers import Viewer

YEAR_SECONDS: Final = 365 * 24 * 3600
PROGRAM_PATHS: Final = ("/api/v1/", "/admin/", "/healthz", "/readyz", "/metrics")
"""Paths for programs and operators: always English, regardless of the browser's language."""
COOKIE: Final = "tessera_zone"
"""Cookie written by the page's script (``static/js/zone.js``) and read by the server."""
_LONGEST: Final = 64


class LanguageMiddleware(LocaleMiddleware):
    """Selects the language: from the user's setting, the cookie, or the browser, in this order."""

    def process_request(self, request: HttpRequest) -> None:
        """Choose the language of this request; programming interfaces use English."""
        code = "en" if request.path.startswith(PROGRAM_PATHS) else language_of(request)
        translation.activate(code)
        request.LANGUAGE_CODE = translation.get_language() or "en"


def chosen_language(request: HttpRequest) -> str:
    """Return the chosen language, or ``browser``."""
    user = getattr(request, "user", None)
    if getattr(user, "is_authenticated", False):
        return str(getattr(user, "language", Language.BROWSER))
    kept = request.COOKIES.get(settings.LANGUAGE_COOKIE_NAME, "")
    return kept if kept in Language.values else str(Language.BROWSER)


def language_of(request: HttpRequest) -> str:
    """Return the language code of a page for this request."""
    chosen = chosen_language(request)
    if chosen != Language.BROWSER:
        return chosen
    return translation.get_language_from_request(request)


@require_POST
def switch(request: HttpRequest) -> HttpResponse:
    """Store the language for this browser and, if signed in, for the person."""
    chosen = request.POST.get("language", "")
    if chosen not in Language.values:
        known = ", ".join(Language.values)
        return HttpResponse(f"language is one of {known}", status=HTTPStatus.BAD_REQUEST)
    user = request.user
    if user.is_authenticated and user.language != chosen:
        set_preferences(viewer=Viewer(user_id=user.pk, username=user.username), language=chosen)
    back = request.POST.get("next", "")
    hosts = {request.get_host()}
    if not url_has_allowed_host_and_scheme(back, hosts, require_https=request.is_secure()):
        back = "/"
    response = HttpResponseRedirect(back)
    response.set_cookie(
        settings.LANGUAGE_COOKIE_NAME,
        chosen,
        max_age=YEAR_SECONDS,
        samesite="Lax",
        secure=request.is_secure(),
        httponly=True,
    )
    return response


class ZoneMiddleware(MiddlewareMixin):
    """Activates the user's time zone for pages, and UTC for REST and other program interfaces."""

    def process_request(self, request: HttpRequest) -> None:
        """Activate the time zone for this request."""
        is_page = not request.path.startswith(PROGRAM_PATHS)
        timezone.activate(zone_of(request) if is_page else UTC)


def chosen_zone(request: HttpRequest) -> str:
    """Return the user's time zone setting: a zone name or ``browser``."""
    user = getattr(request, "user", None)
    if not getattr(user, "is_authenticated", False):
        return BROWSER_ZONE
    return str(getattr(user, "time_zone", BROWSER_ZONE))


def zone_of(request: HttpRequest) -> tzinfo:
    """Return the time zone for this request; UTC until the browser has sent its zone."""
    chosen = chosen_zone(request)
    named = unquote(request.COOKIES.get(COOKIE, "")) if chosen == BROWSER_ZONE else chosen
    return zone_named(named) or UTC


def zone_names() -> tuple[str, ...]:
    """Return the names of all selectable time zones, sorted."""
    return _zone_names()


@lru_cache(maxsize=1)
def _zone_names() -> tuple[str, ...]:
    return tuple(sorted(available_timezones() | {"UTC"}))


@lru_cache(maxsize=512)
def zone_named(name: str) -> tzinfo | None:
    """Return the time zone with this name, or None if the name is unknown."""
    if len(name) > _LONGEST or name not in _zone_names():
        return None
    return UTC if name == "UTC" else ZoneInfo(name)


def abbreviation(now: datetime) -> str:
    """Return the short name of the active zone at a time: ``CST``, ``+03``."""
    return now.astimezone(timezone.get_current_timezone()).tzname() or "UTC"


def in_words(now: datetime) -> str:
    """Return the active time zone with its offset: ``Asia/Shanghai (UTC+08:00)``."""
    offset = now.astimezone(timezone.get_current_timezone()).strftime("%z")
    return f"{timezone.get_current_timezone_name()} (UTC{offset[:3]}:{offset[3:5]})"


@require_http_methods(["GET", "HEAD", "POST"])
@page
def time_zone(request: PageRequest) -> HttpResponse:
    """Store the user's time zone setting."""
    fault, status = "", HTTPStatus.OK
    if request.http.method == "POST":
        try:
            set_preferences(
                viewer=request.viewer, time_zone=request.http.POST.get("time_zone", "")[:_LONGEST]
            )
            return HttpResponseRedirect(reverse("time-zone"))
        except InvalidError as error:
            fault, status = error.message, HTTPStatus.BAD_REQUEST
    context = {
        "zones": zone_names(),
        "chosen": chosen_zone(request.http),
        "browser": unquote(request.http.COOKIES.get(COOKIE, "")),
        "fault": fault,
    }
    return request.render("session/time_zone.html", context, status=status)
