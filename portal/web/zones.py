"""Time zone of pages: the user's setting, else the time zone of the browser."""

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.http import require_http_methods

from portal.web.language import PROGRAM_PATHS
from portal.web.viewing import PageRequest, page
from tenants.errors import InvalidError
from tenants.models.users import BROWSER_ZONE
from tenants.services import set_preferences

COOKIE: Final = "tessera_zone"
"""Set by the page's script (``static/js/zone.js``), read here."""

_LONGEST: Final = 64


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
    """Return the time zone with this name; None: unknown name."""
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
